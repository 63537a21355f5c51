/**
 * Orders the rows of a step so that rows that share most stand together. Each row's stretches are listed by how many
 * rows read them, and rows are sorted by these lists. For chains that share prefixes this is the order of their tree.
 */
import { IntList } from "../base/int-list.ts";
import type { Stretches } from "./sharing.ts";

/** Valid until the next `arrange`. */
export interface RowOrder {
  readonly count: number;
  /** [count] rows of the step. */
  readonly rows: Int32Array;
  /** [rows of the step + 1] where a row's stretches begin in the two lists below, most readers first. */
  readonly starts: Int32Array;
  readonly stretches: Int32Array;
  /** The row's place among the stretch's readers. */
  readonly readers: Int32Array;
  /** [count] tokens that a row reads, and how many of its first stretches and tokens the row before reads too. */
  readonly tokens: Int32Array;
  readonly sharedDepth: Int32Array;
  readonly sharedTokens: Int32Array;
}

/** Stretches by their number of readers, most first. */
export function rankStretches({ count, readers }: Stretches): Int32Array {
  let most = 0;
  for (let i = 0; i < count; i++) most = Math.max(most, readers[i + 1] - readers[i]);
  const places = new Int32Array(most + 2);
  for (let i = 0; i < count; i++) places[most - (readers[i + 1] - readers[i]) + 1] += 1;
  for (let i = 0; i <= most; i++) places[i + 1] += places[i];
  const ranked = new Int32Array(count);
  for (let i = 0; i < count; i++) ranked[places[most - (readers[i + 1] - readers[i])]++] = i;
  return ranked;
}

export class RowArranger {
  #starts = new Int32Array(1);
  #entryStretches = new Int32Array(256);
  #entryReaders = new Int32Array(256);
  readonly #rows = new IntList();
  readonly #tokens = new IntList();
  readonly #sharedDepth = new IntList();
  readonly #sharedTokens = new IntList();
  #scratch = new Int32Array(256);
  #bucketOf = new Int32Array(256);
  readonly #bucketSizes = new IntList();
  /** Ranges that are not in order yet: first row, end, depth, tokens up to that depth. */
  readonly #open = new IntList();

  /** @param isTaken [stretches] 1: of these rows' lists; rows without one are left out */
  arrange(stretches: Stretches, ranked: Int32Array, isTaken: Uint8Array, rowCount: number): RowOrder {
    this.#listEntries(stretches, ranked, isTaken, rowCount);
    const count = this.#rows.length;
    this.#sharedDepth.resize(0, 0);
    this.#sharedDepth.resize(count, 0);
    this.#sharedTokens.resize(0, 0);
    this.#sharedTokens.resize(count, 0);
    if (this.#scratch.length < count) this.#scratch = new Int32Array(2 * count);
    if (this.#bucketOf.length < stretches.count + 1) this.#bucketOf = new Int32Array(2 * stretches.count + 1);
    this.#open.clear();
    this.#open.push4(0, count, 0, 0);
    while (this.#open.length > 0) this.#refine(stretches);
    this.#tokens.clear();
    for (let i = 0; i < count; i++) this.#tokens.push(this.#tokensOf(stretches, this.#rows.memory[i]));
    return {
      count,
      rows: this.#rows.memory,
      starts: this.#starts,
      stretches: this.#entryStretches,
      readers: this.#entryReaders,
      tokens: this.#tokens.memory,
      sharedDepth: this.#sharedDepth.memory,
      sharedTokens: this.#sharedTokens.memory,
    };
  }

  #listEntries(stretches: Stretches, ranked: Int32Array, isTaken: Uint8Array, rowCount: number): void {
    const { readers, rows } = stretches;
    const starts = new Int32Array(rowCount + 2);
    let total = 0;
    for (let stretch = 0; stretch < stretches.count; stretch++) {
      if (isTaken[stretch] === 0) continue;
      for (let i = readers[stretch]; i < readers[stretch + 1]; i++) starts[rows[i] + 2] += 1;
      total += readers[stretch + 1] - readers[stretch];
    }
    for (let row = 0; row < rowCount; row++) starts[row + 2] += starts[row + 1];
    if (this.#entryStretches.length < total) {
      this.#entryStretches = new Int32Array(2 * total);
      this.#entryReaders = new Int32Array(2 * total);
    }
    for (const stretch of ranked) {
      if (isTaken[stretch] === 0) continue;
      for (let i = readers[stretch]; i < readers[stretch + 1]; i++) {
        const place = starts[rows[i] + 1]++;
        this.#entryStretches[place] = stretch;
        this.#entryReaders[place] = i;
      }
    }
    this.#starts = starts.subarray(0, rowCount + 1);
    this.#rows.clear();
    for (let row = 0; row < rowCount; row++) if (starts[row + 1] > starts[row]) this.#rows.push(row);
  }

  #tokensOf({ room }: Stretches, row: number): number {
    let sum = 0;
    for (let i = this.#starts[row]; i < this.#starts[row + 1]; i++) sum += room[this.#entryStretches[i]];
    return sum;
  }

  /** Groups the rows of one range by their stretch at its depth; groups stand in the order of their first rows. */
  #refine(stretches: Stretches): void {
    const { memory } = this.#open;
    const at = this.#open.length - 4;
    const [first, end, depth, tokens] = [memory[at], memory[at + 1], memory[at + 2], memory[at + 3]];
    this.#open.length = at;
    const rows = this.#rows.memory;
    const none = stretches.count;
    const sizes = this.#bucketSizes;
    sizes.clear();
    for (let i = first; i < end; i++) {
      const stretch = this.#stretchAt(rows[i], depth, none);
      let bucket = this.#bucketOf[stretch];
      // The bucket number may be left from an earlier range, so it counts only when the bucket belongs to this stretch.
      if (bucket >= sizes.length / 2 || sizes.memory[2 * bucket] !== stretch) {
        bucket = sizes.length / 2;
        this.#bucketOf[stretch] = bucket;
        sizes.push(stretch);
        sizes.push(0);
      }
      sizes.memory[2 * bucket + 1] += 1;
    }
    let start = first;
    for (let bucket = 0; 2 * bucket < sizes.length; bucket++) {
      const stretch = sizes.memory[2 * bucket];
      const size = sizes.memory[2 * bucket + 1];
      sizes.memory[2 * bucket + 1] = start;
      if (start > first) this.#setShared(start, depth, tokens);
      if (stretch === none) for (let i = start + 1; i < start + size; i++) this.#setShared(i, depth, tokens);
      else if (size > 1) this.#open.push4(start, start + size, depth + 1, tokens + stretches.room[stretch]);
      start += size;
    }
    if (sizes.length === 2) return;
    for (let i = first; i < end; i++) {
      const bucket = this.#bucketOf[this.#stretchAt(rows[i], depth, none)];
      this.#scratch[sizes.memory[2 * bucket + 1]++] = rows[i];
    }
    for (let i = first; i < end; i++) rows[i] = this.#scratch[i];
  }

  #stretchAt(row: number, depth: number, none: number): number {
    const place = this.#starts[row] + depth;
    return place < this.#starts[row + 1] ? this.#entryStretches[place] : none;
  }

  #setShared(index: number, depth: number, tokens: number): void {
    this.#sharedDepth.memory[index] = depth;
    this.#sharedTokens.memory[index] = tokens;
  }
}
