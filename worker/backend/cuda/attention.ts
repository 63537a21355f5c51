/** Attention launches of one layer: first the plan's large items, then its small ones (worker/attention/planner.ts). */
import { largeTiles, smallTiles, tileHeads } from "../../attention/plan-format.ts";
import type { PackShape } from "../../attention/shape.ts";
import { mx8Group } from "../../contract/units.ts";
import type { ModelConfig } from "../../model/config.ts";
import type { ComputeDevice, DeviceBuffer, LaunchSize } from "./device/device.ts";
import type { ForwardParts, LayerMaps, Op } from "./forward-parts.ts";
import type { KvElement } from "./pool.ts";
import type { StepLayout } from "./staging.ts";

export interface AttentionOps {
  /**
   * @param kv the layer's part of the pool
   * @param rotations null when the layer has no RoPE
   * @param slides whether the layer follows the plan of the layers that slide
   * @param sinks of the layer's heads, null where they have none
   */
  ofLayer(kv: DeviceBuffer, rotations: DeviceBuffer | null, slides: boolean, sinks: DeviceBuffer | null): Op[];
}

/** The most partial results of a step, whatever its rows: 64 MiB for 32 heads of 128. */
const maxPartialRows = 4_096;

export function packShapeOf(
  { headCount, kvHeadCount, headDim, rope, scoreCap }: ModelConfig,
  device: ComputeDevice,
  { blockTokens, packing = true }: { readonly blockTokens: number; readonly packing?: boolean },
): PackShape {
  return {
    group: headCount / kvHeadCount,
    kvHeads: kvHeadCount,
    headDim,
    blockTokens,
    multiprocessorCount: device.multiprocessorCount,
    hasWarpgroups: usesWarpgroups(device, { headDim, rope, scoreCap }, blockTokens),
    packing,
    maxPartialRows,
  };
}

/**
 * Can the warpgroup kernels run this model? Their limits are listed in
 * kernels/cuda/attention/wgmma/attention*_wgmma.cu.
 */
function usesWarpgroups(
  device: ComputeDevice,
  { headDim, rope, scoreCap }: Pick<ModelConfig, "headDim" | "rope" | "scoreCap">,
  blockTokens: number,
): boolean {
  if (scoreCap !== undefined) return false;
  return device.hasWarpgroups && isWarpgroupHead(headDim) && rope.rotaryDim % 16 === 0 && blockTokens >= partTokens;
}

/** Tokens that attention_packed_wgmma copies at once (a box of the bulk copy engine). */
const partTokens = 16;

const isWarpgroupHead = (headDim: number): boolean => headDim === 64 || headDim === 128;

/** How many counters of arrivals a merge has: one for each KV head and tile of its query heads. */
export function countersPerMerge({ headCount, kvHeadCount }: ModelConfig): number {
  return kvHeadCount * Math.ceil(headCount / kvHeadCount / tileHeads);
}

/**
 * The most items of either kind in a step: for each row one item writes the result, all others write partial results.
 */
export function maxItems(shape: PackShape, rowCount: number): number {
  // Each block of the packed kernel reads one item before it knows how many items there are.
  return rowCount + shape.maxPartialRows + packedBlocks * shape.multiprocessorCount;
}

/** @throws Error naming the property of the model that the kernels do not support */
export function assertAttention({ headDim, rope }: ModelConfig, blockTokens: number): void {
  if (headDim % 16 !== 0 || headDim > 256) {
    throw new Error(`head size ${headDim}: the CUDA backend takes multiples of 16 up to 256`);
  }
  if (rope.rotaryDim % 4 !== 0) throw new Error(`${rope.rotaryDim} rotated dimensions are not a multiple of 4`);
  if (!Number.isInteger(Math.log2(blockTokens)))
    throw new Error(`${blockTokens} tokens of a block are no power of two`);
}

/**
 * KV in mx8 is read by the warpgroup kernels alone.
 * @throws Error naming what the device or the model lacks for it
 */
export function assertMx8({ hasWarpgroups }: PackShape, device: ComputeDevice): void {
  if (hasWarpgroups) return;
  const takes = "SPANGATE_KV_CODEC mx8 on a GPU takes";
  const lacks = device.hasWarpgroups
    ? `heads of 64 or 128 dimensions without caps of scores, with RoPE over a multiple of 16, in blocks of ${partTokens} tokens or more`
    : `one of compute capability 9.0, and ${device.hardware} is of another`;
  throw new Error(`${takes} ${lacks}; leave it out, or take the device cpu`);
}

/** Thread blocks of a persistent kernel that run on one multiprocessor at a time, at most. */
const packedBlocks = 2;

