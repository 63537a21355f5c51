/** What the device is told of the largest prefill steps that the engine makes fits into the room that is made for it. */
import { expect, test } from "bun:test";
import type { Batch } from "../../../worker/backend/backend.ts";
import { minListWords } from "../../../worker/backend/cuda/parts.ts";
import { defaultEngineLimits } from "../../../worker/engine/limits.ts";
import { PackPlanner } from "../../../worker/engine/pack.ts";

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

for (const group of [1, 4, 16, 24]) {
  test(`groups of ${group} query heads`, () => {
    const shape = { group, kvHeads: 8, headDim: 128, blockTokens, multiprocessorCount: 132, hasWarpgroups: true };
    const planner = new PackPlanner({ ...shape, packing: true, maxPartialRows: 4_096 });
    for (const fragments of [127, 1_023, 4_095]) {
      for (const pieces of [1, 4]) {
        const rows = Math.floor(Math.min(8_192, defaultEngineLimits.stepReads / (fragments + 1)) / pieces);
        const batch = batchOf(pieces, rows, fragments);
        const { slices, offsets, rows: planRows } = planner.plan(batch);
        expect(slices.length + offsets.length + planRows.length + batch.blockIds.length).toBeLessThan(minListWords);
      }
    }
  });
}
