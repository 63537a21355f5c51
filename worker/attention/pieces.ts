/** Rows of long pieces (prefill): large items, split over their tokens where they do not fill the chip. */

import { IntList } from "../base/int-list.ts";
import { latenessOf, type WindowedBatch } from "./batches/windowed.ts";
import { lateness } from "./plan-format.ts";
import type { PackShape } from "./shape.ts";
import type { PlanWriter } from "./writer.ts";

/** Rows of one item of a piece, and the tokens that they read, counted over all segments one after the other. */
interface PieceItem {
  readonly firstRow: number;
  readonly from: number;
  readonly to: number;
}

/** Tokens of a segment that no row of a piece from `row` on sees any more. */
function hiddenTokens(batch: WindowedBatch, segment: number, row: number): number {
  return Math.min(Math.max(0, row - latenessOf(batch, segment)), batch.segmentTokenCounts[segment]);
}

export class PieceWriter {
  readonly #writer: PlanWriter;
  readonly #shape: PackShape;
  readonly #itemRows: number;
  /** [segments of the piece] */
  readonly #firstOffsets = new IntList();

  constructor(writer: PlanWriter, shape: PackShape, itemRows: number) {
    this.#writer = writer;
    this.#shape = shape;
    this.#itemRows = itemRows;
  }

  /** Tokens that the last row of a tile sees, over all tiles of a piece. */
  tokensOf(batch: WindowedBatch, piece: number): number {
    let sum = 0;
    const rows = batch.pieceRows[piece + 1] - batch.pieceRows[piece];
    for (let row = 0; row < rows; row += this.#itemRows) sum += this.#tileTokens(batch, piece, row);
    return sum;
  }

  /** @param partTokens tokens that an item should have at most */
  add(batch: WindowedBatch, piece: number, partTokens: number): void {
    const rows = batch.pieceRows[piece + 1] - batch.pieceRows[piece];
    this.#placeOffsets(batch, piece);
    for (let row = 0; row < rows; row += this.#itemRows) {
      const tokens = this.#tileTokens(batch, piece, row);
      // Rounded down: one item more than the chip takes at a time costs as much as a whole round of them.
      const count = Math.max(1, Math.floor(tokens / partTokens));
      const step = Math.ceil(tokens / count / this.#shape.blockTokens) * this.#shape.blockTokens;
      for (let from = 0; from < tokens; from += step) {
        this.#addItem(batch, piece, { firstRow: row, from, to: Math.min(tokens, from + step) });
      }
    }
  }

  /** A segment has one Δ for all rows: as many words of it as an item has rows serve all items of the piece. */
  #placeOffsets(batch: WindowedBatch, piece: number): void {
    const rowCount = Math.min(this.#itemRows, batch.pieceRows[piece + 1] - batch.pieceRows[piece]);
    const [first, end] = [batch.pieceSegments[piece], batch.pieceSegments[piece + 1]];
    this.#firstOffsets.clear();
    let place = -1;
    for (let s = first; s < end; s++) {
      const offset = batch.segmentOffsets[s];
      if (s === first || offset !== batch.segmentOffsets[s - 1]) place = this.#writer.addEqualOffsets(offset, rowCount);
      this.#firstOffsets.push(place);
    }
  }

  #tileTokens(batch: WindowedBatch, piece: number, row: number): number {
    const rows = batch.pieceRows[piece + 1] - batch.pieceRows[piece];
    const count = Math.min(this.#itemRows, rows - row);
    const last = batch.pieceSegments[piece + 1] - 1;
    let tokens = -(rows - row - count);
    for (let s = batch.pieceSegments[piece]; s <= last; s++) {
      tokens += batch.segmentTokenCounts[s] - hiddenTokens(batch, s, row);
    }
    return tokens;
  }

  #addItem(batch: WindowedBatch, piece: number, { firstRow: row, from, to }: PieceItem): void {
    const rows = batch.pieceRows[piece + 1] - batch.pieceRows[piece];
    const rowCount = Math.min(this.#itemRows, rows - row);
    const [first, last] = [batch.pieceSegments[piece], batch.pieceSegments[piece + 1] - 1];
    this.#writer.beginItem();
    for (let i = 0; i < rowCount; i++) this.#writer.addRow(batch.pieceRows[piece] + row + i);
    for (let segment = first, start = 0; segment <= last && start < to; segment++) {
      const hidden = hiddenTokens(batch, segment, row);
      const tokens = batch.segmentTokenCounts[segment] - hidden;
      const skipped = Math.max(0, from - start);
      const count = Math.min(tokens, to - start) - skipped;
      start += tokens;
      if (count <= 0) continue;
      const begin = batch.segmentFirstTokens[segment] + hidden + skipped;
      const visible = segment < last ? count : tokens - (rows - 1 - row) - skipped;
      const firstOffset = this.#firstOffsets.memory[segment - first];
      // Rows further back than that see the slice from its first token on.
      const late = latenessOf(batch, segment) - row + hidden + skipped;
      const isLate = late < rowCount - 1;
      const slice = { segment, begin, tokens: count, firstRow: 0, visible, firstOffset };
      this.#writer.addSlice(batch, { ...slice, rowCount: rowCount + (isLate ? lateness(late) : 0) });
    }
    this.#writer.endItem("large", to - from);
  }
}