/** Thread blocks of attention_packed and attention_tiles on one multiprocessor. The sums of long heads fill the registers. */
const syncBlocks = (headDim: number): number => (headDim > 128 ? 1 : 2);

/**
 * Launch sizes of the kernels. Thread blocks are persistent and take one unit of work after another, so sizes are
 * fixed.
 */
export interface AttentionLaunches {
  readonly smallKernel: "attention_packed" | "attention_packed_wgmma";
  readonly small: LaunchSize;
  readonly largeKernel: "attention_tiles" | "attention_wgmma";
  readonly large: LaunchSize;
}

/**
 * The first of `choices` (largest first) with which `blocks` thread blocks fit on a multiprocessor, else the smallest.
 */
function sharedBytes(device: ComputeDevice, choices: readonly number[], blocks: number): number {
  // CUDA reserves 1 KiB for each block; a multiprocessor has 1 KiB more than the largest block may use.
  const room = (device.maxSharedBytesPerBlock + 1_024) / blocks - 1_024 - staticSharedBytes;
  return choices.find((bytes) => bytes <= room) ?? choices[choices.length - 1];
}

/** Four warps compute, and four copy for them. */
const packedThreads = 256;

/** The most static shared memory of attention_packed and attention_tiles, in bytes. */
const staticSharedBytes = 2_304;

export function launchesOf(
  device: ComputeDevice,
  headDim: number,
  hasWarpgroups = false,
  kvElement: KvElement = "bfloat16",
): AttentionLaunches {
  const { multiprocessorCount } = device;
  if (hasWarpgroups) {
    return {
      smallKernel: "attention_packed_wgmma",
      small: packedWarpgroupLaunch(multiprocessorCount, headDim, kvElement),
      largeKernel: "attention_wgmma",
      large: warpgroupLaunch(multiprocessorCount, headDim, kvElement),
    };
  }
  const blocks = syncBlocks(headDim);
  const packed = [4, 3, 2].map((slots) => packedShared(headDim, slots));
  const small = {
    grid: [blocks * multiprocessorCount],
    blockThreads: packedThreads,
    sharedBytes: sharedBytes(device, packed, blocks),
    overlapsPrevious: true,
  } as const;
  const tiles = [64, 32].map((tokens) => tilesShared(headDim, tokens));
  const large = {
    grid: [blocks * multiprocessorCount],
    blockThreads: headDim > 128 ? 256 : 128,
    sharedBytes: sharedBytes(device, tiles, blocks),
    overlapsPrevious: true,
  } as const;
  return { smallKernel: "attention_packed", small, largeKernel: "attention_tiles", large };
}

/** Dynamic shared memory of attention_packed.cu: for each computing warp `slots` slots of 16 rows of K and of V. */
const packedShared = (headDim: number, slots: number): number => 4 * slots * 32 * 2 * (headDim + 8);

/** Dynamic shared memory of attention_tiles.cu: q, and two steps of K and V. */
const tilesShared = (headDim: number, tokens: number): number => (largeTiles * 16 + 4 * tokens) * 2 * (headDim + 8);

/**
 * Launch of attention_wgmma.cu: one thread block a multiprocessor. `sharedBytes` must equal kSharedBytes in
 * wgmma_ring.cuh.
 */
export function warpgroupLaunch(multiprocessorCount: number, headDim: number, kvElement: KvElement = "bfloat16") {
  const isMx8 = kvElement === "mx8";
  const slots = headDim === 128 ? (isMx8 ? 4 : 5) : 10;
  const tileBytes = largeTiles * 16 * 2 * headDim;
  const packedBytes = isMx8 ? largeTiles * 16 * mx8Bytes(headDim) : 0;
  const sharedBytes = (2 + slots) * tileBytes + packedBytes + slots * 40 + 32;
  return { grid: [multiprocessorCount], blockThreads: 512, sharedBytes, overlapsPrevious: true } as const;
}

/**
 * Launch of attention_packed_wgmma.cu: two thread blocks a multiprocessor. `sharedBytes` must equal kSharedBytes in
 * packed_ring.cuh. Blocks may wait for each other, so the grid never has more blocks than fit on the device at once.
 */
export function packedWarpgroupLaunch(multiprocessorCount: number, headDim: number, kvElement: KvElement = "bfloat16") {
  const isMx8 = kvElement === "mx8";
  const slots = headDim === 128 ? (isMx8 ? 2 : 5) : isMx8 ? 8 : 10;
  const tileBytes = smallTiles * 16 * 2 * headDim;
  const slotBytes = isMx8 ? smallTiles * 16 * mx8Bytes(headDim) : tileBytes;
  const [tiles, records] = isMx8 ? [4, 2 * slots] : [2, slots];
  const sharedBytes = tiles * tileBytes + slots * (slotBytes + 16) + records * 80 + 32 + smallTiles * 16 * 4;
  return {
    grid: [packedBlocks * multiprocessorCount],
    blockThreads: 256,
    sharedBytes,
    overlapsPrevious: true,
  } as const;
}

