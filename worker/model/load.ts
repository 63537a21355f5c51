/** Opens a model folder in the Hugging Face layout: configuration, checked weights, identity. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import type { SamplingDefaults } from "../contract/model-card.ts";
import { type ModelConfig, parseModelConfig } from "./config.ts";
import { modelDigest } from "./digest.ts";
import { ModelError } from "./model-error.ts";
import { modelNameOf } from "./model-folder.ts";
import { readJson, Weights } from "./weights.ts";

export type { ModelConfig } from "./config.ts";

export interface LoadedModel {
  readonly id: string;
  readonly config: ModelConfig;
  readonly weights: Weights;
  readonly digest: string;
  readonly eosTokenIds: readonly number[];
  readonly samplingDefaults: SamplingDefaults;
}

/** @throws ModelError naming the file and field. */
export function loadModel(folder: string, numericMode: string): LoadedModel {
  const model = readModel(folder);
  return { ...model, digest: modelDigest(folder, model.weights.files, numericMode) };
}

/**
 * Reads everything of a model but its tensors' bytes: enough to know that it can be served.
 * @throws ModelError naming the file and field.
 */
export function readModel(folder: string): Omit<LoadedModel, "digest"> {
  const config = readModelConfig(folder);
  const weights = new Weights(folder, config);
  return { id: modelNameOf(folder), config, weights, ...readGenerationConfig(folder, config) };
}

/** Reads config.json alone. @throws ModelError naming the file and field */
export function readModelConfig(folder: string): ModelConfig {
  const configFile = join(folder, "config.json");
  if (!existsSync(configFile))
    throw new ModelError(
      `${folder}: no config.json there; a model's folder has config.json, *.safetensors and tokenizer.json`,
    );
  return parseModelConfig(readJson(configFile), configFile);
}

const generationSchema = z.object({
  do_sample: z.boolean().nullish(),
  temperature: z.number().min(0).max(100).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z
    .int()
    .min(-1)
    .max(2 ** 20)
    .nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  repetition_penalty: z.number().min(0.01).max(100).nullish(),
});

/**
 * `generation_config.json`, as transformers reads it: its end tokens take precedence over those of config.json, and
 * `do_sample: false` means greedy decoding whatever the temperature. Without the file config.json says all.
 * @throws ModelError naming the field
 */
function readGenerationConfig(
  folder: string,
  config: ModelConfig,
): Pick<LoadedModel, "eosTokenIds" | "samplingDefaults"> {
  const file = join(folder, "generation_config.json");
  if (!existsSync(file)) return { eosTokenIds: config.eosTokenIds, samplingDefaults: {} };
  const tokenId = z.number().int().min(0).lt(config.vocabSize);
  const eosTokens = z.union([tokenId, z.array(tokenId).max(64)]).nullish();
  const parsed = generationSchema.extend({ eos_token_id: eosTokens }).safeParse(readJson(file));
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    const field = issue?.path[0] ?? "";
    const what = field === "eos_token_id" ? `must be token ids below ${config.vocabSize}` : issue?.message;
    throw new ModelError(`${file}: "${String(field)}" ${what}`);
  }
  const given = parsed.data;
  const named = [given.eos_token_id ?? []].flat();
  const temperature = given.do_sample === false ? 0 : given.temperature;
  return {
    eosTokenIds: named.length > 0 ? named : config.eosTokenIds,
    samplingDefaults: {
      ...(temperature != null && { temperature }),
      ...(given.top_p != null && { topP: given.top_p }),
      ...(given.top_k != null && { topK: Math.max(0, given.top_k) }),
      ...(given.min_p != null && { minP: given.min_p }),
      ...(given.repetition_penalty != null && { repetitionPenalty: given.repetition_penalty }),
    },
  };
}
