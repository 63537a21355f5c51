/**
 * A sentence-embedding model in ONNX, as sentence-transformers exports it, with 1_Pooling/config.json beside what every
 * text model has.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { type Embedder, normalise } from "../contract/embedding.ts";
import { ModelError } from "../model/model-error.ts";
import { modelNameOf } from "../model/model-folder.ts";
import { OnnxTextModel, readChecked, type TypedSequence } from "./onnx-text-model.ts";

const sentenceSchema = z.looseObject({ max_seq_length: z.number().int().min(1).nullish() });
const poolingSchema = z.looseObject({
  pooling_mode_cls_token: z.boolean().default(false),
  pooling_mode_mean_tokens: z.boolean().default(false),
  pooling_mode_max_tokens: z.boolean().default(false),
  pooling_mode_lasttoken: z.boolean().default(false),
});

type Pooling = "cls" | "mean" | "last";

/** @throws ModelError naming the file and what is wrong with it */
export async function openOnnxEmbedder(folder: string, threadCount: number): Promise<Embedder> {
  const pooling = poolingOf(folder);
  const model = await OnnxTextModel.open(folder, threadCount);
  const { vocab_size: vocabSize } = model.config;
  const vectorsOf = (sequences: readonly TypedSequence[]) => runVectors(model, pooling, sequences);
  const [probe] = await vectorsOf([{ tokenIds: Int32Array.of(Math.min(1, vocabSize - 1)) }]);
  const sentence = readChecked(join(folder, "sentence_bert_config.json"), sentenceSchema);
  return {
    card: {
      modelName: modelNameOf(folder),
      modelId: `onnx-1:${digestOf(model.file, pooling)}`,
      dimensions: probe?.length ?? 0,
      maxTokens: model.maxTokens(sentence?.max_seq_length),
      vocabSize,
    },
    embed: (sequences) =>
      model.inRuns(
        sequences.map((tokenIds) => ({ tokenIds })),
        vectorsOf,
      ),
  };
}

/** A folder that names no way of pooling gets the mean over the tokens. */
function poolingOf(folder: string): Pooling {
  const file = join(folder, "1_Pooling", "config.json");
  const modes = readChecked(file, poolingSchema);
  if (modes === undefined) return "mean";
  const named: Pooling[] = [];
  if (modes.pooling_mode_cls_token) named.push("cls");
  if (modes.pooling_mode_mean_tokens) named.push("mean");
  if (modes.pooling_mode_lasttoken) named.push("last");
  const [only] = named;
  if (named.length !== 1 || only === undefined || modes.pooling_mode_max_tokens) {
    throw new ModelError(`${file}: exactly one of the cls token, the mean and the last token must be pooled`);
  }
  return only;
}

function digestOf(file: string, pooling: Pooling): string {
  return new Bun.CryptoHasher("sha256").update(readFileSync(file)).update(pooling).digest("hex");
}

async function runVectors(
  model: OnnxTextModel,
  pooling: Pooling,
  sequences: readonly TypedSequence[],
): Promise<readonly Float32Array[]> {
  const { data, dims } = await model.run(sequences, "sentence_embedding");
  const [, second = 0, third] = dims;
  if (third === undefined) {
    return sequences.map((_, row) => normalise(data.slice(row * second, (row + 1) * second)));
  }
  return sequences.map(({ tokenIds }, row) => {
    const start = row * second * third;
    return pool(pooling, data.subarray(start, start + tokenIds.length * third), tokenIds.length, third);
  });
}

/** @param states one row for each token */
function pool(pooling: Pooling, states: Float32Array, tokens: number, width: number): Float32Array {
  if (pooling === "cls") return normalise(states.slice(0, width));
  if (pooling === "last") return normalise(states.slice((tokens - 1) * width, tokens * width));
  const sum = new Float32Array(width);
  for (let i = 0; i < states.length; i++) sum[i % width] += states[i];
  return normalise(sum);
}
