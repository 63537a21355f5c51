/** What the device is told of the largest steps that the engine makes fits into the room that is made for it. */
import { expect, test } from "bun:test";
import { PackPlanner } from "../../../worker/attention/planner.ts";
import { minListWords } from "../../../worker/backend/cuda/parts.ts";
import type { Batch } from "../../../worker/contract/batch.ts";
import type { PlanRun } from "../../../worker/contract/messages.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import { defaultEngineLimits } from "../../../worker/engine/limits.ts";
import { Run } from "../../../worker/engine/run.ts";
import { ListBudget } from "../../../worker/engine/step-budget.ts";

const blockTokens = 16;

/** Pieces of so many rows, each over so many fragments of one block. */
function batchOf(pieces: number, rows: number, fragments: number): Batch {
  const rowCount = pieces * rows;
  const ownBlocks = Math.ceil(rows / blockTokens);
  const blocks = fragments + ownBlocks;
  const segments = fragments + 1;
  const list = (length: number, of: (i: number) => number) => Int32Array.from({ length }, (_, i) => of(i));
  return {
    tokenIds: new Int32Array(rowCount),
    positions: new Int32Array(rowCount),
    slots: new Int32Array(rowCount),
    pieceRows: list(pieces + 1, (piece) => piece * rows),
    pieceSegments: list(pieces + 1, (piece) => piece * segments),
    segmentBlockStarts: list(pieces * segments, (s) => Math.floor(s / segments) * blocks + (s % segments)),
    segmentFirstTokens: new Int32Array(pieces * segments),
    segmentTokenCounts: list(pieces * segments, (s) => (s % segments === fragments ? rows : blockTokens)),
    segmentOffsets: list(pieces * segments, (s) => s % segments),
    blockIds: list(pieces * blocks, (i) => i),
    logitRows: list(pieces, (piece) => (piece + 1) * rows - 1),
  };
}

/** Rows of each of so many pieces that the engine takes into one step, at most. */
function rowsOf(pieces: number, fragments: number): number {
  const room = new ListBudget(defaultEngineLimits.stepListWords / pieces);
  return room.rowsFor(makeRun(fragments), 8_192 / pieces);
}

/** Rows of as many requests that decode. */
function decodesOf(fragments: number): number {
  const run = makeRun(fragments);
  const room = new ListBudget(defaultEngineLimits.stepListWords);
  let count = 0;
  for (; room.rowsFor(run, 1) > 0; count++) room.take(run, 1);
  return count;
}

/** A long run over so many fragments of one block each. */
function makeRun(fragments: number): Run {
  const sees = Array.from({ length: fragments }, (_, run) => ({ run, firstToken: 0, tokenCount: 16, offset: run }));
  const plan = {
    kind: "main",
    tokenIds: new Int32Array(8_192),
    position: 0,
    sees,
    blockKeys: [],
    rootKey: "" as BlockKey,
  };
  return new Run(plan as PlanRun, true, true, blockTokens);
}

/** The rest is for tokens that penalties have seen. */
const roomWords = minListWords / 2;

for (const group of [1, 4, 16, 24]) {
  test(`groups of ${group} query heads`, () => {
    const shape = { group, kvHeads: 8, headDim: 128, blockTokens, multiprocessorCount: 132, hasWarpgroups: true };
    const planner = new PackPlanner({ ...shape, packing: true, maxPartialRows: 4_096 });
    const wordsOf = (pieces: number, rows: number, fragments: number): number => {
      const batch = batchOf(pieces, rows, fragments);
      const { slices, offsets, rows: planRows } = planner.plan(batch);
      return slices.length + offsets.length + planRows.length + batch.blockIds.length;
    };
    for (const fragments of [127, 1_023, 4_095]) {
      for (const pieces of [1, 4]) {
        const rows = rowsOf(pieces, fragments);
        expect(rows).toBeGreaterThan(8);
        expect(wordsOf(pieces, rows, fragments)).toBeLessThan(roomWords);
      }
      const decodes = decodesOf(fragments);
      expect(decodes).toBeGreaterThan(30);
      expect(wordsOf(decodes, 1, fragments)).toBeLessThan(roomWords);
    }
  });
}
