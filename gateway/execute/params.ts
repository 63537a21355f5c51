/** Turns a generate's options into the parameters that the worker takes. */
import type { GenerateParams } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { ApiError } from "../base/errors.ts";
import type { GenerateOptions } from "../query/ir.ts";

/**
 * Parameters of sample number `index` of a generate. Each sample draws from its own stream of random numbers.
 * @param seed seed of the first sample
 * @throws ApiError invalid_value
 */
export function generateParams(
  options: GenerateOptions,
  maxTokens: number,
  seed: number,
  index: number,
  path: string,
): GenerateParams {
  const minTokens = options.minTokens ?? 0;
  if (minTokens > maxTokens) {
    const param = `${path}.g.min_tokens`;
    throw new ApiError("invalid_value", {
      message: `${param}: is more than max_tokens, which is ${maxTokens}.`,
      param,
    });
  }
  return {
    maxTokens,
    minTokens,
    ignoreEos: options.ignoreEos ?? false,
    stopTokenIds: [],
    sampling: {
      temperature: options.temperature,
      topP: options.topP ?? 1,
      topK: options.topK ?? 0,
      minP: options.minP ?? 0,
      presencePenalty: options.presencePenalty ?? 0,
      frequencyPenalty: options.frequencyPenalty ?? 0,
      repetitionPenalty: options.repetitionPenalty ?? 1,
      seed: seed + index,
      logitBias: [],
      topLogprobs: -1,
    },
  };
}

export const randomSeed = (): number => crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;

/** Checks that the server has this model. "": any model. @throws ApiError model_not_found */
export function requireModel(card: ModelCard, name: string, param: string): void {
  if (name === "" || name === card.id) return;
  throw new ApiError("model_not_found", {
    message: `${param}: the model '${name.slice(0, 64)}' does not exist.`,
    param,
  });
}
