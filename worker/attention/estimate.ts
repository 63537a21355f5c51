/** How long items take, in the unit of PackCosts. */
import type { KernelCosts, PackCosts } from "./shape.ts";

/** With more rounds of items than this, their order evens out the differences. */
const manyRounds = 6;

/**
 * What an item costs a multiprocessor that works at full rate.
 * @param tileTokens tokens times m-tiles that read them
 */
export function itemCost(
  loads: number,
  tileTokens: number,
  partialRows: number,
  kernel: KernelCosts,
  { item }: PackCosts,
): number {
  return Math.ceil(Math.max(loads, kernel.tile * tileTokens) + item + kernel.partialRow * partialRows);
}

/**
 * Time of the merges that remain when the last item is done. @param tiles m-tiles of the largest item with partial rows
 */
export const mergeTime = (tiles: number, costs: PackCosts): number => costs.merge * (tiles > 2 ? 4 : tiles);

/**
 * Time of one kernel: its blocks take items in serpentine order, the longest first. Memory gives all that is read once
 * at its own rate.
 * @param items costs of all, sorted in place
 */
export function kernelTime(
  items: Int32Array,
  memoryTokens: number,
  { loneRate }: KernelCosts,
  { itemSlots, memoryToken }: PackCosts,
): number {
  if (items.length === 0) return 0;
  let total = 0;
  let longest = 0;
  for (let i = 0; i < items.length; i++) {
    total += items[i];
    if (items[i] > longest) longest = items[i];
  }
  const memory = (memoryTokens * memoryToken) / itemSlots;
  const slots = Math.floor(itemSlots / loneRate);
  if (slots < 2 || items.length > manyRounds * slots) {
    return Math.max(memory, longest / loneRate, total / itemSlots + longest / 2);
  }
  items.sort();
  const sums = new Float64Array(slots);
  for (let i = 0; i < items.length; i++) {
    const round = Math.floor(i / slots);
    const place = i % slots;
    sums[round % 2 === 0 ? place : slots - 1 - place] += items[items.length - 1 - i];
  }
  let last = 0;
  for (const sum of sums) if (sum > last) last = sum;
  return Math.max(memory, last / loneRate);
}
