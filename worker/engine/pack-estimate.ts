/** How long the parts of one kernel take, in the unit of PackCosts. */
import type { PartList } from "./pack-parts.ts";
import type { PackCosts } from "./pack-shape.ts";

export interface KernelWork {
  readonly items: number;
  /** Of the longest item, and of all. */
  readonly maxLoads: number;
  readonly totalLoads: number;
  /** Tokens times m-tiles. */
  readonly tileTokens: number;
  /** Cost of one of them. */
  readonly tileCost: number;
  /** Tokens that come from memory: each once. */
  readonly memoryTokens: number;
}

export function kernelTime(work: KernelWork, { itemSlots, memoryToken, item, loneRate }: PackCosts): number {
  if (work.items === 0) return 0;
  const products = work.tileTokens * work.tileCost;
  const all = Math.max(work.totalLoads, products) + work.items * item;
  const even = Math.max(all, work.memoryTokens * memoryToken) / itemSlots;
  const slowdown = Math.max(1, products / Math.max(1, work.totalLoads));
  const longest = (work.maxLoads * slowdown + item) / loneRate;
  // Items of one length go in whole rounds; of many lengths, the longest first, they end half an item apart.
  const rounds = (work.items * loneRate) / itemSlots;
  const inRounds = (even * Math.ceil(rounds)) / rounds;
  return Math.max(longest, Math.min(inRounds, even + longest / 2));
}

/** What rows of several items cost: written, read back and merged. */
export function partialTime(partRows: number, rowCount: number, { partialRow, itemSlots, item }: PackCosts): number {
  const extra = partRows - rowCount;
  if (extra <= 0) return 0;
  return (partialRow * (extra + Math.min(extra, rowCount))) / itemSlots + item;
}

export function workOf(lists: readonly PartList[], tileCost: number, memoryTokens: number): KernelWork {
  const work = { items: 0, maxLoads: 0, totalLoads: 0, tileTokens: 0, tileCost, memoryTokens };
  for (const list of lists) {
    work.items += list.count;
    work.maxLoads = Math.max(work.maxLoads, list.maxLoads);
    work.totalLoads += list.totalLoads;
    work.tileTokens += list.tileTokens;
  }
  return work;
}
