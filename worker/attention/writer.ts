/** Writes the words of a plan (plan-format.ts), item by item, and then where their partial results go. */

import { IntList } from "../base/int-list.ts";
import type { Batch } from "../contract/batch.ts";
import {
  type AttentionPlan,
  planItem,
  planItemWords,
  planMergeWords,
  planRow,
  planRowWords,
  planSlice,
  planSliceWords,
} from "./plan-format.ts";
import { RotationWriter } from "./rotations.ts";
import type { Stretches } from "./sharing.ts";

export type ItemKind = "small" | "large";

/** Rows of an item, and what of a stretch they read: tokens `from` to `to`, as far as it has them. */
export interface StretchSlice {
  readonly stretch: number;
  readonly from: number;
  readonly to: number;
  /** Place of the first row in the item, and how many rows there are. */
  readonly firstRow: number;
  readonly rowCount: number;
  /** Which row of the step the first one is. */
  readonly row: number;
}

/** Tokens of a segment, from `begin` on, counted from the first token of the segment's first block. */
export interface SegmentSlice {
  readonly segment: number;
  readonly begin: number;
  readonly tokens: number;
  readonly firstRow: number;
  readonly rowCount: number;
  /** Tokens that the first row sees. */
  readonly visible: number;
  /** Place of the first row's Δ. */
  readonly firstOffset: number;
}

