/** The launches of one layer's attention: the plan's large items, then those of few (worker/attention/planner.ts). */
import { largeTiles, smallTiles, tileHeads } from "../../attention/plan-format.ts";
import type { PackShape } from "../../attention/shape.ts";
import type { ModelConfig } from "../../model/config.ts";
import type { ComputeDevice, DeviceBuffer, LaunchSize } from "./device/device.ts";
import type { ForwardParts, LayerMaps, Op } from "./forward-parts.ts";
import type { StepLayout } from "./staging.ts";

export interface AttentionOps {
  /** @param kv the layer's part of the pool. @param rotations null: the layer does not rotate */
  ofLayer(kv: DeviceBuffer, rotations: DeviceBuffer | null): Op[];
}

/** Partial results of a step at most, whatever its rows: 64 MiB for 32 heads of 128. */
const maxPartialRows = 4_096;

export function packShapeOf(
  { headCount, kvHeadCount, headDim, rope }: ModelConfig,
  device: ComputeDevice,
  { blockTokens, packing = true }: { readonly blockTokens: number; readonly packing?: boolean },
): PackShape {
  return {
    group: headCount / kvHeadCount,
    kvHeads: kvHeadCount,
    headDim,
    blockTokens,
    multiprocessorCount: device.multiprocessorCount,
    hasWarpgroups: usesWarpgroups(device, { headDim, rope }, blockTokens),
    packing,
    maxPartialRows,
  };
}

/** Can the kernels of warpgroups run the items? What they take stands in kernels/cuda/attention{,_packed}_wgmma.cu. */
function usesWarpgroups(
  device: ComputeDevice,
  { headDim, rope }: Pick<ModelConfig, "headDim" | "rope">,
  blockTokens: number,
): boolean {
  return device.hasWarpgroups && isWarpgroupHead(headDim) && rope.rotaryDim % 16 === 0 && blockTokens >= partTokens;
}

/** Tokens of a box of attention_packed_wgmma. */
const partTokens = 16;

function isWarpgroupHead(headDim: number): boolean {
  return headDim === 64 || headDim === 128;
}

/** Counters of arrivals that a merge has: one for each KV head and tile of its query heads. */
export function countersPerMerge({ headCount, kvHeadCount }: ModelConfig): number {
  return kvHeadCount * Math.ceil(headCount / kvHeadCount / tileHeads);
}

/** Items of each kind in a step of so many rows: all but one for each row write partial results. */
export function maxItems(shape: PackShape, rowCount: number): number {
  // The packed kernel's blocks read an item each before they know how many there are.
  return rowCount + shape.maxPartialRows + packedBlocks * shape.multiprocessorCount;
}

/** @throws Error naming what of the model the kernels do not take */
export function assertAttention({ headDim, rope }: ModelConfig, blockTokens: number): void {
  if (headDim % 16 !== 0 || headDim > 128) {
    throw new Error(`head size ${headDim}: the CUDA backend takes multiples of 16 up to 128`);
  }
  if (rope.rotaryDim % 4 !== 0) throw new Error(`${rope.rotaryDim} rotated dimensions are not a multiple of 4`);
  if (!Number.isInteger(Math.log2(blockTokens)))
    throw new Error(`${blockTokens} tokens of a block are no power of two`);
}

/** Thread blocks on a multiprocessor of the kernels for few rows and for tiles. */
const packedBlocks = 2;
const tilesBlocks = 2;

/**
 * How the kernels are launched: persistent blocks that take units of work one after the other, the same for every step.
 */
export interface AttentionLaunches {
  readonly smallKernel: "attention_packed" | "attention_packed_wgmma";
  readonly small: LaunchSize;
  readonly largeKernel: "attention_tiles" | "attention_wgmma";
  readonly large: LaunchSize;
}

/** The most of a choice of shared memory that lets so many blocks stand on a multiprocessor, else the least. */
function sharedBytes(device: ComputeDevice, choices: readonly number[], blocks: number): number {
  // A block takes 1 KiB beside its own; a multiprocessor has that much more than its largest block.
  const room = (device.maxSharedBytesPerBlock + 1_024) / blocks - 1_024 - staticSharedBytes;
  return choices.find((bytes) => bytes <= room) ?? choices[choices.length - 1];
}

/** Four warps that compute, four that copy for them. */
const packedThreads = 256;

/** At most, of either kernel. */
const staticSharedBytes = 2_304;

export function launchesOf(device: ComputeDevice, headDim: number, hasWarpgroups = false): AttentionLaunches {
  const { multiprocessorCount } = device;
  if (hasWarpgroups) {
    return {
      smallKernel: "attention_packed_wgmma",
      small: packedWarpgroupLaunch(multiprocessorCount, headDim),
      largeKernel: "attention_wgmma",
      large: warpgroupLaunch(multiprocessorCount, headDim),
    };
  }
  const packed = [4, 3, 2].map((slots) => packedShared(headDim, slots));
  const small = {
    grid: [packedBlocks * multiprocessorCount],
    blockThreads: packedThreads,
    sharedBytes: sharedBytes(device, packed, packedBlocks),
    overlapsPrevious: true,
  } as const;
  const tiles = [64, 32].map((tokens) => tilesShared(headDim, tokens));
  const large = {
    grid: [tilesBlocks * multiprocessorCount],
    blockThreads: 128,
    sharedBytes: sharedBytes(device, tiles, tilesBlocks),
    overlapsPrevious: true,
  } as const;
  return { smallKernel: "attention_packed", small, largeKernel: "attention_tiles", large };
}

