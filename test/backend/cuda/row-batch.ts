import type { Batch } from "../../../worker/contract/batch.ts";

/** A request's next row: token `id` at `position` of its one block. */
export function rowBatch(id: number, position: number): Batch {
  const one = (value: number) => Int32Array.of(value);
  return {
    tokenIds: one(id),
    positions: one(position),
    slots: one(position),
    pieceRows: Int32Array.of(0, 1),
    pieceSegments: Int32Array.of(0, 1),
    segmentBlockStarts: one(0),
    segmentFirstTokens: one(0),
    segmentTokenCounts: one(position + 1),
    segmentOffsets: one(0),
    segmentPositions: one(0),
    blockIds: one(0),
    logitRows: one(0),
  };
}
