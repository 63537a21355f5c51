/**
 * What attention does in a step, cut into work items of about one size. A tile is some consecutive rows of a piece; all
 * its rows read the same blocks, apart from the causal end. A tile that reads much is split over its tokens, so that few
 * long contexts fill the chip too; its parts are merged row by row. Pieces of few rows (decoding) and of many
 * (prefill) have kernels of their own, and so lists of their own.
 *
 *   item   firstRow, rowCount, firstSlice, sliceCount, firstPartial: -1 if the item is the whole tile, else its rows' place
 *   slice  block, firstToken, tokenCount, offset, firstVisible: row i of the item sees min(tokenCount, firstVisible + i)
 *          tokens from token `firstToken` of block `block` of the list on, in positions moved by `offset`
 *   merge  row, firstPartial, partCount, stride: the row's parts are firstPartial + k * stride, k < partCount
 */
import type { Batch } from "../backend.ts";

export const itemWords = 5;
export const sliceWords = 5;
export const mergeWords = 4;

/** How one kernel cuts rows and tokens. */
export interface TileShape {
  /** Rows of a tile; 0: the kernel takes none. */
  readonly rows: number;
  /** A tile is not split into parts below this many tokens. */
  readonly minPartTokens: number;
}

export interface WorkShape {
  /** Pieces of at most `few.rows` rows, and all others. */
  readonly few: TileShape;
  readonly many: TileShape;
  readonly blockTokens: number;
  /** Items that fill the chip: more of them than this come of splitting only in proportion. */
  readonly itemTarget: number;
}

/** The lists of one step, valid until the next `plan`. */
export interface WorkLists {
  readonly fewItems: Int32Array;
  readonly manyItems: Int32Array;
  readonly slices: Int32Array;
  readonly merges: Int32Array;
  /** Rows of partial results. */
  readonly partialCount: number;
}

/** The most partial rows that `plan` makes, whatever the batch. */
export function maxPartialRows({ few, many, itemTarget }: WorkShape): number {
  return 2 * itemTarget * Math.max(few.rows, many.rows);
}

/** The most items of each list in a step of so many rows. */
export function maxItems(shape: WorkShape, rowCount: number): number {
  return rowCount + shape.itemTarget;
}

interface Tile {
  /** First row in the batch and in its piece, and how many rows. */
  readonly row: number;
  readonly pieceRow: number;
  readonly rowCount: number;
  readonly piece: number;
  readonly isFew: boolean;
  /** Tokens that its last row sees. */
  readonly tokenCount: number;
}

export class WorkPlanner {
  readonly shape: WorkShape;
  private readonly fewItems = new WordList();
  private readonly manyItems = new WordList();
  private readonly slices = new WordList();
  private readonly merges = new WordList();
  private partialCount = 0;

  constructor(shape: WorkShape) {
    this.shape = shape;
  }

  plan(batch: Batch): WorkLists {
    for (const list of [this.fewItems, this.manyItems, this.slices, this.merges]) list.clear();
    this.partialCount = 0;
    const tiles = this.tilesOf(batch);
    const total = tiles.reduce((sum, tile) => sum + tile.tokenCount, 0);
    const partTokens = Math.ceil(total / this.shape.itemTarget);
    for (const tile of tiles) this.addTile(batch, tile, this.partCountOf(tile, partTokens));
    return {
      fewItems: this.fewItems.view(),
      manyItems: this.manyItems.view(),
      slices: this.slices.view(),
      merges: this.merges.view(),
      partialCount: this.partialCount,
    };
  }

  /** Rounded down: one item more than the chip takes at a time costs as much as a whole round of them. */
  private partCountOf({ isFew, tokenCount }: Tile, partTokens: number): number {
    const { minPartTokens } = isFew ? this.shape.few : this.shape.many;
    return Math.max(1, Math.floor(tokenCount / Math.max(minPartTokens, partTokens)));
  }

