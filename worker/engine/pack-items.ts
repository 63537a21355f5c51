/** From parts (pack-parts.ts) to the items of a plan. */
import type { Batch } from "../backend/backend.ts";
import { type HubPacks, readerOf } from "./pack-hubs.ts";
import { type PartList, partField, partWords } from "./pack-parts.ts";
import type { RowOrder } from "./pack-rows.ts";
import type { PackShape } from "./pack-shape.ts";
import type { Stretches } from "./pack-sharing.ts";
import type { ItemKind, PlanWriter } from "./pack-writer.ts";

export class ItemWriter {
  private readonly writer: PlanWriter;
  private readonly rowsPerTile: number;

  constructor(writer: PlanWriter, rowsPerTile: number) {
    this.writer = writer;
    this.rowsPerTile = rowsPerTile;
  }

  addLeaves(batch: Batch, stretches: Stretches, order: RowOrder, parts: PartList): void {
    const words = parts.words.memory;
    for (let at = 0; at < parts.words.length; at += partWords) {
      const first = words[at + partField.firstRow];
      const end = words[at + partField.endRow];
      const depth = words[at + partField.depth];
      const endDepth = words[at + partField.endDepth];
      this.writer.beginItem();
      for (let i = first; i < end; i++) this.writer.addRow(order.rows[i]);
      if (endDepth >= 0) {
        const [from, to] = [words[at + partField.firstToken], words[at + partField.endToken]];
        this.addRange(batch, stretches, order, first, end, depth, endDepth, from, to);
      } else this.addWhole(batch, stretches, order, first, end, depth);
      this.writer.endItem("few", words[at + partField.loads]);
    }
  }

  addHubs(batch: Batch, stretches: Stretches, order: RowOrder, packs: HubPacks, parts: PartList, kind: ItemKind): void {
    const words = parts.words.memory;
    for (let at = 0; at < parts.words.length; at += partWords) {
      const first = words[at + partField.firstRow];
      const end = words[at + partField.endRow];
      const pack = words[at + partField.pack];
      const [from, to] = [words[at + partField.firstToken], words[at + partField.endToken]];
      this.writer.beginItem();
      for (let i = first; i < end; i++) this.writer.addRow(packs.rows[i]);
      for (let start = 0, k = packs.firstStretch[pack]; k < packs.firstStretch[pack + 1]; k++) {
        const stretch = packs.stretches[k];
        const [begin, stop] = [Math.max(0, from - start), Math.min(stretches.room[stretch], to - start)];
        start += stretches.room[stretch];
        if (Math.min(stop, stretches.tokens[stretch]) <= begin) continue;
        for (let i = first; i < end; i++) {
          this.writer.addOffset(stretches.offsets[readerOf(order, packs.rows[i], stretch)]);
        }
        this.writer.addStretch(batch, stretches, stretch, begin, stop, 0, end - first, packs.rows[first]);
      }
      this.writer.endItem(kind, words[at + partField.loads]);
    }
  }

  /** Tokens `from` to `to` of stretches that all rows read. */
  private addRange(
    batch: Batch,
    stretches: Stretches,
    order: RowOrder,
    first: number,
    end: number,
    depth: number,
    endDepth: number,
    from: number,
    to: number,
  ): void {
    const { starts, rows } = order;
    for (let start = 0, d = depth; d < endDepth && start < to; d++) {
      const stretch = order.stretches[starts[rows[first]] + d];
      const room = stretches.room[stretch];
      const [begin, stop] = [Math.max(0, from - start), Math.min(room, to - start)];
      if (begin < Math.min(stop, stretches.tokens[stretch]))
        this.addSlice(batch, stretches, order, first, first, end, d, begin, stop);
      start += room;
    }
  }

  /** All that the rows read from `depth` on: what they share, then what rows of one m-tile share, down to each row's own. */
  private addWhole(
    batch: Batch,
    stretches: Stretches,
    order: RowOrder,
    first: number,
    end: number,
    depth: number,
  ): void {
    const { starts, rows, sharedDepth } = order;
    let shared = starts[rows[first] + 1] - starts[rows[first]];
    for (let i = first + 1; i < end; i++) shared = Math.min(shared, sharedDepth[i]);
    for (let d = depth; d < shared; d++) this.addSlice(batch, stretches, order, first, first, end, d, 0, -1);
    this.writer.endShared();
    for (let tile = first; tile < end; tile += this.rowsPerTile) {
      const tileEnd = Math.min(end, tile + this.rowsPerTile);
      for (let i = tile; i < tileEnd; i++) {
        const depths = starts[rows[i] + 1] - starts[rows[i]];
        // The row before has written what this one shares with it.
        for (let d = i === tile ? shared : sharedDepth[i]; d < depths; d++) {
          let next = i + 1;
          while (next < tileEnd && sharedDepth[next] > d) next += 1;
          this.addSlice(batch, stretches, order, first, i, next, d, 0, -1);
        }
      }
    }
  }

