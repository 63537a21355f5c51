/** What must hold for every plan of every batch. */
import { expect } from "bun:test";
import {
  type AttentionPlan,
  largeTiles,
  notRead,
  planItemWords,
  planMergeWords,
  planRowWords,
  planSliceWords,
  rowsPerTile,
  smallTiles,
} from "../../worker/attention/plan-format.ts";
import type { PackShape } from "../../worker/attention/shape.ts";
import type { Batch } from "../../worker/contract/batch.ts";

function wordsOf(list: Int32Array, size: number): number[][] {
  return Array.from({ length: list.length / size }, (_, i) => [...list.subarray(i * size, (i + 1) * size)]);
}

/** One token as a row sees it: of which block, and moved by which offset. */
function tokenName(batch: Batch, blockTokens: number, blockPlace: number, token: number, offset: number): string {
  const block = batch.blockIds[blockPlace + Math.floor(token / blockTokens)];
  return `${block}:${token % blockTokens}:${offset}`;
}

/** [rows] what each row sees by the contract of `Batch`, sorted. */
function seenByContract(batch: Batch, blockTokens: number): string[][] {
  const seen: string[][] = [];
  for (let piece = 0; piece + 1 < batch.pieceRows.length; piece++) {
    const end = batch.pieceRows[piece + 1];
    const last = batch.pieceSegments[piece + 1] - 1;
    for (let row = batch.pieceRows[piece]; row < end; row++) {
      const tokens: string[] = [];
      for (let s = batch.pieceSegments[piece]; s <= last; s++) {
        const count = batch.segmentTokenCounts[s] - (s === last ? end - 1 - row : 0);
        const [place, first] = [batch.segmentBlockStarts[s], batch.segmentFirstTokens[s]];
        for (let i = 0; i < count; i++) {
          tokens.push(tokenName(batch, blockTokens, place, first + i, batch.segmentOffsets[s]));
        }
      }
      seen.push(tokens.sort());
    }
  }
  return seen;
}

/** By `rotation`, q of each row of a small item is rotated by its own offset for every slice. */
function checkRotations(plan: AttentionPlan): void {
  const slices = wordsOf(plan.slices, planSliceWords);
  for (const [, itemRows, firstSlice, , sliceCount] of wordsOf(plan.smallItems, planItemWords)) {
    let rotated: number[] = [];
    for (const [, , , firstOffset, firstRow, rowCount, , rotations] of slices.slice(
      firstSlice,
      firstSlice + sliceCount,
    )) {
      if (rotations > 0) rotated = [...plan.offsets.subarray(rotations - 1, rotations - 1 + itemRows)];
      if (rotations < 0) {
        const ends = plan.offsets[-rotations - 1];
        const [from, end] = [ends & 0xffff, ends >> 16];
        rotated = new Array(itemRows).fill(notRead);
        for (let row = from; row < end; row++) rotated[row] = plan.offsets[-rotations + row - from];
      }
      const offsets = [...plan.offsets.subarray(firstOffset, firstOffset + rowCount)];
      expect(rotated.slice(firstRow, firstRow + rowCount)).toEqual(offsets);
    }
  }
}

/** [rows] what the plan's items show to each row, sorted; slices are checked on the way. */
function seenByPlan(batch: Batch, plan: AttentionPlan, { blockTokens, group }: PackShape): string[][] {
  const seen: string[][] = Array.from({ length: batch.tokenIds.length }, () => []);
  const perTile = rowsPerTile(group);
  const slices = wordsOf(plan.slices, planSliceWords);
  const used = new Set<number>();
  for (const [firstRow, rowCount, firstSlice, sharedSlices, sliceCount] of itemsOf(plan)) {
    expect(sliceCount).toBeGreaterThan(0);
    for (let s = 0; s < sliceCount; s++) {
      const [block, firstToken, tokens, firstOffset, sliceRow, sliceRows, visible] = slices[firstSlice + s];
      expect(used.has(firstSlice + s)).toBe(false);
      used.add(firstSlice + s);
      expect(firstToken).toBeLessThan(blockTokens);
      expect(tokens).toBeGreaterThan(0);
      if (s < sharedSlices) expect([sliceRow, sliceRows]).toEqual([0, rowCount]);
      else expect(Math.floor(sliceRow / perTile)).toBe(Math.floor((sliceRow + sliceRows - 1) / perTile));
      for (let i = 0; i < sliceRows; i++) {
        const row = plan.rows[(firstRow + sliceRow + i) * planRowWords];
        const offset = plan.offsets[firstOffset + i];
        for (let token = 0; token < Math.min(tokens, visible + i); token++) {
          seen[row].push(tokenName(batch, blockTokens, block, firstToken + token, offset));
        }
      }
    }
  }
  expect(used.size).toBe(slices.length);
  return seen.map((tokens) => tokens.sort());
}

