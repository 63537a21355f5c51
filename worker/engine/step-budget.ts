/**
 * Room for what a backend is told of a step beside its rows: slices, offsets and block ids, which grow with the
 * segments that each row reads (plan-format.ts). A step that does not fit would fail for all of its requests, so it
 * has fewer rows, and the next step has the others.
 */
import { mostPieceWords } from "../attention/plan-format.ts";
import type { Run } from "./run.ts";

/** Rows of a run: one piece, or (blended runs) rows that may all be pieces of their own. */
export type RowsAre = "together" | "scattered";

export class ListBudget {
  private readonly wordCount: number;
  private usedWords = 0;

  /** @param wordCount of all lists; a first row fits whatever it reads */
  constructor(wordCount: number) {
    this.wordCount = wordCount;
  }

  /**
   * How many of `rowCount` more rows of a run there is room for.
   * @param before rows of the run that have room already
   * @param keptWords that are to be left
   */
  rowsFor(run: Run, rowCount: number, before = 0, rowsAre: RowsAre = "together", keptWords = 0): number {
    const fitting = this.fitting(run, rowCount, before, rowsAre, keptWords);
    return this.usedWords === 0 ? Math.max(Math.min(1, rowCount), fitting) : fitting;
  }

  /** `rowCount` more rows of a run are in the step, beside `before` that had room. */
  take(run: Run, rowCount: number, before = 0, rowsAre: RowsAre = "together"): void {
    this.usedWords += wordsOf(run, before + rowCount, rowsAre) - wordsOf(run, before, rowsAre);
  }

  /** A piece's rows are not computed in this step after all. */
  giveBack(run: Run, rowCount: number): void {
    this.usedWords -= wordsOf(run, rowCount, "together");
  }

  private fitting(run: Run, rowCount: number, before: number, rowsAre: RowsAre, keptWords: number): number {
    const left = this.wordCount - this.usedWords - keptWords + wordsOf(run, before, rowsAre);
    // What a run takes grows with its rows: by bisection, the most of them that fit.
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