/** Of kernels/cuda/attention/attention_packed.cu: slots of 16 rows of K and of V for each warp that computes. */
function packedShared(headDim: number, slots: number): number {
  return 4 * slots * 32 * 2 * (headDim + 8);
}

/** Of kernels/cuda/attention/attention_tiles.cu: q, and two steps of K and V. */
function tilesShared(headDim: number, tokens: number): number {
  return (largeTiles * 16 + 4 * tokens) * 2 * (headDim + 8);
}

/**
 * Of kernels/cuda/attention/wgmma/attention_wgmma.cu: one block a multiprocessor, whose kSharedBytes stand in
 * wgmma_ring.cuh.
 */
export function warpgroupLaunch(multiprocessorCount: number, headDim: number) {
  const slots = headDim === 128 ? 5 : 10;
  const tileBytes = largeTiles * 16 * 2 * headDim;
  const sharedBytes = (2 + slots) * tileBytes + slots * 40 + 32;
  return { grid: [multiprocessorCount], blockThreads: 512, sharedBytes, overlapsPrevious: true } as const;
}

/**
 * Of kernels/cuda/attention/wgmma/attention_packed_wgmma.cu: two blocks a multiprocessor, whose kSharedBytes stand in
 * packed_ring.cuh. They may wait for each other, so there are never more than stand on the device at once.
 */
export function packedWarpgroupLaunch(multiprocessorCount: number, headDim: number) {
  const slots = headDim === 128 ? 5 : 10;
  const tileBytes = smallTiles * 16 * 2 * headDim;
  const sharedBytes = (2 + slots) * tileBytes + slots * (80 + 16) + 32 + smallTiles * 16 * 4;
  return {
    grid: [packedBlocks * multiprocessorCount],
    blockThreads: 256,
    sharedBytes,
    overlapsPrevious: true,
  } as const;
}

export function allowAttention(device: ComputeDevice, headDim: number): void {
  for (const hasWarpgroups of [false, device.hasWarpgroups && isWarpgroupHead(headDim)]) {
    const { smallKernel, small, largeKernel, large } = launchesOf(device, headDim, hasWarpgroups);
    device.allowSharedBytes(smallKernel, small.sharedBytes ?? 0);
    device.allowSharedBytes(largeKernel, large.sharedBytes ?? 0);
  }
}

/**
 * What the kernels of warpgroups take instead of each layer's part of the pool, by its address; empty where they are
 * not used. Made once, since nothing is allocated in service.
 */
export function putLayerMaps(
  device: ComputeDevice,
  { headDim, blockTokens, hasWarpgroups }: PackShape,
  layers: readonly DeviceBuffer[],
): ReadonlyMap<number, LayerMaps> {
  const boxRows = Math.min(blockTokens, largeTiles * 16);
  const mapsOf = (kv: DeviceBuffer): LayerMaps => {
    const small = device.putTensorMap(kv, headDim, partTokens);
    return { small, large: boxRows === partTokens ? small : device.putTensorMap(kv, headDim, boxRows) };
  };
  return new Map((hasWarpgroups ? layers : []).map((kv) => [kv.pointer, mapsOf(kv)]));
}

export function attentionLaunches(parts: ForwardParts, layout: StepLayout): AttentionOps {
  const { device, config, packShape, layerMaps } = parts;
  const { smallKernel, small, largeKernel, large } = launchesOf(device, config.headDim, packShape.hasWarpgroups);
  return {
    ofLayer(kv, rotations) {
      const maps = layerMaps.get(kv.pointer);
      const ofLarge = prepareAttention(parts, layout, largeKernel, maps?.large ?? kv, rotations);
      const ofSmall = prepareAttention(parts, layout, smallKernel, maps?.small ?? kv, rotations);
      return [
        ({ largeItems }) => {
          if (largeItems > 0) ofLarge(large);
        },
        ({ smallItems }) => {
          if (smallItems > 0) ofSmall(small);
        },
      ];
    },
  };
}

function prepareAttention(
  parts: ForwardParts,
  layout: StepLayout,
  kernel: AttentionLaunches["smallKernel" | "largeKernel"],
  kv: DeviceBuffer,
  rotations: DeviceBuffer | null,
) {
  const { device, config, workspace, staging, blockTokens } = parts;
  const { headCount, kvHeadCount, rope, softmaxScale } = config;
  const isSmall = kernel === "attention_packed" || kernel === "attention_packed_wgmma";
  return device.prepare(
    kernel,
    workspace.qkv,
    kv,
    rotations,
    staging.list(layout.positions),
    // Lists as long as the step are named by their place in the whole buffer.
    staging.list(0),
    staging.list(isSmall ? layout.smallItems : layout.largeItems),
    staging.list(0),
    staging.list(0),
    staging.list(0),
    staging.list(layout.merges),
    staging.count(isSmall ? "smallItems" : "largeItems"),
    headCount,
    kvHeadCount,
    rotations === null ? 0 : rope.rotaryDim,
    blockTokens,
    softmaxScale * Math.LOG2E,
    workspace.attended,
    workspace.partials,
    workspace.partialSums,
    workspace.arrivals,
  );
}
