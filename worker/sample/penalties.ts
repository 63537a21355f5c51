/**
 * What changes logits before a token is drawn, in this order:
 *
 *   repetition  (Hugging Face): token in prompt or output: logit > 0 ? logit / p : logit * p
 *   frequency, presence (OpenAI): logit -= frequency * count + presence * (count > 0), of generated tokens
 *   bias        (OpenAI): logit += bias
 *   banned      (stop tokens before minTokens, and what a constraint does not allow): logit = -Infinity
 */
import type { SamplingParams } from "../contract/messages.ts";

/** The tokens a request has seen and made, as far as its penalties ask for them. */
export class TokenHistory {
  readonly #seen = new Set<number>();
  readonly #generatedCounts = new Map<number, number>();

  /** undefined when no penalty is set, so that nothing is counted. */
  static forParams(params: SamplingParams, prompt: () => readonly Int32Array[]): TokenHistory | undefined {
    const repetition = params.repetitionPenalty !== 1;
    if (!repetition && params.presencePenalty === 0 && params.frequencyPenalty === 0) return undefined;
    const history = new TokenHistory();
    if (repetition) for (const tokenIds of prompt()) for (const tokenId of tokenIds) history.#seen.add(tokenId);
    return history;
  }

  add(tokenId: number): void {
    this.#seen.add(tokenId);
    this.#generatedCounts.set(tokenId, (this.#generatedCounts.get(tokenId) ?? 0) + 1);
  }

  /** Every token that a penalty may fall on, and how often it was generated. */
  *counts(): Generator<readonly [tokenId: number, generatedCount: number]> {
    for (const tokenId of this.#seen) yield [tokenId, this.#generatedCounts.get(tokenId) ?? 0];
  }

  apply(logits: Float32Array, params: SamplingParams): void {
    const { repetitionPenalty, presencePenalty, frequencyPenalty } = params;
    if (repetitionPenalty !== 1) {
      for (const tokenId of this.#seen) {
        const logit = logits[tokenId];
        logits[tokenId] = logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty;
      }
    }
    for (const [tokenId, count] of this.#generatedCounts) {
      logits[tokenId] -= frequencyPenalty * count + presencePenalty;
    }
  }
}

export function applyBias(logits: Float32Array, bias: SamplingParams["logitBias"]): void {
  for (const [tokenId, value] of bias) logits[tokenId] += value;
}

export function ban(logits: Float32Array, tokenIds: readonly number[]): void {
  for (const tokenId of tokenIds) logits[tokenId] = Number.NEGATIVE_INFINITY;
}
