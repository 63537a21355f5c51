/** How an answer's tokens are drawn and where it ends: fields that the APIs which generate text share. */
import { z } from "zod";
import { limits as contractLimits } from "../../../worker/contract/limits.ts";
import { limits } from "../../config.ts";
import type { AnswerParams } from "../../generate/requests.ts";
import { optional, tokenId } from "../transport/fields.ts";
import { responseFormat } from "./response-format.ts";

const bias = z.number().min(-100).max(100);
const logitBias = z
  .record(z.string().regex(/^\d{1,9}$/, "must be a token id"), bias)
  .refine((entries) => Object.keys(entries).length <= limits.logitBiases, `at most ${limits.logitBiases} entries`)
  .transform((entries) => Object.entries(entries).map(([id, value]): [number, number] => [Number(id), value]));

export const stopString = z.string().min(1).max(limits.stopChars);
const stop = z.union([stopString.transform((text) => [text]), z.array(stopString).max(limits.stopStrings)]);

const penalty = optional(z.number().min(-2).max(2));
/** How tokens are drawn: the same in every API that generates text. */
export const samplingFields = {
  temperature: optional(z.number().min(0).max(2)),
  top_p: optional(z.number().gt(0).max(1)),
  top_k: optional(
    z
      .int()
      .min(-1)
      .max(2 ** 31 - 1),
  ),
  min_p: optional(z.number().min(0).max(1)),
  presence_penalty: penalty,
  frequency_penalty: penalty,
  repetition_penalty: optional(z.number().min(0.01).max(2)),
  // Each choice takes a seed of its own, counted on from this one.
  seed: optional(z.int().max(Number.MAX_SAFE_INTEGER - contractLimits.maxChoices)),
  stop: optional(stop),
};

/** All that `generateParams` reads and the answer's format, as chat has them. */
export const generateFields = {
  min_tokens: optional(z.int().min(0)),
  ignore_eos: optional(z.boolean()),
  ...samplingFields,
  stop_token_ids: optional(z.array(tokenId).max(contractLimits.maxStopTokens)),
  logprobs: optional(z.boolean()),
  top_logprobs: optional(z.int().min(0).max(contractLimits.maxTopLogprobs)),
  logit_bias: optional(logitBias),
  response_format: optional(responseFormat),
};

type GenerateFields = Omit<typeof generateFields, "response_format">;
type GenerateBody = Partial<{ [Name in keyof GenerateFields]: z.output<GenerateFields[Name]> }>;

/** What is absent has chat's default, but for what a model's folder may have a default for. */
export function generateParams(body: GenerateBody): AnswerParams {
  return {
    minTokens: body.min_tokens ?? 0,
    ignoreEos: body.ignore_eos ?? false,
    stopTokenIds: body.stop_token_ids ?? [],
    sampling: {
      temperature: body.temperature ?? undefined,
      topP: body.top_p ?? undefined,
      topK: body.top_k == null ? undefined : Math.min(Math.max(0, body.top_k), limits.topK),
      minP: body.min_p ?? undefined,
      presencePenalty: body.presence_penalty ?? 0,
      frequencyPenalty: body.frequency_penalty ?? 0,
      repetitionPenalty: body.repetition_penalty ?? undefined,
      seed: body.seed ?? crypto.getRandomValues(new Uint32Array(1))[0] ?? 0,
      logitBias: body.logit_bias ?? [],
      topLogprobs: body.logprobs === true ? (body.top_logprobs ?? 0) : -1,
    },
  };
}