export class PlanWriter {
  readonly #blockTokens: number;
  readonly #rows = new IntList(1_024);
  readonly #items = { small: new IntList(1_024), large: new IntList(1_024) };
  readonly #sorted = { small: new IntList(1_024), large: new IntList(1_024) };
  readonly #slices = new IntList(4_096);
  readonly #offsets = new IntList(4_096);
  readonly #merges = new IntList(1_024);
  readonly #rotations = new RotationWriter();
  /** [slices] segment that the slice is of, and the place of its first block among the segment's. */
  readonly #sliceSegments = new IntList(1_024);
  readonly #sliceBlocks = new IntList(1_024);
  /** [segments] the slice that ends with the last token of the segment, if one row alone reads it; else -1. */
  readonly #tails = new IntList();
  /** [rows of the step] items that hold the row, then its next partial row, and its merge. */
  readonly #parts = new IntList();
  readonly #mergeOf = new IntList();
  #partialCount = 0;
  /** The item that is being written. */
  #firstRow = 0;
  #firstSlice = 0;
  #sharedSlices = 0;

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
  }

  begin(batch: Batch): void {
    const lists = [this.#rows, this.#items.small, this.#items.large, this.#slices, this.#offsets, this.#merges];
    for (const list of [...lists, this.#sliceSegments, this.#sliceBlocks]) list.clear();
    for (const list of [this.#tails, this.#parts, this.#mergeOf]) list.clear();
    this.#tails.resize(batch.segmentOffsets.length, -1);
    this.#parts.resize(batch.tokenIds.length, 0);
    this.#mergeOf.resize(batch.tokenIds.length, -1);
    this.#partialCount = 0;
  }

  beginItem(): void {
    this.#firstRow = this.#rows.length / planRowWords;
    this.#firstSlice = this.#slices.length / planSliceWords;
    this.#sharedSlices = -1;
  }

  addRow(row: number): void {
    this.#rows.push4(row, -1, -1, 0);
    this.#parts.memory[row] += 1;
  }

  /** The slices so far are read by all rows of the item, the others by those of one m-tile. */
  endShared(): void {
    this.#sharedSlices = this.#slices.length / planSliceWords - this.#firstSlice;
  }

  /** Adds the offset Δ of one row of the stretch that is added next. */
  addOffset(offset: number): void {
    this.#offsets.push(offset);
  }

  /** One Δ for as many rows, of any slices. @returns its place */
  addEqualOffsets(offset: number, rowCount: number): number {
    const place = this.#offsets.length;
    this.#offsets.resize(place + rowCount, offset);
    return place;
  }

  /** Adds a slice for the rows whose offsets were added last. */
  addStretch(batch: Batch, stretches: Stretches, slice: StretchSlice): void {
    const { firstBlock, firstToken, tokens, room, causalRow, readers } = stretches;
    const { stretch, from, to, firstRow, rowCount, row } = slice;
    const segment = stretches.segment[stretch];
    const count = Math.min(to, tokens[stretch]) - from;
    const readerCount = readers[stretch + 1] - readers[stretch];
    const hidden = readerCount - 1 - (row - causalRow[stretch]);
    const visible = causalRow[stretch] < 0 ? count : tokens[stretch] - hidden - from;
    const begin = firstBlock[stretch] * this.#blockTokens + firstToken[stretch] + from;
    const firstOffset = this.#offsets.length - rowCount;
    this.addSlice(batch, { segment, begin, tokens: count, firstRow, rowCount, visible, firstOffset });
    const end = batch.segmentFirstTokens[segment] + batch.segmentTokenCounts[segment];
    const isTail = to >= room[stretch] && begin + count === end && stretch < stretches.originals;
    if (isTail && readerCount === 1) this.#tails.memory[segment] = this.#slices.length / planSliceWords - 1;
  }

  addSlice(batch: Batch, { segment, begin, tokens, firstRow, rowCount, visible, firstOffset }: SegmentSlice): void {
    const block = Math.floor(begin / this.#blockTokens);
    const place = batch.segmentBlockStarts[segment] + block;
    this.#slices.push4(place, begin % this.#blockTokens, tokens, firstOffset);
    this.#slices.push4(firstRow, rowCount, visible, 0);
    this.#sliceSegments.push(segment);
    this.#sliceBlocks.push(block);
  }

  endItem(kind: ItemKind, loads: number): void {
    const sliceCount = this.#slices.length / planSliceWords - this.#firstSlice;
    const rowCount = this.#rows.length / planRowWords - this.#firstRow;
    const shared = this.#sharedSlices < 0 ? sliceCount : this.#sharedSlices;
    this.#items[kind].push4(this.#firstRow, rowCount, this.#firstSlice, shared);
    this.#items[kind].push4(sliceCount, loads, 0, 0);
    if (kind === "small")
      this.#rotations.write(this.#slices.memory, this.#offsets, this.#firstSlice, sliceCount, rowCount);
  }

  /** Valid until the next `begin`. */
  finish(): AttentionPlan {
    this.#placePartials();
    return this.#plan();
  }

  /** The plan for a batch in which segments stand elsewhere in the list of blocks and tails have grown. */
  move(batch: Batch): AttentionPlan {
    const { memory } = this.#slices;
    const { segmentBlockStarts } = batch;
    const count = this.#sliceSegments.length;
    for (let i = 0; i < count; i++) {
      memory[i * planSliceWords] = segmentBlockStarts[this.#sliceSegments.memory[i]] + this.#sliceBlocks.memory[i];
    }
    return this.#plan();
  }

  /** false: what a segment's last token is part of is no slice of its own. */
  growTail(segment: number, tokens: number): boolean {
    const slice = this.#tails.memory[segment];
    if (slice < 0) return false;
    this.#slices.memory[slice * planSliceWords + planSlice.tokenCount] += tokens;
    this.#slices.memory[slice * planSliceWords + planSlice.firstVisible] += tokens;
    return true;
  }

  #plan(): AttentionPlan {
    return {
      rows: this.#rows.view(),
      smallItems: this.#sorted.small.view(),
      largeItems: this.#sorted.large.view(),
      slices: this.#slices.view(),
      offsets: this.#offsets.view(),
      merges: this.#merges.view(),
      partialCount: this.#partialCount,
    };
  }

  /** Rows of several items get partial rows one after the other, in the order of the items. */
  #placePartials(): void {
    for (const kind of ["small", "large"] as const) sortItems(this.#items[kind], this.#sorted[kind]);
    const { small, large } = this.#sorted;
    for (let at = 0; at < small.length; at += planItemWords) {
      small.memory[at + planItem.isSmallAlone] = large.length === 0 ? 1 : 0;
    }
    const rows = this.#rows.memory;
    const parts = this.#parts.memory;
    for (let at = 0; at < this.#rows.length; at += planRowWords) {
      const row = rows[at + planRow.row];
      if (this.#mergeOf.memory[row] < 0) {
        if (parts[row] === 1) continue;
        this.#mergeOf.memory[row] = this.#merges.length / planMergeWords;
        this.#merges.push4(row, this.#partialCount, parts[row], 0);
        this.#partialCount += parts[row];
        parts[row] = this.#partialCount - parts[row];
      }
      rows[at + planRow.partial] = parts[row]++;
      rows[at + planRow.merge] = this.#mergeOf.memory[row];
    }
  }
}

/** Places below each length in one number: a step has far fewer items (attention.ts: rows, partial rows and slots). */
const maxItems = 2 ** 20;

/**
 * Sorts items, the longest first, so that no long item begins when all others end. @throws RangeError for more than
 * `maxItems`
 */
function sortItems(items: IntList, sorted: IntList): void {
  const count = items.length / planItemWords;
  if (count > maxItems) throw new RangeError(`a plan of ${count} items`);
  const keys = new Float64Array(count);
  for (let i = 0; i < count; i++) keys[i] = -items.memory[i * planItemWords + planItem.tokenCount] * maxItems + i;
  keys.sort();
  sorted.clear();
  sorted.resize(items.length, 0);
  for (let i = 0; i < count; i++) {
    const from = (keys[i] & (maxItems - 1)) * planItemWords;
    for (let word = 0; word < planItemWords; word++) {
      sorted.memory[i * planItemWords + word] = items.memory[from + word];
    }
  }
}