/** Bytes of K and V of a token and head in mx8. */
const mx8Bytes = (headDim: number): number => 2 * (headDim + headDim / mx8Group);

export function allowAttention(device: ComputeDevice, headDim: number, kvElement: KvElement = "bfloat16"): void {
  for (const hasWarpgroups of [false, device.hasWarpgroups && isWarpgroupHead(headDim)]) {
    const { smallKernel, small, largeKernel, large } = launchesOf(device, headDim, hasWarpgroups, kvElement);
    device.allowSharedBytes(smallKernel, small.sharedBytes ?? 0);
    device.allowSharedBytes(largeKernel, large.sharedBytes ?? 0);
  }
}

/**
 * Makes the tensor maps that the warpgroup kernels take instead of a layer's part of the pool, by its device address;
 * an empty map where these kernels are not used, or read mx8. They are made once, since nothing is allocated while
 * requests are served.
 */
export function putLayerMaps(
  device: ComputeDevice,
  { headDim, blockTokens, hasWarpgroups }: PackShape,
  { layers, kvElement }: { readonly layers: readonly DeviceBuffer[]; readonly kvElement?: KvElement },
): ReadonlyMap<number, LayerMaps> {
  const boxRows = Math.min(blockTokens, largeTiles * 16);
  const mapsOf = (kv: DeviceBuffer): LayerMaps => {
    const small = device.putTensorMap(kv, headDim, partTokens);
    return { small, large: boxRows === partTokens ? small : device.putTensorMap(kv, headDim, boxRows) };
  };
  const mapped = hasWarpgroups && kvElement !== "mx8" ? layers : [];
  return new Map(mapped.map((kv) => [kv.pointer, mapsOf(kv)]));
}

export function attentionLaunches(parts: ForwardParts, layout: StepLayout): AttentionOps {
  const { device, config, packShape, layerMaps, kvElement } = parts;
  const { hasWarpgroups } = packShape;
  const { smallKernel, small, largeKernel, large } = launchesOf(device, config.headDim, hasWarpgroups, kvElement);
  return {
    ofLayer(kv, rotations, slides, sinks) {
      const maps = layerMaps.get(kv.pointer);
      const [largeItems, smallItems] = slides
        ? (["slidingLargeItems", "slidingSmallItems"] as const)
        : (["largeItems", "smallItems"] as const);
      const merges = layout[slides ? "slidingMerges" : "merges"];
      const prepared = (kernel: AnyKernel, pool: DeviceBuffer, items: ItemList) =>
        prepareAttention(parts, layout, kernel, pool, { rotations, sinks }, { items, merges });
      const ofLarge = prepared(largeKernel, maps?.large ?? kv, largeItems);
      const ofSmall = prepared(smallKernel, maps?.small ?? kv, smallItems);
      return [
        (counts) => {
          if (counts[largeItems] > 0) ofLarge(large);
        },
        (counts) => {
          if (counts[smallItems] > 0) ofSmall(small);
        },
      ];
    },
  };
}

type AnyKernel = AttentionLaunches["smallKernel" | "largeKernel"];

/** A plan's items of one kind, and where its merges begin. */
type ItemList = "smallItems" | "largeItems" | "slidingSmallItems" | "slidingLargeItems";
interface PlanLists {
  readonly items: ItemList;
  readonly merges: number;
}

interface LayerTables {
  readonly rotations: DeviceBuffer | null;
  readonly sinks: DeviceBuffer | null;
}

function prepareAttention(
  parts: ForwardParts,
  layout: StepLayout,
  kernel: AnyKernel,
  kv: DeviceBuffer,
  { rotations, sinks }: LayerTables,
  { items, merges }: PlanLists,
) {
  const { device, config, workspace, staging, blockTokens } = parts;
  const { headCount, kvHeadCount, rope, softmaxScale } = config;
  return device.prepare(
    kernel,
    workspace.qkv,
    kv,
    rotations,
    staging.list(layout.positions),
    // The plan's indices into these lists count from the start of the whole buffer (StepStaging.send adds the offsets).
    staging.list(0),
    staging.list(layout[items]),
    staging.list(0),
    staging.list(0),
    staging.list(0),
    staging.list(merges),
    staging.count(items),
    headCount,
    kvHeadCount,
    rotations === null ? 0 : rope.rotaryDim,
    blockTokens,
    softmaxScale * Math.LOG2E,
    workspace.attended,
    workspace.partials,
    workspace.partialSums,
    workspace.arrivals,
    sinks,
  );
}
