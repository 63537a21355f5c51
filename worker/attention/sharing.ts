/**
 * Which rows of a step read which stretches of KV. A stretch is some consecutive blocks that all its readers read one
 * after the other: a fragment wherever it stands in each request, the common prefix of chains that part later, a leaf.
 *
 * Segments of the same blocks are found by their first and last block and compared; blocks of different segments are
 * then cut where the set of segments that hold them changes. The finder needs to know nothing of how blocks came about:
 * what is not equal block by block is not shared.
 */

import { IntList } from "../base/int-list.ts";
import type { Batch } from "../contract/batch.ts";
import { DistinctSegments, isEqualRange } from "./segments.ts";

/** Struct of arrays, valid until the next `find`. */
export interface Stretches {
  readonly count: number;
  /** Stretches from this index on are copies, for rows that read a stretch twice. */
  readonly originals: number;
  /** A segment of the batch that holds the stretch, and at which of its blocks it begins. */
  readonly segment: Int32Array;
  readonly firstBlock: Int32Array;
  /** First token in the first block, and how many are seen; of a causal one, by the piece's last row. */
  readonly firstToken: Int32Array;
  readonly tokens: Int32Array;
  /**
   * Tokens up to the end of the last block. Plans are made for these, so that a run that grows within a block keeps its
   * plan.
   */
  readonly room: Int32Array;
  /** Of a causal stretch the first row of its piece: each later row sees one token more. -1: all rows see all of it. */
  readonly causalRow: Int32Array;
  /** [count + 1] where the readers of each stretch begin in `rows` and `offsets`; no row reads one stretch twice. */
  readonly readers: Int32Array;
  readonly rows: Int32Array;
  readonly offsets: Int32Array;
}

const hashFactor = 0x9e3779b1;

