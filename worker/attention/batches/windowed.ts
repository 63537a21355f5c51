/**
 * A step as layers with a sliding window see it: a row at position p sees a token at position k where 0 <= p - k < W,
 * both in the positions of the row's own prompt. Segments lose what no row of their piece sees any more. Of pieces with
 * few rows each row becomes a piece of its own, so that the cut is exact, and rows that still see the same tokens share
 * them. Of a longer piece each row sees one token less of a segment's beginning than the row before it.
 */
import { IntList } from "../../base/int-list.ts";
import type { Batch } from "../../contract/batch.ts";

export interface WindowedBatch extends Batch {
  /**
   * [S] row r of the piece does not see the segment's tokens before r - this. Absent, as the plan of a step without
   * windows has it: each row sees all of them.
   */
  readonly segmentLateness?: Int32Array;
}

/** Infinity where each row of a piece sees all of a segment's beginning. */
export const latenessOf = ({ segmentLateness }: WindowedBatch, segment: number): number =>
  segmentLateness?.[segment] ?? Number.POSITIVE_INFINITY;

export interface WindowOptions {
  readonly windowTokens: number;
  readonly blockTokens: number;
  /** Pieces of at most so many rows become pieces of a row each. */
  readonly fewRows: number;
}

/** Rows of one piece, which become a piece. */
interface RowRange {
  readonly piece: number;
  readonly first: number;
  readonly end: number;
}

export class WindowCutter {
  readonly #options: WindowOptions;
  readonly #pieceRows = new IntList();
  readonly #pieceSegments = new IntList();
  readonly #blockStarts = new IntList();
  readonly #firstTokens = new IntList();
  readonly #tokenCounts = new IntList();
  readonly #offsets = new IntList();
  readonly #positions = new IntList();
  readonly #lateness = new IntList();

  constructor(options: WindowOptions) {
    this.#options = options;
  }

  /** Valid until the next `cut`. @throws RangeError for a step that does not say where its segments stand */
  cut(batch: Batch): WindowedBatch {
    const { pieceRows, segmentPositions } = batch;
    if (segmentPositions === undefined) throw new RangeError("a step for layers that slide has no segmentPositions");
    const ofSegments = [this.#blockStarts, this.#firstTokens, this.#tokenCounts, this.#offsets, this.#positions];
    for (const list of [this.#pieceRows, this.#pieceSegments, this.#lateness, ...ofSegments]) list.clear();
    for (let piece = 0; piece + 1 < pieceRows.length; piece++) {
      const [first, end] = [pieceRows[piece], pieceRows[piece + 1]];
      const step = end - first <= this.#options.fewRows ? 1 : end - first;
      for (let row = first; row < end; row += step)
        this.#add(batch, segmentPositions, { piece, first: row, end: row + step });
    }
    this.#pieceRows.push(batch.tokenIds.length);
    this.#pieceSegments.push(this.#offsets.length);
    return {
      ...batch,
      pieceRows: this.#pieceRows.view(),
      pieceSegments: this.#pieceSegments.view(),
      segmentBlockStarts: this.#blockStarts.view(),
      segmentFirstTokens: this.#firstTokens.view(),
      segmentTokenCounts: this.#tokenCounts.view(),
      segmentOffsets: this.#offsets.view(),
      segmentPositions: this.#positions.view(),
      segmentLateness: this.#lateness.view(),
    };
  }

  #add(batch: Batch, segmentPositions: Int32Array, { piece, first, end }: RowRange): void {
    const { positions, pieceRows, pieceSegments, segmentTokenCounts, segmentOffsets } = batch;
    this.#pieceRows.push(first);
    this.#pieceSegments.push(this.#offsets.length);
    const last = pieceSegments[piece + 1] - 1;
    for (let s = pieceSegments[piece]; s <= last; s++) {
      const count = segmentTokenCounts[s] - (s === last ? pieceRows[piece + 1] - end : 0);
      // The place in the segment of the first token that the first row sees; below 0 where that is further back.
      const start = segmentPositions[s] + segmentOffsets[s];
      const seen = positions[first] - this.#options.windowTokens + 1 - start;
      const hidden = Math.max(0, seen);
      if (hidden >= count) continue;
      this.#addSegment(batch, s, hidden, count - hidden);
      this.#positions.push(segmentPositions[s] + hidden);
      this.#lateness.push(hidden - seen);
    }
  }

  /** Tokens `hidden` to `hidden + count` of a segment. */
  #addSegment(batch: Batch, s: number, hidden: number, count: number): void {
    const { blockTokens } = this.#options;
    const first = batch.segmentFirstTokens[s] + hidden;
    this.#blockStarts.push(batch.segmentBlockStarts[s] + Math.floor(first / blockTokens));
    this.#firstTokens.push(first % blockTokens);
    this.#tokenCounts.push(count);
    this.#offsets.push(batch.segmentOffsets[s]);
  }
}
