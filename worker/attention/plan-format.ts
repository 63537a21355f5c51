/**
 * The plan of a step's attention, as words that kernels read. An item is some rows and the stretches of KV (slices)
 * that it reads for them; a row that stands in several items gets a partial result of each, merged at the end.
 *
 *   rows    row of the step, partial row that this item writes for it (-1: it writes the output), merge (-1: none), 0
 *   items   firstRow (in `rows`), rowCount, firstSlice, sharedSlices, sliceCount, tokenCount (its work),
 *           isSmallAlone (1: all items of the plan are "small"), 0
 *   slices  block (place in blockIds), firstToken (of that block), tokenCount, firstOffset (place in `offsets`),
 *           firstSliceRow (in the item), sliceRowCount (and `lateness`), firstVisible, rotation
 *   offsets Δ of each row of a slice
 *   merges  row, firstPartial, partCount, 0: the row's partial rows stand one after the other
 *
 * The slice's row i sees its first min(tokenCount, firstVisible + i) tokens, with q rotated to the row's position less
 * offsets[firstOffset + i]: a fragment that several rows read may stand at another place in each of their requests.
 *
 * Where layers slide, a slice of a large item may also hide a beginning: its row i does not see tokens before i - late,
 * and sliceRowCount has 65536 * (1 + late) more. What all rows of a slice do not see is no part of it.
 *
 * Row i of an item stands in m-tile floor(i / rowsPerTile). Its first `sharedSlices` slices are read by all rows of the
 * item; each of the others by rows of one m-tile only. Only small items have such others.
 *
 * `rotation` is used by small items. It is not 0 for the first slice that has tokens, and for each slice in which a row
 * needs another offset than it has had since the last slice whose `rotation` is not 0. So q is rotated once, each row
 * by its own offset, for all slices up to the next one whose `rotation` is not 0:
 *
 *   positive   these offsets stand at offsets[rotation - 1 + row of the item]
 *   negative   offsets[-rotation - 1] is firstRow + endRow * 65536, and the offsets of these rows of the item follow
 *
 * An offset is `notRead` for a row that reads none of these slices.
 */

export const planRowWords = 4;
export const planItemWords = 8;
export const planSliceWords = 8;
export const planMergeWords = 4;

/** Places of an entry's fields. */
export const planRow = { row: 0, partial: 1, merge: 2 } as const;
export const planItem = {
  firstRow: 0,
  rowCount: 1,
  firstSlice: 2,
  sharedSlices: 3,
  sliceCount: 4,
  tokenCount: 5,
  isSmallAlone: 6,
} as const;
export const planSlice = {
  block: 0,
  firstToken: 1,
  tokenCount: 2,
  firstOffset: 3,
  firstRow: 4,
  rowCount: 5,
  firstVisible: 6,
  rotation: 7,
} as const;
export const notRead = -(2 ** 31);

/** What is added to the number of a slice's rows where its row i does not see tokens before i - late. */
export const lateness = (late: number): number => (1 + late) << 16;

export interface AttentionPlan {
  readonly rows: Int32Array;
  /** At most `smallTiles` m-tiles each: leaves, and shared runs that few rows read. */
  readonly smallItems: Int32Array;
  /** At most `largeTiles` m-tiles each, slices shared by all of their rows. */
  readonly largeItems: Int32Array;
  readonly slices: Int32Array;
  readonly offsets: Int32Array;
  readonly merges: Int32Array;
  readonly partialCount: number;
}

/** Words that one slice of the largest item takes: the slice, and the offset of each of its 128 rows. */
const mostItemWords = planSliceWords + 128;

/**
 * Words of slices and offsets that a piece takes at most while its rows share nothing with other pieces: a slice, an
 * offset and three words for `rotation` for each row and segment, or, for large items, a slice for each item and
 * offsets for one. What is split over tokens takes a little more, and never more than there are partial rows.
 */
export function mostPieceWords(segmentCount: number, rowCount: number): number {
  return segmentCount * Math.min(rowCount * (planSliceWords + 4), rowCount + mostItemWords);
}

/** m-tiles of 16 packed rows (row, query head) in an item. */
export const smallTiles = 4;
export const largeTiles = 8;
export const tileHeads = 16;

/** Rows of the step in one m-tile; a group of more than 16 query heads is cut into tiles of 16 heads, a row each. */
export const rowsPerTile = (group: number): number => Math.max(1, Math.floor(tileHeads / group));

/** A plan of no row. */
export const emptyPlan: AttentionPlan = {
  rows: new Int32Array(0),
  smallItems: new Int32Array(0),
  largeItems: new Int32Array(0),
  slices: new Int32Array(0),
  offsets: new Int32Array(0),
  merges: new Int32Array(0),
  partialCount: 0,
};