  /** The longest first, so that no long one begins when all others end. */
  private tilesOf(batch: Batch): Tile[] {
    const { few, many } = this.shape;
    const tiles: Tile[] = [];
    for (let piece = 0; piece + 1 < batch.pieceRows.length; piece++) {
      const firstRow = batch.pieceRows[piece];
      const rows = batch.pieceRows[piece + 1] - firstRow;
      const isFew = rows <= few.rows;
      const tileRows = isFew ? few.rows : many.rows;
      const last = batch.pieceSegments[piece + 1] - 1;
      let whole = 0;
      for (let s = batch.pieceSegments[piece]; s < last; s++) whole += batch.segmentTokenCounts[s];
      for (let pieceRow = 0; pieceRow < rows; pieceRow += tileRows) {
        const rowCount = Math.min(tileRows, rows - pieceRow);
        const own = batch.segmentTokenCounts[last] - (rows - pieceRow - rowCount);
        tiles.push({ row: firstRow + pieceRow, pieceRow, rowCount, piece, isFew, tokenCount: whole + own });
      }
    }
    return tiles.sort((a, b) => b.tokenCount - a.tokenCount);
  }

  private addTile(batch: Batch, tile: Tile, parts: number): void {
    const { blockTokens } = this.shape;
    const items = tile.isFew ? this.fewItems : this.manyItems;
    const partTokens = Math.ceil(tile.tokenCount / parts / blockTokens) * blockTokens;
    const partCount = Math.ceil(tile.tokenCount / partTokens);
    const firstPartial = partCount > 1 ? this.partialCount : -1;
    for (let part = 0; part < partCount; part++) {
      const firstSlice = this.slices.length / sliceWords;
      this.addSlices(batch, tile, part * partTokens, Math.min(tile.tokenCount, (part + 1) * partTokens));
      const sliceCount = this.slices.length / sliceWords - firstSlice;
      const partial = firstPartial < 0 ? -1 : firstPartial + part * tile.rowCount;
      items.push5(tile.row, tile.rowCount, firstSlice, sliceCount, partial);
    }
    if (firstPartial < 0) return;
    this.partialCount += partCount * tile.rowCount;
    for (let i = 0; i < tile.rowCount; i++) {
      this.merges.push4(tile.row + i, firstPartial + i, partCount, tile.rowCount);
    }
  }

  /** The tile's tokens `from` to `to`, counted over all its segments one after the other. */
  private addSlices(batch: Batch, tile: Tile, from: number, to: number): void {
    const { blockTokens } = this.shape;
    const last = batch.pieceSegments[tile.piece + 1] - 1;
    const rows = batch.pieceRows[tile.piece + 1] - batch.pieceRows[tile.piece];
    let start = 0;
    for (let s = batch.pieceSegments[tile.piece]; s <= last && start < to; s++) {
      const count = batch.segmentTokenCounts[s];
      const begin = Math.max(0, from - start);
      const tokenCount = Math.min(count, to - start) - begin;
      if (tokenCount > 0) {
        const first = batch.segmentFirstTokens[s] + begin;
        const block = batch.segmentBlockStarts[s] + Math.floor(first / blockTokens);
        const visible = s < last ? tokenCount : count - (rows - 1 - tile.pieceRow) - begin;
        this.slices.push5(block, first % blockTokens, tokenCount, batch.segmentOffsets[s], visible);
      }
      start += count;
    }
  }
}

/** An Int32Array that grows and keeps its memory. */
class WordList {
  private memory = new Int32Array(1_024);
  length = 0;

  clear(): void {
    this.length = 0;
  }

  push4(a: number, b: number, c: number, d: number): void {
    this.reserve(4);
    const { memory, length } = this;
    memory[length] = a;
    memory[length + 1] = b;
    memory[length + 2] = c;
    memory[length + 3] = d;
    this.length = length + 4;
  }

  push5(a: number, b: number, c: number, d: number, e: number): void {
    this.reserve(5);
    this.push4(a, b, c, d);
    this.memory[this.length] = e;
    this.length += 1;
  }

  view(): Int32Array {
    return this.memory.subarray(0, this.length);
  }

  private reserve(count: number): void {
    if (this.length + count <= this.memory.length) return;
    const grown = new Int32Array(2 * this.memory.length);
    grown.set(this.memory);
    this.memory = grown;
  }
}
