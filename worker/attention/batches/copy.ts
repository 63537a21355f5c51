/** The batch that a plan was made for, to find out whether the next one is the same but for runs that grew. */
import type { Batch } from "../../contract/batch.ts";
import { blockCountForTokens } from "../../contract/units.ts";

/** A plan is made anew when a run has grown by more tokens than this, because other cuts may be better then. */
const maxGrowth = 64;

export class BatchCopy {
  readonly #blockTokens: number;
  #batch: Batch | undefined;
  #memory: Batch | undefined;
  /** [segments] tokens of the plan. */
  #planned: Int32Array = new Int32Array(0);

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
  }

  forget(): void {
    this.#batch = undefined;
  }

  keep(batch: Batch): void {
    const memory = this.#memory;
    const copy = (name: Exclude<keyof Batch, "pieceGenerated" | "segmentPositions" | "choices">) =>
      copyInto(memory?.[name], batch[name]);
    this.#memory = {
      tokenIds: batch.tokenIds,
      positions: batch.positions,
      slots: batch.slots,
      logitRows: batch.logitRows,
      pieceRows: copy("pieceRows"),
      pieceSegments: copy("pieceSegments"),
      segmentBlockStarts: copy("segmentBlockStarts"),
      segmentFirstTokens: copy("segmentFirstTokens"),
      segmentTokenCounts: copy("segmentTokenCounts"),
      segmentOffsets: copy("segmentOffsets"),
      blockIds: copy("blockIds"),
    };
    this.#batch = this.#memory;
    this.#planned = copyInto(this.#planned, batch.segmentTokenCounts);
  }

  /**
   * Whether `next` is the kept batch but for runs, of pieces of one row, that grew at their ends. If so it is kept
   * instead.
   * @param grow called for each segment that grew, with its tokens; false when the plan cannot be patched for it
   */
  isGrownTo(next: Batch, grow: (segment: number, tokens: number) => boolean): boolean {
    const batch = this.#batch;
    if (batch === undefined || !this.#hasSameForm(batch, next)) return false;
    const { pieceRows, pieceSegments, segmentTokenCounts } = next;
    const pieceCount = pieceRows.length - 1;
    for (let piece = 0; piece < pieceCount; piece++) {
      const last = pieceSegments[piece + 1] - 1;
      const growth = segmentTokenCounts[last] - batch.segmentTokenCounts[last];
      if (growth < 0 || segmentTokenCounts[last] - this.#planned[last] > maxGrowth) return false;
      if (growth > 0 && pieceRows[piece + 1] - pieceRows[piece] > 1) return false;
      if (!this.#hasSameBlocks(batch, next, piece)) return false;
    }
    for (let piece = 0; piece < pieceCount; piece++) {
      const last = pieceSegments[piece + 1] - 1;
      const growth = segmentTokenCounts[last] - batch.segmentTokenCounts[last];
      if (growth > 0 && !grow(last, growth)) return false;
      batch.segmentTokenCounts[last] = segmentTokenCounts[last];
    }
    return true;
  }

  #hasSameForm(batch: Batch, next: Batch): boolean {
    for (const name of ["pieceRows", "pieceSegments", "segmentFirstTokens", "segmentOffsets"] as const) {
      if (batch[name].length !== next[name].length) return false;
      if (!isEqual(batch[name], 0, next[name], 0, next[name].length)) return false;
    }
    return true;
  }

  /** Whether a piece's segments see the same blocks as before, and of its own run at least those that it saw. */
  #hasSameBlocks(batch: Batch, next: Batch, piece: number): boolean {
    const [first, end] = [next.pieceSegments[piece], next.pieceSegments[piece + 1]];
    const moved = next.segmentBlockStarts[first] - batch.segmentBlockStarts[first];
    let [from, to, sum] = [batch.segmentBlockStarts[first], 0, 0];
    let isMovedAlike = true;
    for (let s = first; s < end; s++) {
      const tokens = this.#planned[s];
      if (s < end - 1 && next.segmentTokenCounts[s] !== tokens) return false;
      const start = batch.segmentBlockStarts[s];
      const blocks = blockCountForTokens(batch.segmentFirstTokens[s] + tokens, this.#blockTokens);
      isMovedAlike &&= next.segmentBlockStarts[s] - start === moved;
      from = Math.min(from, start);
      to = Math.max(to, start + blocks);
      sum += blocks;
    }
    // Mostly a piece's segments stand one behind the other: one comparison of bytes is by far the fastest.
    if (isMovedAlike && to - from === sum) return isEqual(batch.blockIds, from, next.blockIds, from + moved, sum);
    for (let s = first; s < end; s++) {
      const blocks = blockCountForTokens(batch.segmentFirstTokens[s] + this.#planned[s], this.#blockTokens);
      const [own, other] = [batch.segmentBlockStarts[s], next.segmentBlockStarts[s]];
      if (!isEqual(batch.blockIds, own, next.blockIds, other, blocks)) return false;
    }
    return true;
  }
}

/** Below so many numbers a loop is faster than a comparison of bytes. */
const fewNumbers = 48;

function isEqual(a: Int32Array, aStart: number, b: Int32Array, bStart: number, count: number): boolean {
  if (count > fewNumbers) return bytesOf(a, aStart, count).equals(bytesOf(b, bStart, count));
  for (let i = 0; i < count; i++) if (a[aStart + i] !== b[bStart + i]) return false;
  return true;
}

function bytesOf(list: Int32Array, start: number, count: number): Buffer {
  return Buffer.from(list.buffer, list.byteOffset + 4 * start, 4 * count);
}

/** Copies into the existing memory when it is long enough. */
function copyInto(old: Int32Array | undefined, values: Int32Array): Int32Array {
  const memory =
    old !== undefined && old.buffer.byteLength >= values.byteLength
      ? new Int32Array(old.buffer, 0, values.length)
      : new Int32Array(new ArrayBuffer(values.byteLength * 2), 0, values.length);
  memory.set(values);
  return memory;
}
