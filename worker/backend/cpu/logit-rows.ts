/**
 * The last layer's attention, MLP and head are needed only for rows whose logits are wanted. This file reduces a batch
 * to those rows: each becomes a piece of one row, and its causal segment is cut to what the row sees.
 */
import type { Batch } from "../../contract/batch.ts";

/** True when every row wants logits, so that nothing can be left out. */
export const wantsAllLogits = (batch: Batch): boolean => batch.logitRows.length === batch.tokenIds.length;

/** The same step for `logitRows` alone; K and V of all rows must have been written already. */
export function reduceToLogitRows(batch: Batch): Batch {
  const rows = batch.logitRows;
  const pick = (values: Int32Array) => Int32Array.from(rows, (row) => values[row]);
  const pieces = Int32Array.from(rows, (row) => pieceOfRow(batch.pieceRows, row));
  const segmentCount = pieces.reduce((sum, p) => sum + batch.pieceSegments[p + 1] - batch.pieceSegments[p], 0);
  const reduced = {
    tokenIds: pick(batch.tokenIds),
    positions: pick(batch.positions),
    slots: pick(batch.slots),
    pieceRows: Int32Array.from({ length: rows.length + 1 }, (_, i) => i),
    pieceSegments: new Int32Array(rows.length + 1),
    segmentBlockStarts: new Int32Array(segmentCount),
    segmentFirstTokens: new Int32Array(segmentCount),
    segmentTokenCounts: new Int32Array(segmentCount),
    segmentOffsets: new Int32Array(segmentCount),
    ...(batch.segmentPositions && { segmentPositions: new Int32Array(segmentCount) }),
    blockIds: batch.blockIds,
    logitRows: Int32Array.from(rows, (_, i) => i),
  };
  let at = 0;
  rows.forEach((row, i) => {
    const piece = pieces[i];
    for (let s = batch.pieceSegments[piece]; s < batch.pieceSegments[piece + 1]; s++, at++) {
      reduced.segmentBlockStarts[at] = batch.segmentBlockStarts[s];
      reduced.segmentFirstTokens[at] = batch.segmentFirstTokens[s];
      reduced.segmentTokenCounts[at] = batch.segmentTokenCounts[s];
      reduced.segmentOffsets[at] = batch.segmentOffsets[s];
      if (batch.segmentPositions && reduced.segmentPositions) {
        reduced.segmentPositions[at] = batch.segmentPositions[s];
      }
    }
    reduced.segmentTokenCounts[at - 1] -= batch.pieceRows[piece + 1] - 1 - row;
    reduced.pieceSegments[i + 1] = at;
  });
  return reduced;
}

/** Index of the piece that holds `row`: the last one that starts at or before it (pieces are never empty). */
function pieceOfRow(pieceRows: Int32Array, row: number): number {
  let low = 0;
  let high = pieceRows.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pieceRows[middle] <= row) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Copies the rows `rows` of source [*, size], one after the other, to the start of target. */
export function gatherRows(source: Float32Array, rows: Int32Array, size: number, target: Float32Array): void {
  rows.forEach((row, i) => {
    target.set(source.subarray(row * size, (row + 1) * size), i * size);
  });
}
