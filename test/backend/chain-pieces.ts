/** Steps of one chain, for tests of a backend without an engine. */
import type { Batch } from "../../worker/contract/batch.ts";

/**
 * @param tokens of the chain, whose blocks have 16
 * @returns makes a step of the tokens [start, end), which stand in blocks firstBlock, firstBlock + 1, …
 */
export function chainPieces(tokens: Int32Array) {
  return (start: number, end: number, firstBlock: number, logitRows: readonly number[]): Batch => {
    const positions = Int32Array.from({ length: end - start }, (_, i) => start + i);
    return {
      tokenIds: tokens.slice(start, end),
      positions,
      slots: positions.map((position) => firstBlock * 16 + position),
      pieceRows: Int32Array.of(0, end - start),
      pieceSegments: Int32Array.of(0, 1),
      segmentBlockStarts: Int32Array.of(0),
      segmentFirstTokens: Int32Array.of(0),
      segmentTokenCounts: Int32Array.of(end),
      segmentOffsets: Int32Array.of(0),
      blockIds: Int32Array.from({ length: Math.ceil(end / 16) }, (_, i) => firstBlock + i),
      logitRows: Int32Array.from(logitRows),
    };
  };
}

/**
 * A row that chooses, and behind it one piece of another chain, in one step.
 * @param logitRows default: only the first has logits, so rows are left out before the last layer
 */
export function beside(row: Batch, other: Batch, logitRows = row.logitRows): Batch {
  const join = (a: Int32Array, b: Int32Array) => Int32Array.of(...a, ...b);
  const shifted = (values: Int32Array, by: number) => values.subarray(1).map((value) => value + by);
  return {
    ...row,
    tokenIds: join(row.tokenIds, other.tokenIds),
    positions: join(row.positions, other.positions),
    slots: join(row.slots, other.slots),
    pieceRows: join(row.pieceRows, shifted(other.pieceRows, row.tokenIds.length)),
    pieceSegments: join(row.pieceSegments, shifted(other.pieceSegments, row.segmentOffsets.length)),
    segmentBlockStarts: join(row.segmentBlockStarts, Int32Array.of(row.blockIds.length)),
    segmentFirstTokens: join(row.segmentFirstTokens, other.segmentFirstTokens),
    segmentTokenCounts: join(row.segmentTokenCounts, other.segmentTokenCounts),
    segmentOffsets: join(row.segmentOffsets, other.segmentOffsets),
    ...(row.segmentPositions && { segmentPositions: join(row.segmentPositions, Int32Array.of(0)) }),
    blockIds: join(row.blockIds, other.blockIds),
    logitRows,
  };
}