function itemsOf(plan: AttentionPlan): number[][] {
  return [...wordsOf(plan.smallItems, planItemWords), ...wordsOf(plan.largeItems, planItemWords)];
}

function checkItems(plan: AttentionPlan, group: number): void {
  const limits = { smallItems: smallTiles * rowsPerTile(group), largeItems: largeTiles * rowsPerTile(group) };
  for (const name of ["smallItems", "largeItems"] as const) {
    const items = wordsOf(plan[name], planItemWords);
    for (const [, rowCount, , sharedSlices, sliceCount, , isSmallAlone] of items) {
      expect(isSmallAlone).toBe(plan.largeItems.length === 0 ? 1 : 0);
      expect(rowCount).toBeGreaterThan(0);
      expect(rowCount).toBeLessThanOrEqual(limits[name]);
      if (name === "largeItems") expect(sharedSlices).toBe(sliceCount);
    }
    const lengths = items.map((item) => item[5]);
    expect(lengths).toEqual(lengths.toSorted((a, b) => b - a));
  }
}

/** A row is one item's, or all of its partial rows are merged; every partial row is written once. */
function checkMerges(batch: Batch, plan: AttentionPlan): void {
  const rows = wordsOf(plan.rows, planRowWords);
  const merges = wordsOf(plan.merges, planMergeWords);
  const held = new Set<number>();
  const partials = new Map<number, number>();
  const ofRow = new Map<number, number[]>();
  for (const [firstRow, rowCount] of itemsOf(plan)) {
    for (let i = firstRow; i < firstRow + rowCount; i++) {
      const [row, partial, merge] = rows[i];
      expect(held.has(i)).toBe(false);
      held.add(i);
      ofRow.set(row, [...(ofRow.get(row) ?? []), partial]);
      if (partial < 0) expect(merge).toBe(-1);
      else {
        expect(partials.has(partial)).toBe(false);
        partials.set(partial, row);
        expect(merges[merge][0]).toBe(row);
      }
    }
  }
  expect(held.size).toBe(rows.length);
  expect(ofRow.size).toBe(batch.tokenIds.length);
  expect([...partials.keys()].sort((a, b) => a - b)).toEqual(Array.from({ length: plan.partialCount }, (_, i) => i));
  const merged = new Map(merges.map(([row, first, count]) => [row, { first, count }]));
  expect(merged.size).toBe(merges.length);
  for (const [row, own] of ofRow) {
    const { first, count } = merged.get(row) ?? { first: -1, count: 1 };
    expect(count).toBe(own.length);
    if (count === 1) expect(own).toEqual([-1]);
    else expect(own.toSorted((a, b) => a - b)).toEqual(Array.from({ length: count }, (_, i) => first + i));
  }
}

export function checkPlan(batch: Batch, plan: AttentionPlan, shape: PackShape): void {
  checkItems(plan, shape.group);
  checkMerges(batch, plan);
  checkRotations(plan);
  const [expected, seen] = [seenByContract(batch, shape.blockTokens), seenByPlan(batch, plan, shape)];
  for (let row = 0; row < expected.length; row++) expect(seen[row]).toEqual(expected[row]);
}
