/** What a plan reads, multiplies and writes, and how long that takes by estimate: for tests and benchmarks. */
import type { Batch } from "../backend/backend.ts";
import { type AttentionPlan, planItem, planItemWords, planSlice, planSliceWords } from "./attention-plan.ts";
import { type KernelWork, kernelTime } from "./pack-estimate.ts";
import { type PackShape, packCosts } from "./pack-shape.ts";

export interface PlanCost {
  /** Of a layer's KV: each distinct token once, and all that items load. */
  readonly distinctBytes: number;
  readonly loadedBytes: number;
  /** Of partial results in float32, written once and read once. */
  readonly partialBytes: number;
  /** Of both products, with rows that m-tiles have for nothing. */
  readonly fewFlops: number;
  readonly manyFlops: number;
  readonly microseconds: number;
}

export function planCost(plan: AttentionPlan, batch: Batch, shape: PackShape): PlanCost {
  const costs = packCosts(shape);
  const met = new Set<number>();
  const few = measure(plan, plan.fewItems, batch, shape, met);
  const before = met.size;
  const many = measure(plan, plan.manyItems, batch, shape, met);
  const { group, kvHeads, headDim } = shape;
  const tokenBytes = 4 * headDim * kvHeads;
  const tileFlops = 4 * headDim * 16 * costs.unitsPerItem;
  const partialBytes = plan.partialCount * group * kvHeads * (headDim + 1) * 4 * 2;
  const loads = few.totalLoads + many.totalLoads;
  const time =
    kernelTime({ ...few, memoryTokens: before, tileCost: costs.fewTile }, costs) +
    kernelTime({ ...many, memoryTokens: met.size - before, tileCost: costs.manyTile }, costs) +
    (plan.manyItems.length > 0 && plan.fewItems.length > 0 ? costs.launch : 0) +
    (plan.partialCount > 0 ? costs.item + (plan.partialCount * costs.partialRow) / costs.itemSlots : 0);
  return {
    distinctBytes: met.size * tokenBytes,
    loadedBytes: loads * tokenBytes,
    partialBytes,
    fewFlops: few.tileTokens * tileFlops,
    manyFlops: many.tileTokens * tileFlops,
    microseconds: time * costs.seconds * 1e6,
  };
}

type Measured = Omit<KernelWork, "tileCost" | "memoryTokens">;

/** Adds the places of all tokens that items load to `met`. */
function measure(
  { slices }: AttentionPlan,
  items: Int32Array,
  batch: Batch,
  { group, blockTokens }: PackShape,
  met: Set<number>,
): Measured {
  const rowsPerTile = Math.max(1, Math.floor(16 / group));
  const work = { items: items.length / planItemWords, maxLoads: 0, totalLoads: 0, tileTokens: 0 };
  for (let at = 0; at < items.length; at += planItemWords) {
    let loads = 0;
    const first = items[at + planItem.firstSlice];
    for (let s = 0; s < items[at + planItem.sliceCount]; s++) {
      const slice = (first + s) * planSliceWords;
      const tokens = slices[slice + planSlice.tokenCount];
      const isShared = s < items[at + planItem.sharedSlices];
      loads += tokens;
      work.tileTokens += tokens * (isShared ? Math.ceil(items[at + planItem.rowCount] / rowsPerTile) : 1);
      for (let token = 0; token < tokens; token++) {
        const place = slices[slice + planSlice.firstToken] + token;
        const block = batch.blockIds[slices[slice + planSlice.block] + Math.floor(place / blockTokens)];
        met.add(block * blockTokens + (place % blockTokens));
      }
    }
    work.totalLoads += loads;
    work.maxLoads = Math.max(work.maxLoads, loads);
  }
  return work;
}
