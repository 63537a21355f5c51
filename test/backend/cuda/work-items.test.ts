/** Every (row, token) that a batch's segments show is covered by exactly one slice, and nothing else is. */
import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { Batch } from "../../../worker/backend/backend.ts";
import {
  itemWords,
  maxItems,
  maxPartialRows,
  mergeWords,
  sliceWords,
  type WorkLists,
  WorkPlanner,
  type WorkShape,
} from "../../../worker/backend/cuda/work-items.ts";

interface PieceSpec {
  readonly rows: number;
  /** Tokens of its own run before its rows. */
  readonly before: number;
  readonly segments: readonly { readonly first: number; readonly count: number; readonly offset: number }[];
}

const blockTokens = 4;

function batchOf(pieces: readonly PieceSpec[]): Batch {
  const [pieceRows, pieceSegments] = [[0], [0]];
  const [starts, firsts, counts, offsets, blockIds]: number[][] = [[], [], [], [], []];
  const add = (first: number, count: number, offset: number): void => {
    starts.push(blockIds.length);
    firsts.push(first);
    counts.push(count);
    offsets.push(offset);
    for (let i = 0; i < Math.ceil((first + count) / blockTokens); i++) blockIds.push(1_000 + blockIds.length);
  };
  for (const { rows, before, segments } of pieces) {
    for (const { first, count, offset } of segments) add(first, count, offset);
    add(0, before + rows, 0);
    pieceRows.push((pieceRows.at(-1) ?? 0) + rows);
    pieceSegments.push(counts.length);
  }
  const rowCount = pieceRows.at(-1) ?? 0;
  const zeros = new Int32Array(rowCount);
  return {
    tokenIds: zeros,
    positions: zeros,
    slots: zeros,
    pieceRows: Int32Array.from(pieceRows),
    pieceSegments: Int32Array.from(pieceSegments),
    segmentBlockStarts: Int32Array.from(starts),
    segmentFirstTokens: Int32Array.from(firsts),
    segmentTokenCounts: Int32Array.from(counts),
    segmentOffsets: Int32Array.from(offsets),
    blockIds: Int32Array.from(blockIds),
    logitRows: new Int32Array(0),
  };
}

/** What a row sees, by the contract: "block:token:offset" of each, sorted. */
function seenByContract(batch: Batch): string[][] {
  return Array.from({ length: batch.tokenIds.length }, (_, row) => {
    const piece = batch.pieceRows.findIndex((first, p) => first <= row && row < batch.pieceRows[p + 1]);
    const last = batch.pieceSegments[piece + 1] - 1;
    const seen: string[] = [];
    for (let s = batch.pieceSegments[piece]; s <= last; s++) {
      const hidden = s === last ? batch.pieceRows[piece + 1] - 1 - row : 0;
      for (let i = 0; i < batch.segmentTokenCounts[s] - hidden; i++) {
        seen.push(
          tokenName(batch, batch.segmentBlockStarts[s], batch.segmentFirstTokens[s] + i, batch.segmentOffsets[s]),
        );
      }
    }
    return seen.sort();
  });
}

function tokenName(batch: Batch, blockStart: number, token: number, offset: number): string {
  const block = batch.blockIds[blockStart + Math.floor(token / blockTokens)];
  return `${block}:${token % blockTokens}:${offset}`;
}

function wordsOf(list: Int32Array, size: number): number[][] {
  return Array.from({ length: list.length / size }, (_, i) => [...list.subarray(i * size, (i + 1) * size)]);
}

function itemsOf(lists: WorkLists): number[][] {
  return [...wordsOf(lists.fewItems, itemWords), ...wordsOf(lists.manyItems, itemWords)];
}

function seenByItems(batch: Batch, lists: WorkLists): string[][] {
  const seen: string[][] = Array.from({ length: batch.tokenIds.length }, () => []);
  for (const [firstRow, rowCount, firstSlice, sliceCount] of itemsOf(lists)) {
    for (let slice = firstSlice; slice < firstSlice + sliceCount; slice++) {
      const [block, first, count, offset, visible] = lists.slices.subarray(
        slice * sliceWords,
        (slice + 1) * sliceWords,
      );
      expect(first).toBeLessThan(blockTokens);
      expect(count).toBeGreaterThan(0);
      for (let i = 0; i < rowCount; i++) {
        for (let token = 0; token < Math.min(count, visible + i); token++) {
          seen[firstRow + i].push(tokenName(batch, block, first + token, offset));
        }
      }
    }
  }
  return seen.map((tokens) => tokens.sort());
}

