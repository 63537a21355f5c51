/**
 * The last layer's attention, MLP and head are needed only for rows whose logits are wanted. This file reduces a batch
 * to those rows: each becomes a piece of one row, and its causal segment is cut to what the row sees.
 */
import type { Batch, Choices } from "../../contract/batch.ts";
import { choiceFlags } from "../../contract/sparse.ts";

/** True when every row wants logits, so that nothing can be left out. */
export const wantsAllLogits = (batch: Batch): boolean => batch.logitRows.length === batch.tokenIds.length;

/** The batch with the rows of `logitRows` alone; K and V of all rows must have been written already. */
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
    ...(batch.pieceGenerated && { pieceGenerated: pieces.map((piece) => batch.pieceGenerated?.[piece] ?? 0) }),
    segmentBlockStarts: new Int32Array(segmentCount),
    segmentFirstTokens: new Int32Array(segmentCount),
    segmentTokenCounts: new Int32Array(segmentCount),
    segmentOffsets: new Int32Array(segmentCount),
    ...(batch.segmentPositions && { segmentPositions: new Int32Array(segmentCount) }),
    blockIds: batch.blockIds,
    logitRows: Int32Array.from(rows, (_, i) => i),
    ...reducedChoices(batch.choices, pieces),
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

/**
 * The entries whose pieces are among those that are left, each now at its piece's last row. What is watched and gives no
 * logits is not seen in this layer: the seat's ring has a gap there.
 */
function reducedChoices(choices: Choices | undefined, pieces: Int32Array): { readonly choices?: Choices } {
  if (choices === undefined) return {};
  const kept = [...choices.pieces.keys()].filter((entry) => pieces.includes(choices.pieces[entry]));
  if (kept.length === 0) return {};
  const pick = (values: Int32Array) => Int32Array.from(kept, (entry) => values[entry]);
  const starts = [0];
  const segments = kept.flatMap((entry) => {
    const [first, end] = [choices.segments[entry], choices.segments[entry + 1]];
    starts.push((starts.at(-1) ?? 0) + end - first);
    return Array.from({ length: end - first }, (_, i) => first + i);
  });
  const pickSegments = (values: Int32Array) => Int32Array.from(segments, (segment) => values[segment]);
  return {
    choices: {
      pieces: Int32Array.from(kept, (entry) => pieces.lastIndexOf(choices.pieces[entry])),
      seats: pick(choices.seats),
      // What else the flags say took effect in all layers when the whole step began.
      flags: pick(choices.flags).map((flags) => flags & choiceFlags.watch),
      modes: pick(choices.modes),
      tokens: pick(choices.tokens),
      refreshSteps: pick(choices.refreshSteps),
      leastCosines: Float32Array.from(kept, (entry) => choices.leastCosines[entry]),
      segments: Int32Array.from(starts),
      segmentBlockStarts: pickSegments(choices.segmentBlockStarts),
      segmentFirstTokens: pickSegments(choices.segmentFirstTokens),
      segmentTokenCounts: pickSegments(choices.segmentTokenCounts),
      segmentOffsets: pickSegments(choices.segmentOffsets),
      segmentForced: pickSegments(choices.segmentForced),
      blockIds: choices.blockIds,
    },
  };
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