export class SharingFinder {
  readonly #blockTokens: number;
  readonly #distinct: DistinctSegments;
  /** [block ids] the step that met the block last, the sum of its segments' hashes, what is seen of it, its stretch. */
  #epoch = 0;
  #met = new Int32Array(1_024);
  #sums = new Int32Array(1_024);
  #seen = new Int32Array(1_024);
  #stretchOf = new Int32Array(1_024);
  readonly #segment = new IntList();
  readonly #firstBlock = new IntList();
  readonly #firstToken = new IntList();
  readonly #tokens = new IntList();
  readonly #room = new IntList();
  readonly #causalRow = new IntList();
  readonly #blocks = new IntList();
  /**
   * [pairs] a stretch and the distinct segment that reads it; of a causal stretch -1 - piece instead of the segment.
   */
  readonly #pairStretch = new IntList();
  readonly #pairSource = new IntList();
  readonly #readers = new IntList();
  readonly #rows = new IntList();
  readonly #offsets = new IntList();
  readonly #rowMet = new IntList();
  readonly #lists: readonly IntList[];

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
    this.#distinct = new DistinctSegments(blockTokens);
    const places = [this.#segment, this.#firstBlock, this.#firstToken, this.#tokens, this.#room, this.#causalRow];
    const pairs = [this.#blocks, this.#pairStretch, this.#pairSource];
    this.#lists = [...places, ...pairs, this.#readers, this.#rows, this.#offsets, this.#rowMet];
  }

  /** @param isTaken which pieces to look at @param sharing false: each stretch is read by one piece only */
  find(batch: Batch, isTaken: (piece: number) => boolean, sharing: boolean): Stretches {
    for (const list of this.#lists) list.clear();
    this.#nextEpoch();
    this.#distinct.clear(batch.segmentOffsets.length);
    for (let piece = 0; piece + 1 < batch.pieceRows.length; piece++) {
      if (isTaken(piece)) this.#addPiece(batch, piece, sharing);
    }
    const count = this.#distinct.segments.length;
    if (sharing) {
      for (let d = 0; d < count; d++) this.#meetBlocks(batch, d);
      for (let d = 0; d < count; d++) this.#cutSegment(batch, d);
    } else {
      for (let d = 0; d < count; d++) this.#addWhole(batch, this.#distinct.segments.memory[d], d);
    }
    const originals = this.#segment.length;
    this.#listReaders(batch);
    return {
      originals,
      count: this.#segment.length,
      segment: this.#segment.memory,
      firstBlock: this.#firstBlock.memory,
      firstToken: this.#firstToken.memory,
      tokens: this.#tokens.memory,
      room: this.#room.memory,
      causalRow: this.#causalRow.memory,
      readers: this.#readers.memory,
      rows: this.#rows.memory,
      offsets: this.#offsets.memory,
    };
  }

  #addPiece(batch: Batch, piece: number, sharing: boolean): void {
    const rowCount = batch.pieceRows[piece + 1] - batch.pieceRows[piece];
    const last = batch.pieceSegments[piece + 1] - 1;
    for (let s = batch.pieceSegments[piece]; s < last; s++) this.#distinct.add(batch, piece, s, sharing);
    if (rowCount === 1) return this.#distinct.add(batch, piece, last, sharing);
    const stretch = this.#addWhole(batch, last, -1 - piece);
    this.#causalRow.memory[stretch] = batch.pieceRows[piece];
  }

  /**
   * Adds the segment to the sum of each of its blocks. A block of which segments see different tokens is marked by -1.
   */
  #meetBlocks(batch: Batch, d: number): void {
    const s = this.#distinct.segments.memory[d];
    const blockTokens = this.#blockTokens;
    const epoch = this.#epoch;
    const start = batch.segmentBlockStarts[s];
    const count = this.#distinct.blockCountOf(batch, s);
    const hash = Math.imul(d + 1, hashFactor) | 1;
    for (let i = 0; i < count; i++) {
      const id = batch.blockIds[start + i];
      if (id >= this.#met.length) this.#growBlocks(id);
      const seen = this.#seenOf(batch, s, i, count, blockTokens);
      if (this.#met[id] !== epoch) {
        this.#met[id] = epoch;
        this.#sums[id] = hash;
        this.#seen[id] = seen;
        this.#stretchOf[id] = -1;
      } else if (this.#seen[id] !== seen) {
        this.#seen[id] = -1;
      } else {
        this.#sums[id] = (this.#sums[id] + hash) | 0;
      }
    }
  }

  /** The first seen token of a block and the end of what is seen of it, as one number; 0: the whole block is seen. */
  #seenOf(batch: Batch, s: number, index: number, count: number, blockTokens: number): number {
    const first = index === 0 ? batch.segmentFirstTokens[s] : 0;
    const end = index < count - 1 ? 0 : (batch.segmentFirstTokens[s] + batch.segmentTokenCounts[s]) % blockTokens;
    return first * blockTokens + end;
  }

  #cutSegment(batch: Batch, d: number): void {
    const s = this.#distinct.segments.memory[d];
    const start = batch.segmentBlockStarts[s];
    const count = this.#distinct.blockCountOf(batch, s);
    const { blockIds } = batch;
    for (let i = 0; i < count; ) {
      const id = blockIds[start + i];
      const known = this.#stretchOf[id];
      let length = 1;
      if (this.#seen[id] >= 0 && known < 0) {
        const sum = this.#sums[id];
        const stretch = this.#segment.length;
        this.#stretchOf[id] = stretch;
        for (; i + length < count; length++) {
          const next = blockIds[start + i + length];
          if (this.#seen[next] < 0 || this.#stretchOf[next] >= 0 || this.#sums[next] !== sum) break;
          this.#stretchOf[next] = stretch;
        }
        this.#addStretch(batch, s, i, length);
        this.#addPair(stretch, d);
      } else if (this.#seen[id] >= 0 && this.#holds(batch, known, start + i, count - i)) {
        length = this.#blocks.memory[known];
        this.#addPair(known, d);
      } else {
        this.#addPair(this.#addStretch(batch, s, i, 1), d);
      }
      i += length;
    }
  }

  /** Whether the blocks from `place` on begin with this stretch. */
  #holds(batch: Batch, stretch: number, place: number, room: number): boolean {
    const length = this.#blocks.memory[stretch];
    const own = batch.segmentBlockStarts[this.#segment.memory[stretch]] + this.#firstBlock.memory[stretch];
    return length <= room && isEqualRange(batch.blockIds, own, place, length);
  }

