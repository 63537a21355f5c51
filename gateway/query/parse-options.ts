/** Parses the fields of a generate, except for its input. */
import {
  booleanOf,
  describe,
  type Fields,
  fieldsOf,
  integerOf,
  isObject,
  listOf,
  numberOf,
  oneOf,
  optional,
  refuse,
  required,
  stringOf,
} from "./check.ts";
import { defaultTemperature, type GenerateOptions } from "./ir.ts";
import { queryLimits as limits } from "./limits.ts";

const optionNames = [
  ...["model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty"],
  ...["frequency_penalty", "repetition_penalty", "min_tokens", "ignore_eos", "expose", "reuse", "recompute_ratio"],
  ...["reduce", "sparse"],
];

/** Model options of OpenAI, vLLM or spnl that this server refuses, since it would otherwise accept and ignore them. */
const unsupported: ReadonlySet<string> = new Set([
  ...["allowed_token_ids", "audio", "bad_words", "best_of", "cache_salt", "chat_template", "chat_template_kwargs"],
  ...["echo", "function_call", "functions", "guided_choice", "guided_grammar", "guided_json", "guided_regex"],
  ...["length_penalty", "logit_bias", "logprobs", "max_completion_tokens", "messages", "metadata", "modalities", "n"],
  ...["parallel_tool_calls", "prediction", "priority", "prompt_cache_key", "prompt_logprobs", "reasoning_effort"],
  ...["response_format", "service_tier", "stop_token_ids", "store", "stream", "stream_options"],
  ...["structured_outputs", "tool_choice", "tools", "top_logprobs", "use_beam_search", "user", "verbosity"],
]);

const generateFields = { known: new Set([...optionNames, "input"]), unsupported };
const mapFields = { known: new Set(optionNames), unsupported };
const reduceFields = { known: new Set(["arity"]) };
const sparseFields = { known: new Set(["tokens", "mode"]) };

/** The fields in the body of `{"g": {…}}`; the input is not parsed. */
export const generateFieldsOf = (value: unknown, path: string): Fields => fieldsOf(value, path, generateFields);

/** The options in the metadata of `{"map": {…}}`. */
export const mapFieldsOf = (value: unknown, path: string): Fields => fieldsOf(value, path, mapFields);

export function optionsOf(fields: Fields, path: string): GenerateOptions {
  const unit = { min: 0, max: 1 };
  const penalty = { min: -limits.maxPenalty, max: limits.maxPenalty };
  const tokens = { min: 0, max: limits.maxTokens };
  const get = <Value>(name: string, check: (value: unknown, path: string) => Value) =>
    optional(fields, name, path, check);
  const number = (name: string, range: { min: number; max: number }) => get(name, (v, at) => numberOf(v, at, range));
  const integer = (name: string, range: { min: number; max: number }) => get(name, (v, at) => integerOf(v, at, range));

  const options: GenerateOptions = {
    model: get("model", (v, at) => stringOf(v, at, { min: 0, max: limits.modelChars })) ?? "",
    maxTokens: integer("max_tokens", tokens) ?? 0,
    temperature: number("temperature", { min: 0, max: limits.maxTemperature }) ?? defaultTemperature,
    topP: get("top_p", topPOf),
    topK: clampTopK(integer("top_k", { min: -1, max: 2 ** 31 - 1 })),
    minP: number("min_p", unit),
    seed: integer("seed", { min: Number.MIN_SAFE_INTEGER, max: limits.maxSeed }),
    presencePenalty: number("presence_penalty", penalty),
    frequencyPenalty: number("frequency_penalty", penalty),
    repetitionPenalty: number("repetition_penalty", {
      min: limits.minRepetitionPenalty,
      max: limits.maxRepetitionPenalty,
    }),
    minTokens: integer("min_tokens", tokens),
    ignoreEos: get("ignore_eos", booleanOf),
    stop: get("stop", stopOf),
    expose: get("expose", (v, at) => oneOf(v, at, ["both", "output"])),
    reuse: get("reuse", (v, at) => oneOf(v, at, ["exact", "blend"])),
    recomputeRatio: number("recompute_ratio", unit),
    reduce: get("reduce", reduceOf),
    sparse: get("sparse", sparseOf),
  };
  if (options.maxTokens > 0 && (options.minTokens ?? 0) > options.maxTokens) {
    refuse(`${path}.min_tokens`, "is more than max_tokens");
  }
  return withoutAbsent(options);
}

function topPOf(value: unknown, path: string): number {
  if (typeof value === "number" && value > 0 && value <= 1) return value;
  return refuse(path, `must be a number above 0 and at most 1, not ${describe(value)}`);
}

/** Clients turn top_k off with 0 or -1, and here 0 does. All values that keep every token become the same number. */
function clampTopK(topK: number | undefined): number | undefined {
  return topK === undefined ? undefined : Math.min(Math.max(0, topK), limits.topK);
}

function stopOf(value: unknown, path: string): readonly string[] {
  const range = { min: 1, max: limits.stopChars };
  if (typeof value === "string") return [stringOf(value, path, range)];
  return listOf(value, path, { min: 0, max: limits.stopStrings }).map((entry, index) =>
    stringOf(entry, `${path}[${index}]`, range),
  );
}

function reduceOf(value: unknown, path: string): { readonly arity: number } {
  const fields = fieldsOf(value, path, reduceFields);
  const range = { min: limits.minReduceArity, max: limits.maxReduceArity };
  return { arity: integerOf(required(fields, "arity", path), `${path}.arity`, range) };
}

function sparseOf(value: unknown, path: string): NonNullable<GenerateOptions["sparse"]> {
  if (typeof value === "boolean") return value;
  if (!isObject(value)) refuse(path, `must be true, false or an object, not ${describe(value)}`);
  const fields = fieldsOf(value, path, sparseFields);
  const range = { min: limits.leastSparseTokens, max: limits.maxTokens };
  const tokens = optional(fields, "tokens", path, (v, at) => integerOf(v, at, range));
  const mode = optional(fields, "mode", path, (v, at) => oneOf(v, at, ["now", "ahead"] as const));
  return { ...(tokens !== undefined && { tokens }), ...(mode !== undefined && { mode }) };
}

/** Removes the fields of absent options, so that equal options are equal objects. */
function withoutAbsent(options: GenerateOptions): GenerateOptions {
  return Object.fromEntries(
    Object.entries(options).filter(([, value]) => value !== undefined),
  ) as unknown as GenerateOptions;
}