  /** A stretch for rows `from` to `to` of the order, in the item that begins with `first`. @param stop -1: its end */
  private addSlice(
    batch: Batch,
    stretches: Stretches,
    order: RowOrder,
    first: number,
    from: number,
    to: number,
    depth: number,
    begin: number,
    stop: number,
  ): void {
    const { starts, rows, readers } = order;
    const stretch = order.stretches[starts[rows[from]] + depth];
    for (let i = from; i < to; i++) this.writer.addOffset(stretches.offsets[readers[starts[rows[i]] + depth]]);
    const end = stop < 0 ? stretches.room[stretch] : stop;
    this.writer.addStretch(batch, stretches, stretch, begin, end, from - first, to - from, rows[from]);
  }
}

/** Rows of long pieces (prefill): items of many rows, split over their tokens where they do not fill the chip. */
export class PieceWriter {
  private readonly writer: PlanWriter;
  private readonly shape: PackShape;
  private readonly itemRows: number;

  constructor(writer: PlanWriter, shape: PackShape, itemRows: number) {
    this.writer = writer;
    this.shape = shape;
    this.itemRows = itemRows;
  }

  /** Tokens that the last row of a tile sees, over all tiles of a piece. */
  tokensOf(batch: Batch, piece: number): number {
    let sum = 0;
    const rows = batch.pieceRows[piece + 1] - batch.pieceRows[piece];
    for (let row = 0; row < rows; row += this.itemRows) sum += this.tileTokens(batch, piece, row);
    return sum;
  }

  /** @param chunk tokens that an item should have at most */
  add(batch: Batch, piece: number, chunk: number): void {
    const rows = batch.pieceRows[piece + 1] - batch.pieceRows[piece];
    for (let row = 0; row < rows; row += this.itemRows) {
      const tokens = this.tileTokens(batch, piece, row);
      // Rounded down: one item more than the chip takes at a time costs as much as a whole round of them.
      const count = Math.max(1, Math.floor(tokens / chunk));
      const step = Math.ceil(tokens / count / this.shape.blockTokens) * this.shape.blockTokens;
      for (let from = 0; from < tokens; from += step) {
        this.addItem(batch, piece, row, from, Math.min(tokens, from + step));
      }
    }
  }

  private tileTokens(batch: Batch, piece: number, row: number): number {
    const rows = batch.pieceRows[piece + 1] - batch.pieceRows[piece];
    const count = Math.min(this.itemRows, rows - row);
    const last = batch.pieceSegments[piece + 1] - 1;
    let tokens = batch.segmentTokenCounts[last] - (rows - row - count);
    for (let s = batch.pieceSegments[piece]; s < last; s++) tokens += batch.segmentTokenCounts[s];
    return tokens;
  }

  /** Tokens `from` to `to` of a tile, counted over all segments one after the other. */
  private addItem(batch: Batch, piece: number, row: number, from: number, to: number): void {
    const rows = batch.pieceRows[piece + 1] - batch.pieceRows[piece];
    const count = Math.min(this.itemRows, rows - row);
    const last = batch.pieceSegments[piece + 1] - 1;
    this.writer.beginItem();
    for (let i = 0; i < count; i++) this.writer.addRow(batch.pieceRows[piece] + row + i);
    for (let s = batch.pieceSegments[piece], start = 0; s <= last && start < to; s++) {
      const tokens = batch.segmentTokenCounts[s];
      const begin = Math.max(0, from - start);
      const slice = Math.min(tokens, to - start) - begin;
      start += tokens;
      if (slice <= 0) continue;
      for (let i = 0; i < count; i++) this.writer.addOffset(batch.segmentOffsets[s]);
      const visible = s < last ? slice : tokens - (rows - 1 - row) - begin;
      this.writer.addSlice(batch, s, batch.segmentFirstTokens[s] + begin, slice, 0, count, visible);
    }
    this.writer.endItem("many", to - from);
  }
}