  #addWhole(batch: Batch, s: number, source: number): number {
    const stretch = this.#addStretch(batch, s, 0, this.#distinct.blockCountOf(batch, s));
    this.#addPair(stretch, source);
    return stretch;
  }

  #addStretch(batch: Batch, s: number, firstBlock: number, blockCount: number): number {
    const blockTokens = this.#blockTokens;
    const from = Math.max(batch.segmentFirstTokens[s], firstBlock * blockTokens);
    const end = Math.min(
      batch.segmentFirstTokens[s] + batch.segmentTokenCounts[s],
      (firstBlock + blockCount) * blockTokens,
    );
    this.#segment.push(s);
    this.#firstBlock.push(firstBlock);
    this.#firstToken.push(from - firstBlock * blockTokens);
    this.#tokens.push(end - from);
    this.#room.push((firstBlock + blockCount) * blockTokens - from);
    this.#causalRow.push(-1);
    this.#blocks.push(blockCount);
    return this.#segment.length - 1;
  }

  #addPair(stretch: number, source: number): void {
    this.#pairStretch.push(stretch);
    this.#pairSource.push(source);
  }

  /** Lists the readers of each stretch. A row that reads a stretch for the second time reads a copy of it. */
  #listReaders(batch: Batch): void {
    const stretchCount = this.#segment.length;
    const pairs = this.#pairStretch.length;
    const first = new Int32Array(stretchCount + 1);
    for (let i = 0; i < pairs; i++) first[this.#pairStretch.memory[i] + 1] += 1;
    for (let i = 0; i < stretchCount; i++) first[i + 1] += first[i];
    const order = new Int32Array(pairs);
    for (let i = 0; i < pairs; i++) order[first[this.#pairStretch.memory[i]]++] = this.#pairSource.memory[i];
    this.#rowMet.resize(batch.tokenIds.length, -1);
    const again: number[] = [];
    for (let stretch = 0, i = 0; stretch < stretchCount; stretch++) {
      this.#readers.push(this.#rows.length);
      for (; i < first[stretch]; i++) this.#addReaders(batch, stretch, order[i], again);
    }
    this.#readers.push(this.#rows.length);
    for (let i = 0; i < again.length; i += 3) this.#addCopy(again[i], again[i + 1], again[i + 2]);
  }

  #addReaders(batch: Batch, stretch: number, source: number, again: number[]): void {
    if (source < 0) {
      const offset = batch.segmentOffsets[this.#segment.memory[stretch]];
      return this.#addRows(batch, stretch, -1 - source, offset, again);
    }
    const { lastReader, readerBefore, readerSegment, readerPiece } = this.#distinct;
    for (let r = lastReader.memory[source]; r >= 0; r = readerBefore.memory[r]) {
      const offset = batch.segmentOffsets[readerSegment.memory[r]];
      this.#addRows(batch, stretch, readerPiece.memory[r], offset, again);
    }
  }

  #addRows(batch: Batch, stretch: number, piece: number, offset: number, again: number[]): void {
    for (let row = batch.pieceRows[piece]; row < batch.pieceRows[piece + 1]; row++) {
      if (this.#rowMet.memory[row] === stretch) {
        again.push(stretch, row, offset);
        continue;
      }
      this.#rowMet.memory[row] = stretch;
      this.#rows.push(row);
      this.#offsets.push(offset);
    }
  }

  #addCopy(stretch: number, row: number, offset: number): void {
    for (const list of [this.#segment, this.#firstBlock, this.#firstToken, this.#tokens, this.#room, this.#causalRow]) {
      list.push(list.memory[stretch]);
    }
    this.#rows.push(row);
    this.#offsets.push(offset);
    this.#readers.push(this.#rows.length);
  }

  #nextEpoch(): void {
    this.#epoch = (this.#epoch + 1) | 0;
    if (this.#epoch > 0) return;
    this.#met.fill(0);
    this.#epoch = 1;
  }

  #growBlocks(id: number): void {
    const length = Math.max(id + 1, 2 * this.#met.length);
    const grown = (list: Int32Array) => {
      const longer = new Int32Array(length);
      longer.set(list);
      return longer;
    };
    this.#met = grown(this.#met);
    this.#sums = grown(this.#sums);
    this.#seen = grown(this.#seen);
    this.#stretchOf = grown(this.#stretchOf);
  }
}
