/**
 * Bounds the lists that a backend gets of a step beside its rows: slices, offsets and block ids. They grow with the
 * segments that each row reads (plan-format.ts). A step whose lists do not fit would fail for all of its requests, so
 * it gets fewer rows, and the next step gets the others.
 */
import { mostPieceWords } from "../attention/plan-format.ts";
import type { Run } from "./run.ts";

/** How rows of a run stand: together in one piece, or scattered, when each may be a piece of its own (blended runs). */
export type RowsAre = "together" | "scattered";

export class ListBudget {
  readonly #wordCount: number;
  #usedWords = 0;

  /** @param wordCount words of all lists together; the first row of a step fits whatever it reads */
  constructor(wordCount: number) {
    this.#wordCount = wordCount;
  }

  /**
   * How many of `rowCount` more rows of a run fit.
   * @param before rows of the run that are in the step already
   * @param keptWords words that have to stay free
   */
  rowsFor(run: Run, rowCount: number, before = 0, rowsAre: RowsAre = "together", keptWords = 0): number {
    const fitting = this.#fitting(run, rowCount, before, rowsAre, keptWords);
    return this.#usedWords === 0 ? Math.max(Math.min(1, rowCount), fitting) : fitting;
  }

  /** `rowCount` more rows of a run are in the step, beside the `before` rows that were. */
  take(run: Run, rowCount: number, before = 0, rowsAre: RowsAre = "together"): void {
    this.#usedWords += wordsOf(run, before + rowCount, rowsAre) - wordsOf(run, before, rowsAre);
  }

  /** A piece's rows are not computed in this step after all. */
  giveBack(run: Run, rowCount: number): void {
    this.#usedWords -= wordsOf(run, rowCount, "together");
  }

  #fitting(run: Run, rowCount: number, before: number, rowsAre: RowsAre, keptWords: number): number {
    const left = this.#wordCount - this.#usedWords - keptWords + wordsOf(run, before, rowsAre);
    // The words of a run grow with its rows, so bisection finds the most rows that fit.
    let [most, tooMany] = [0, rowCount + 1];
    while (tooMany - most > 1) {
      const middle = (most + tooMany) >>> 1;
      if (wordsOf(run, before + middle, rowsAre) <= left) most = middle;
      else tooMany = middle;
    }
    return most;
  }
}

function wordsOf(run: Run, rowCount: number, rowsAre: RowsAre): number {
  if (rowCount === 0) return 0;
  const segmentCount = run.plan.sees.length + 1;
  const blockCount = run.seenBlockCount + run.blockCount;
  if (rowsAre === "together") return mostPieceWords(segmentCount, rowCount) + blockCount;
  return rowCount * mostPieceWords(segmentCount, 1) + blockCount;
}
