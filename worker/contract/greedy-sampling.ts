/** Sampling with every option off: the most probable token, no log-probabilities. */
import type { GenerateParams, SamplingParams } from "./messages.ts";

export const greedySampling: SamplingParams = Object.freeze({
  temperature: 0,
  topP: 1,
  topK: 0,
  minP: 0,
  presencePenalty: 0,
  frequencyPenalty: 0,
  repetitionPenalty: 1,
  seed: 0,
  logitBias: [],
  topLogprobs: -1,
});

/** Parameters that only compute and keep a plan's runs: nothing is sampled. */
export const prepareOnly: GenerateParams = Object.freeze({
  maxTokens: 0,
  minTokens: 0,
  ignoreEos: false,
  stopTokenIds: [],
  sampling: greedySampling,
});