/** Each row is one whole item's, or the merge of all parts of its tile. */
function checkMerges(batch: Batch, lists: WorkLists): void {
  const partials = new Map<number, number>();
  const whole = new Set<number>();
  for (const [firstRow, rowCount, , , firstPartial] of itemsOf(lists)) {
    for (let i = 0; i < rowCount; i++) {
      if (firstPartial < 0) {
        expect(whole.has(firstRow + i)).toBe(false);
        whole.add(firstRow + i);
      } else {
        expect(partials.has(firstPartial + i)).toBe(false);
        partials.set(firstPartial + i, firstRow + i);
      }
    }
  }
  expect(partials.size).toBe(lists.partialCount);
  for (const [row, first, count, stride] of wordsOf(lists.merges, mergeWords)) {
    expect(whole.has(row)).toBe(false);
    whole.add(row);
    for (let part = 0; part < count; part++) {
      expect(partials.get(first + part * stride)).toBe(row);
      partials.delete(first + part * stride);
    }
  }
  expect(partials.size).toBe(0);
  expect(whole.size).toBe(batch.tokenIds.length);
}

function pieceRowsOf({ pieceRows }: Batch, row: number): number {
  const piece = pieceRows.findIndex((first, p) => first <= row && row < pieceRows[p + 1]);
  return pieceRows[piece + 1] - pieceRows[piece];
}

const piece = fc.record({
  rows: fc.integer({ min: 1, max: 20 }),
  before: fc.integer({ min: 0, max: 40 }),
  segments: fc.array(
    fc.record({
      first: fc.integer({ min: 0, max: blockTokens - 1 }),
      count: fc.integer({ min: 1, max: 40 }),
      offset: fc.integer({ min: -50, max: 50 }),
    }),
    { maxLength: 4 },
  ),
});
const tileShape = (minRows: number, maxRows: number) =>
  fc.record({ rows: fc.integer({ min: minRows, max: maxRows }), minPartTokens: fc.integer({ min: 1, max: 16 }) });
const shapes = fc.record({
  few: tileShape(0, 3),
  many: tileShape(1, 8),
  blockTokens: fc.constant(blockTokens),
  itemTarget: fc.integer({ min: 1, max: 24 }),
});

describe("work items", () => {
  test("cover what each row sees, once, within the promised sizes", () => {
    const property = (pieces: readonly PieceSpec[], shape: WorkShape): void => {
      const batch = batchOf(pieces);
      const lists = new WorkPlanner(shape).plan(batch);
      expect(seenByItems(batch, lists)).toEqual(seenByContract(batch));
      checkMerges(batch, lists);
      expect(lists.partialCount).toBeLessThanOrEqual(maxPartialRows(shape));
      for (const items of [lists.fewItems, lists.manyItems]) {
        expect(items.length / itemWords).toBeLessThanOrEqual(maxItems(shape, batch.tokenIds.length));
      }
      const isFew = (row: number) => pieceRowsOf(batch, row) <= shape.few.rows;
      expect(wordsOf(lists.fewItems, itemWords).every(([row]) => isFew(row))).toBe(true);
      expect(wordsOf(lists.manyItems, itemWords).some(([row]) => isFew(row))).toBe(false);
    };
    fc.assert(fc.property(fc.array(piece, { minLength: 1, maxLength: 5 }), shapes, property), { numRuns: 300 });
  });

  const tiles = { rows: 4, minPartTokens: 16 };
  const shape: WorkShape = { few: { ...tiles, rows: 1 }, many: tiles, blockTokens, itemTarget: 8 };

  test("one long context is split over the chip, short ones beside it are not", () => {
    const planner = new WorkPlanner(shape);
    const pieces = [{ rows: 1, before: 127, segments: [] }, ...Array(3).fill({ rows: 1, before: 7, segments: [] })];
    const lists = planner.plan(batchOf(pieces));
    expect(lists.fewItems.length / itemWords).toBe(6 + 3);
    expect(lists.merges.length / mergeWords).toBe(1);
  });

  test("parts fill the chip once: two tiles of a long prompt make no item more than it takes", () => {
    const odd: WorkShape = { ...shape, many: { rows: 32, minPartTokens: 16 }, itemTarget: 33 };
    const lists = new WorkPlanner(odd).plan(batchOf([{ rows: 64, before: 4_000, segments: [] }]));
    expect(lists.manyItems.length / itemWords).toBe(32);
  });

  test("a long prompt alone fills the chip with tiles and is not split", () => {
    const lists = new WorkPlanner(shape).plan(batchOf([{ rows: 128, before: 0, segments: [] }]));
    expect(lists.merges).toHaveLength(0);
    expect([lists.manyItems.length / itemWords, lists.manyItems[0]]).toEqual([32, 124]);
  });

  test("the lists are made anew each time", () => {
    const planner = new WorkPlanner(shape);
    const batch = batchOf([{ rows: 3, before: 60, segments: [{ first: 1, count: 9, offset: -4 }] }]);
    const first = structuredClone(planner.plan(batch));
    expect(structuredClone(planner.plan(batch))).toEqual(first);
  });
});
