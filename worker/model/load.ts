/** Opens a model folder in the Hugging Face layout: configuration, checked weights, identity. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { type ModelConfig, parseModelConfig } from "./config.ts";
import { modelDigest } from "./digest.ts";
import { ModelError } from "./model-error.ts";
import { modelNameOf } from "./model-folder.ts";
import { readJson, Weights } from "./weights.ts";

export interface LoadedModel {
  readonly id: string;
  readonly config: ModelConfig;
  readonly weights: Weights;
  readonly digest: string;
  readonly eosTokenIds: readonly number[];
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
  const configFile = join(folder, "config.json");
  if (!existsSync(configFile))
    throw new ModelError(
      `${folder}: no config.json there; a model's folder has config.json, *.safetensors and tokenizer.json`,
    );
  const config = parseModelConfig(readJson(configFile), configFile);
  const weights = new Weights(folder, config);
  return { id: modelNameOf(folder), config, weights, eosTokenIds: readEosTokenIds(folder, config) };
}

/** End tokens in generation_config.json take precedence over those in config.json (as in transformers). */
function readEosTokenIds(folder: string, config: ModelConfig): readonly number[] {
  const file = join(folder, "generation_config.json");
  if (!existsSync(file)) return config.eosTokenIds;
  const tokenId = z.number().int().min(0).lt(config.vocabSize);
  const parsed = z
    .object({ eos_token_id: z.union([tokenId, z.array(tokenId).max(64)]).nullish() })
    .safeParse(readJson(file));
  if (!parsed.success) throw new ModelError(`${file}: "eos_token_id" must be token ids below ${config.vocabSize}`);
  const named = [parsed.data.eos_token_id ?? []].flat();
  return named.length > 0 ? named : config.eosTokenIds;
}
