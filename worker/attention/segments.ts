/** Segments of equal blocks, found by their first and last block and compared, and who reads them. */

import { IntList } from "../base/int-list.ts";
import type { Batch } from "../contract/batch.ts";
import { blockCountForTokens } from "../contract/units.ts";

const hashFactor = 0x9e3779b1;

export class DistinctSegments {
  readonly blockTokens: number;
  /** [distinct] a segment of the batch that stands for all of its kind. */
  readonly segments = new IntList();
  /** [distinct] the last reader, in the lists below; -1 ends them. */
  readonly lastReader = new IntList();
  /** [readers] piece, segment of the batch, the reader before. */
  readonly readerPiece = new IntList();
  readonly readerSegment = new IntList();
  readonly readerBefore = new IntList();
  readonly #nextOfHash = new IntList();
  /** [hashes] the last distinct segment with the hash, plus 1; 0: there is none. */
  #table = new Int32Array(1_024);

  constructor(blockTokens: number) {
    this.blockTokens = blockTokens;
  }

  clear(segmentCount: number): void {
    const lists = [this.segments, this.lastReader, this.readerPiece, this.readerSegment, this.readerBefore];
    for (const list of [...lists, this.#nextOfHash]) list.clear();
    let size = this.#table.length;
    while (size < 2 * segmentCount) size *= 2;
    if (size > this.#table.length) this.#table = new Int32Array(size);
    else this.#table.fill(0);
  }

  /** @param sharing false: the segment is like no other */
  add(batch: Batch, piece: number, s: number, sharing: boolean): void {
    if (batch.segmentTokenCounts[s] === 0) return;
    const place = sharing ? this.#placeOf(batch, s) : 0;
    let d = sharing ? this.#table[place] - 1 : -1;
    while (d >= 0 && !this.#isSame(batch, d, s)) d = this.#nextOfHash.memory[d];
    if (d < 0) {
      d = this.segments.length;
      this.segments.push(s);
      this.lastReader.push(-1);
      this.#nextOfHash.push(this.#table[place] - 1);
      this.#table[place] = d + 1;
    }
    this.readerPiece.push(piece);
    this.readerSegment.push(s);
    this.readerBefore.push(this.lastReader.memory[d]);
    this.lastReader.memory[d] = this.readerPiece.length - 1;
  }

  blockCountOf(batch: Batch, s: number): number {
    return blockCountForTokens(batch.segmentFirstTokens[s] + batch.segmentTokenCounts[s], this.blockTokens);
  }

  #placeOf(batch: Batch, s: number): number {
    const start = batch.segmentBlockStarts[s];
    const end = start + this.blockCountOf(batch, s);
    const hash = Math.imul(batch.blockIds[start], hashFactor) ^ Math.imul(batch.blockIds[end - 1] + 1, 0x85ebca6b);
    return (hash ^ (hash >>> 15)) & (this.#table.length - 1);
  }

  #isSame(batch: Batch, d: number, s: number): boolean {
    const other = this.segments.memory[d];
    if (batch.segmentTokenCounts[other] !== batch.segmentTokenCounts[s]) return false;
    if (batch.segmentFirstTokens[other] !== batch.segmentFirstTokens[s]) return false;
    const { blockIds, segmentBlockStarts } = batch;
    return isEqualRange(blockIds, segmentBlockStarts[other], segmentBlockStarts[s], this.blockCountOf(batch, s));
  }
}

/** Backwards: chains that part do so at their end. */
export function isEqualRange(list: Int32Array, a: number, b: number, count: number): boolean {
  for (let i = count - 1; i >= 0; i--) if (list[a + i] !== list[b + i]) return false;
  return true;
}
