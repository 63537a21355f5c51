/**
 * Pieces of prompts for a step, under its budget. Half of it is for the prompt admitted first, so it ends; the rest
 * goes to the prompt with the fewest missing tokens, so that a question over prepared text does not wait behind a long
 * cold one.
 *
 * Sharing: a block is computed once. A key that is being computed in this step is *claimed*; a run that needs
 * it too waits a step and finds it, whoever computed it and whatever became of that request. A blended run is
 * found when all of it is done, so it claims its blocks until then.
 */
import type { PrefixCache } from "../cache/prefix-cache.ts";
import type { Request } from "./request.ts";
import type { Run } from "./run.ts";
import type { StepDraft } from "./step.ts";

/** Rows that a step's first prompt gets in any case: with fewer, reading its context would be most of the work. */
const leastRows = 8;

export class PrefillScheduler {
  readonly #cache: PrefixCache;
  readonly #blockTokens: number;

  constructor(cache: PrefixCache, blockTokens: number) {
    this.#cache = cache;
    this.#blockTokens = blockTokens;
  }

  /** @param running in order of admission */
  schedule(running: readonly Request[], step: StepDraft): void {
    const prefilling = running.filter((request) => !request.decoding);
    const oldest = prefilling.at(0);
    if (oldest === undefined) return;
    for (const { runs } of prefilling) {
      for (const run of runs) if (run.blending !== undefined) this.#claimRest(run, step);
    }
    this.#addPieces(oldest, step, Math.ceil(step.budget / 2));
    const missingTokens = new Map(prefilling.map((request) => [request, request.missingTokens]));
    const order = (a: Request, b: Request): number => (missingTokens.get(a) ?? 0) - (missingTokens.get(b) ?? 0);
    for (const request of prefilling.toSorted(order)) this.#addPieces(request, step, step.budget);
  }

  /** More rows of a request's prompt, worth up to `maxWork` rows without context; pieces it has in this step grow. */
  #addPieces(request: Request, step: StepDraft, maxWork: number): void {
    let workLeft = maxWork;
    for (const run of request.runs) {
      if (step.covers(run) || !step.mayCompute(run, request)) continue;
      const rowsBefore = step.pieces.get(run)?.rowCount ?? 0;
      const rowsLeft = this.#rowsFor(run, step, workLeft);
      if (rowsLeft === 0) return;
      if (run.plan.blend !== undefined) {
        workLeft -= this.#addBlend(run, request, step, rowsLeft);
        continue;
      }
      const start = run.computedTokens + rowsBefore;
      const rows = step.listBudget.rowsFor(run, Math.min(run.tokenCount - start, rowsLeft), rowsBefore);
      const end = this.#claim(run, step, start, start + rows);
      if (end === start) continue;
      request.reservedBlocks -= run.coverWithBlocks(end, this.#cache);
      step.addRows(request, run, end - start);
      workLeft -= (end - start) * step.rowCost(run);
    }
  }

  /** How many rows of the run so much work pays for; the first prompt of a step gets some rows in any case. */
  #rowsFor(run: Run, step: StepDraft, work: number): number {
    if (work <= 0) return 0;
    const rows = Math.floor(work / step.rowCost(run));
    return step.hasPrompts ? rows : Math.max(rows, Math.min(leastRows, Math.floor(work)));
  }

  /**
   * Adds the next stage of a blended run: copies, then probes, then selected tokens. @returns how many selected tokens
   */
  #addBlend(run: Run, request: Request, step: StepDraft, maxRows: number): number {
    let { blending } = run;
    if (blending === undefined) {
      if (!this.#claimRest(run, step)) return 0;
      request.reservedBlocks -= run.coverWithBlocks(run.tokenCount, this.#cache);
      blending = run.beginBlending();
      step.copies.push({ request, run });
    }
    if (blending.unprobedTokens > 0) {
      step.addProbes(request, run, blending.nextProbe, blending.unprobedTokens);
      return 0;
    }
    const before = step.recomputed.get(run)?.rowCount ?? 0;
    return step.addRecomputed(request, run, Math.min(blending.missingTokens, before + maxRows));
  }

  /**
   * Claims the keys of the blocks of tokens [start, end). Answers where that ends: before the first block that
   * another run claims or has computed. A block that was begun in an earlier step is the run's own in any case.
   */
  #claim(run: Run, step: StepDraft, start: number, end: number): number {
    for (let index = Math.floor(start / this.#blockTokens); index * this.#blockTokens < end; index++) {
      const key = run.keyAt(index);
      if (key === undefined) continue;
      const others = step.isClaimed(key) || run.isResident(index, this.#cache);
      if (others && index * this.#blockTokens >= start) return index * this.#blockTokens;
      step.claimed.add(key);
    }
    return end;
  }

  /** Claims all that a blended run lacks; false when another run claims the first of it. */
  #claimRest(run: Run, step: StepDraft): boolean {
    const first = Math.floor(run.computedTokens / this.#blockTokens);
    const keys = Array.from({ length: run.blockCount - first }, (_, i) => run.keyAt(first + i));
    if (keys[0] !== undefined && step.isClaimed(keys[0])) return false;
    for (const key of keys) if (key !== undefined) step.claimed.add(key);
    return true;
  }
}
