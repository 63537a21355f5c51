/** The launches of one layer's attention: pieces of few rows, pieces of many, then the rows that are in parts. */
import type { ModelConfig } from "../../model/config.ts";
import type { ComputeDevice, DeviceBuffer, LaunchSize } from "./device.ts";
import type { ForwardParts, Op } from "./forward.ts";
import type { StepLayout } from "./staging.ts";
import type { WorkShape } from "./work-items.ts";

export interface AttentionOps {
  /** @param kv the layer's part of the pool. @param turns null: the layer does not rotate */
  ofLayer(kv: DeviceBuffer, turns: DeviceBuffer | null): Op[];
}

// Of kernels/cuda/attention_decode.cu and attention_prefill.cu: rows times heads of a group in one tile.
const fewPacked = 16;
const manyPacked = 128;
const threads = 128;
const decodeWarps = 4;
const decodeStages = 2;
const prefillTokens = 64;

/** Thread blocks of attention that a multiprocessor holds. */
const blocksPerMultiprocessor = 2;
/** Smaller parts cost more in merging than they gain. */
const minPartTokens = { few: 64, many: 512 } as const;

type HeadCounts = Pick<ModelConfig, "headCount" | "kvHeadCount">;

export function workShapeOf(heads: HeadCounts, multiprocessorCount: number, blockTokens: number): WorkShape {
  const group = heads.headCount / heads.kvHeadCount;
  return {
    few: { rows: Math.floor(fewPacked / group), minPartTokens: minPartTokens.few },
    many: { rows: Math.max(1, Math.floor(manyPacked / group)), minPartTokens: minPartTokens.many },
    blockTokens,
    itemTarget: Math.ceil((blocksPerMultiprocessor * multiprocessorCount) / heads.kvHeadCount),
  };
}

/** @throws Error naming what of the model the kernels do not take */
export function assertAttention({ headDim, headCount, kvHeadCount, rope }: ModelConfig): void {
  if (headDim % 16 !== 0 || headDim > 128) {
    throw new Error(`head size ${headDim}: the CUDA backend takes multiples of 16 up to 128`);
  }
  if (rope.rotaryDim % 4 !== 0) throw new Error(`${rope.rotaryDim} rotated dimensions are not a multiple of 4`);
  const group = headCount / kvHeadCount;
  if (group > manyPacked) throw new Error(`${group} query heads for one KV head are more than ${manyPacked}`);
}

/** Bytes of shared memory, from the tiles that stand in it: rows are 16 bytes longer than a head. */
function decodeShared(headDim: number): number {
  return decodeWarps * (1 + 2 * decodeStages) * 16 * 2 * (headDim + 8);
}

function prefillShared(headDim: number): number {
  return (manyPacked + 4 * prefillTokens) * 2 * (headDim + 8);
}

export function allowAttention(device: ComputeDevice, headDim: number): void {
  device.allowSharedBytes("attention_decode", decodeShared(headDim));
  device.allowSharedBytes("attention_prefill", prefillShared(headDim));
}

export function attentionLaunches(parts: ForwardParts, layout: StepLayout): AttentionOps {
  const { device, config, workspace, staging } = parts;
  const { headCount, kvHeadCount, headDim } = config;
  const merge = device.prepare(
    "merge_partials",
    workspace.partials,
    workspace.partialSums,
    staging.list(layout.merges),
    staging.count("merges"),
    headCount,
    headDim,
    workspace.attended,
  );
  const mergeOp: Op = ({ merges }) => {
    if (merges > 0) merge({ grid: [merges, Math.ceil(headCount / 4)], blockThreads: threads, overlapsPrevious: true });
  };
  // The decode kernel's blocks take items in turn, so its launch is the same for every step.
  const fewSize: LaunchSize = {
    grid: [blocksPerMultiprocessor * device.multiprocessorCount],
    blockThreads: threads,
    sharedBytes: decodeShared(headDim),
    overlapsPrevious: true,
  };
  const manySize = (items: number): LaunchSize => ({
    grid: [items * kvHeadCount],
    blockThreads: threads,
    sharedBytes: prefillShared(headDim),
  });
  return {
    ofLayer(kv, turns) {
      const few = prepareAttention(parts, layout, "few", kv, turns);
      const many = prepareAttention(parts, layout, "many", kv, turns);
      const attend: Op = ({ fewItems, manyItems }) => {
        if (fewItems > 0) few(fewSize);
        if (manyItems > 0) many(manySize(manyItems));
      };
      return [attend, mergeOp];
    },
  };
}

function prepareAttention(
  parts: ForwardParts,
  layout: StepLayout,
  kind: "few" | "many",
  kv: DeviceBuffer,
  turns: DeviceBuffer | null,
) {
  const { device, config, workspace, staging, blockTokens } = parts;
  const { headCount, kvHeadCount, rope, softmaxScale } = config;
  return device.prepare(
    kind === "few" ? "attention_decode" : "attention_prefill",
    workspace.qkv,
    kv,
    turns,
    staging.list(kind === "few" ? layout.fewItems : layout.manyItems),
    // Slices and block ids are named by their place in the whole buffer.
    staging.list(0),
    staging.list(0),
    staging.list(layout.positions),
    staging.count(kind === "few" ? "fewItems" : "manyItems"),
    headCount,
    kvHeadCount,
    turns === null ? 0 : rope.rotaryDim,
    blockTokens,
    softmaxScale * Math.LOG2E,
    workspace.attended,
    workspace.partials,
    workspace.partialSums,
  );
}
