/**
 * Blending a run (contract/messages.ts: BlendPlan), from the first token that was not found under a key on:
 *
 *   copy       KV of all copied tokens, from the runs they were computed in, moved to where they stand here
 *   probe      layer 0 of every token with full visibility; its output gives layer 1's K and V, which tell how
 *              far the copied ones are off (section 4.3: a token that deviates in one layer does so in the next)
 *   recompute  the tokens that deviate most, and all that no copy covers, through all layers in order of position
 *
 * Which tokens are chosen depends on what was found, so a blended block's KV is one of several approximations.
 */
import type { BlendPlan } from "../contract/messages.ts";

/** How many of the copied tokens are computed again: the product rounded up, but not for a mere rounding error. */
export function recomputeCount(copiedTokens: number, recomputeRatio: number): number {
  return Math.min(copiedTokens, Math.ceil(Math.max(0, copiedTokens * recomputeRatio - 1e-9)));
}

/**
 * Which of n tokens are computed, in rising order: those that are not copied, and `count` of those that are, with
 * the greatest deviation; of equal ones the earlier. A deviation that is no number is the greatest.
 */
export function selectTokens(copied: Uint8Array, deviations: Float32Array, count: number): Int32Array {
  const candidates: number[] = [];
  const selected: number[] = [];
  for (const [token, isCopied] of copied.entries()) (isCopied === 1 ? candidates : selected).push(token);
  const sizeOf = (token: number): number =>
    Number.isNaN(deviations[token]) ? Number.POSITIVE_INFINITY : deviations[token];
  // The sort is stable, so equal ones stay in order; infinities are not subtracted from each other.
  candidates.sort((a, b) => (sizeOf(a) === sizeOf(b) ? 0 : sizeOf(b) - sizeOf(a)));
  return Int32Array.from([...selected, ...candidates.slice(0, count)]).sort();
}

/** The progress of one run's blending, from its copies on. Tokens count from the run's first. */
export class Blending {
  readonly copiedTokens: number;
  readonly recomputedTokens: number;
  readonly #firstToken: number;
  readonly #copied: Uint8Array;
  readonly #deviations: Float32Array;
  #probedCount = 0;
  /** Tokens to compute; undefined until all are probed. */
  #selected: Int32Array | undefined;
  #computedCount = 0;

  /** @param firstToken tokens before it were found under their keys */
  constructor(plan: BlendPlan, firstToken: number, tokenCount: number) {
    this.#firstToken = firstToken;
    this.#copied = new Uint8Array(tokenCount - firstToken);
    for (const { at, tokenCount: count } of plan.copies) {
      this.#copied.fill(1, Math.max(0, at - firstToken), Math.max(0, at + count - firstToken));
    }
    this.#deviations = new Float32Array(tokenCount - firstToken);
    this.copiedTokens = this.#copied.reduce((sum, isCopied) => sum + isCopied, 0);
    this.recomputedTokens = recomputeCount(this.copiedTokens, plan.recomputeRatio);
    // With none or all of them there is nothing to choose.
    if (this.recomputedTokens === 0 || this.recomputedTokens === this.copiedTokens) this.#select();
  }

  /** First token that was not probed yet, counted from the run's first. */
  get nextProbe(): number {
    return this.#firstToken + this.#probedCount;
  }

  /** 0 once it is known which tokens are computed. */
  get unprobedTokens(): number {
    return this.#selected === undefined ? this.#copied.length - this.#probedCount : 0;
  }

  /** How many tokens are still to be computed, even while it is not known which. */
  get missingTokens(): number {
    return this.#copied.length - this.copiedTokens + this.recomputedTokens - this.#computedCount;
  }

  /** Takes the deviations of the next tokens, [n]. */
  addDeviations(deviations: Float32Array): void {
    this.#deviations.set(deviations, this.#probedCount);
    this.#probedCount += deviations.length;
    if (this.#probedCount === this.#deviations.length) this.#select();
  }

  /** The next `rowCount` selected tokens, in stretches of consecutive ones. */
  nextStretches(rowCount: number): { firstToken: number; rowCount: number }[] {
    const stretches: { firstToken: number; rowCount: number }[] = [];
    const next = this.#selected?.subarray(this.#computedCount, this.#computedCount + rowCount) ?? [];
    for (const token of next) {
      const last = stretches.at(-1);
      const firstToken = this.#firstToken + token;
      if (last !== undefined && last.firstToken + last.rowCount === firstToken) last.rowCount += 1;
      else stretches.push({ firstToken, rowCount: 1 });
    }
    return stretches;
  }

  /** The next `rowCount` selected tokens are computed. */
  advance(rowCount: number): void {
    this.#computedCount += rowCount;
  }

  #select(): void {
    this.#selected = selectTokens(this.#copied, this.#deviations, this.recomputedTokens);
  }
}
