/** What a plan reads, multiplies and writes, and how long that takes by estimate: for tests and benchmarks. */

import { itemCost, kernelTime, mergeTime } from "../../worker/attention/estimate.ts";
import {
  type AttentionPlan,
  planItem,
  planItemWords,
  planRow,
  planRowWords,
  planSlice,
  planSliceWords,
} from "../../worker/attention/plan-format.ts";
import { type KernelCosts, type PackCosts, type PackShape, packCosts } from "../../worker/attention/shape.ts";
import type { Batch } from "../../worker/contract/batch.ts";

export interface PlanCost {
  /** Of a layer's KV: each distinct token once, and all that items load. */
  readonly distinctBytes: number;
  readonly loadedBytes: number;
  /** Of partial results in float32, written once and read once. */
  readonly partialBytes: number;
  /** Of both products, with rows that m-tiles have for nothing. */
  readonly smallFlops: number;
  readonly largeFlops: number;
  readonly microseconds: number;
}

export function planCost(plan: AttentionPlan, batch: Batch, shape: PackShape): PlanCost {
  const costs = packCosts(shape);
  const met = new Set<number>();
  const small = measure(plan, plan.smallItems, batch, shape, costs, costs.small, met);
  const before = met.size;
  const large = measure(plan, plan.largeItems, batch, shape, costs, costs.large, met);
  const { group, kvHeads, headDim } = shape;
  const tokenBytes = 4 * headDim * kvHeads;
  const tileFlops = 4 * headDim * 16 * costs.unitsPerItem;
  const partialBytes = plan.partialCount * group * kvHeads * (headDim + 1) * 4 * 2;
  const loads = small.totalLoads + large.totalLoads;
  const time =
    kernelTime(small.itemCosts, before, costs.small, costs) +
    kernelTime(large.itemCosts, met.size - before, costs.large, costs) +
    (plan.largeItems.length > 0 && plan.smallItems.length > 0 ? costs.launch : 0) +
    mergeTime(small.mergedTiles, costs);
  return {
    distinctBytes: met.size * tokenBytes,
    loadedBytes: loads * tokenBytes,
    partialBytes,
    smallFlops: small.tileTokens * tileFlops,
    largeFlops: large.tileTokens * tileFlops,
    microseconds: time * costs.seconds * 1e6,
  };
}

interface Measured {
  readonly totalLoads: number;
  readonly tileTokens: number;
  /** m-tiles of the largest item with partial rows. */
  readonly mergedTiles: number;
  readonly itemCosts: Int32Array;
}

/** Adds the places of all tokens that items load to `met`. */
function measure(
  { rows, slices }: AttentionPlan,
  items: Int32Array,
  batch: Batch,
  { blockTokens }: PackShape,
  costs: PackCosts,
  kernel: KernelCosts,
  met: Set<number>,
): Measured {
  const work = {
    totalLoads: 0,
    tileTokens: 0,
    mergedTiles: 0,
    itemCosts: new Int32Array(items.length / planItemWords),
  };
  for (let at = 0; at < items.length; at += planItemWords) {
    const [firstRow, rowCount] = [items[at + planItem.firstRow], items[at + planItem.rowCount]];
    const first = items[at + planItem.firstSlice];
    let [loads, tileTokens, partialRows] = [0, 0, 0];
    for (let i = firstRow; i < firstRow + rowCount; i++) {
      if (rows[i * planRowWords + planRow.partial] >= 0) partialRows += 1;
    }
    for (let s = 0; s < items[at + planItem.sliceCount]; s++) {
      const slice = (first + s) * planSliceWords;
      const tokens = slices[slice + planSlice.tokenCount];
      const isShared = s < items[at + planItem.sharedSlices];
      loads += tokens;
      tileTokens += tokens * (isShared ? Math.ceil(rowCount / costs.rowsPerTile) : 1);
      for (let token = 0; token < tokens; token++) {
        const place = slices[slice + planSlice.firstToken] + token;
        const block = batch.blockIds[slices[slice + planSlice.block] + Math.floor(place / blockTokens)];
        met.add(block * blockTokens + (place % blockTokens));
      }
    }
    if (partialRows > 0) work.mergedTiles = Math.max(work.mergedTiles, Math.ceil(rowCount / costs.rowsPerTile));
    work.totalLoads += loads;
    work.tileTokens += tileTokens;
    work.itemCosts[at / planItemWords] = itemCost(loads, tileTokens, partialRows, kernel, costs);
  }
  return work;
}
