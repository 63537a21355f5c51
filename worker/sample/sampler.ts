/**
 * One token from one row of logits. After the penalties (penalties.ts): temperature, then top-k, then top-p
 * of what top-k left, then min-p (relative to the most probable token), as Hugging Face orders them.
 * Temperature 0 is greedy; ties go to the lowest id everywhere.
 */
import type { SamplingParams, TokenLogprob } from "../contract/messages.ts";
import { restrict, type TokenConstraint } from "./constraint.ts";
import { argmax, tokenLogprob } from "./logprobs.ts";
import { applyBias, ban, type TokenHistory } from "./penalties.ts";
import { uniform } from "./rng.ts";
import { Shortlist } from "./shortlist.ts";

export interface SampleRequest {
  readonly params: SamplingParams;
  readonly history: TokenHistory | undefined;
  readonly bannedTokenIds: readonly number[];
  /** undefined: any token may come. Read when the token is drawn. */
  readonly constraint?: TokenConstraint | undefined;
  /** How many tokens the request sampled before: the index into its seed's stream. */
  readonly index: number;
}

export interface SampledToken {
  readonly tokenId: number;
  readonly logprob: TokenLogprob | undefined;
}

export class Sampler {
  readonly #adjusted: Float32Array;
  readonly #weights: Float32Array;
  readonly #shortlist: Shortlist;

  constructor(vocabSize: number) {
    this.#adjusted = new Float32Array(vocabSize);
    this.#weights = new Float32Array(vocabSize);
    this.#shortlist = new Shortlist(vocabSize);
  }

  /**
   * @param logits [vocabSize], not changed.
   * @param greatest the id of the greatest logit, the lowest of equal ones; -1 or absent: it is looked for.
   * @throws RangeError when a logit is NaN, no logit is finite, or the constraint allows no token.
   */
  sample(logits: Float32Array, request: SampleRequest, greatest = -1): SampledToken {
    const { params, index } = request;
    const adjusted = this.#adjust(logits, request);
    const best = adjusted === logits && greatest >= 0 ? greatest : argmax(adjusted);
    const tokenId = params.temperature === 0 ? best : this.#draw(adjusted, best, params, uniform(params.seed, index));
    return { tokenId, logprob: params.topLogprobs < 0 ? undefined : tokenLogprob(logits, tokenId, params.topLogprobs) };
  }

  #adjust(logits: Float32Array, request: SampleRequest): Float32Array {
    const { params, history, bannedTokenIds, constraint } = request;
    const unchanged = history === undefined && constraint === undefined && params.logitBias.length === 0;
    if (unchanged && bannedTokenIds.length === 0) return logits;
    this.#adjusted.set(logits);
    history?.apply(this.#adjusted, params);
    applyBias(this.#adjusted, params.logitBias);
    ban(this.#adjusted, bannedTokenIds);
    if (constraint !== undefined) restrict(this.#adjusted, constraint);
    return this.#adjusted;
  }

  #draw(logits: Float32Array, best: number, params: SamplingParams, random: number): number {
    const max = logits[best];
    const inverse = 1 / params.temperature;
    let total = 0;
    for (let tokenId = 0; tokenId < logits.length; tokenId++) {
      const weight = Math.exp((logits[tokenId] - max) * inverse);
      this.#weights[tokenId] = weight;
      total += weight;
    }
    const filtered = params.topK > 0 || params.topP < 1 || params.minP > 0;
    if (filtered) return this.#shortlist.draw(this.#weights, logits, total, params, random);
    let left = random * total;
    for (let tokenId = 0; tokenId < logits.length; tokenId++) {
      left -= this.#weights[tokenId];
      if (left < 0) return tokenId;
    }
    return best; // rounding: the sum of the rounded weights is a little below the total
  }
}
