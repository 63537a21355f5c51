/**
 * A cross-encoder in ONNX: it reads a question and a text in one sequence and gives one logit, the higher the better the
 * text answers.
 */
import { join } from "node:path";
import { z } from "zod";
import type { Reranker } from "../contract/embedding.ts";
import { ModelError } from "../model/model-error.ts";
import { modelNameOf } from "../model/model-folder.ts";
import { OnnxTextModel, readChecked, type TypedSequence } from "./onnx-text-model.ts";

/** Tokenizers that were saved without a limit say 1e30. */
const tokenizerSchema = z.looseObject({ model_max_length: z.number().min(1).nullish() });

/** @throws ModelError naming the file and what is wrong with it */
export async function openOnnxReranker(folder: string, threadCount: number): Promise<Reranker> {
  const model = await OnnxTextModel.open(folder, threadCount);
  const logitsOf = (sequences: readonly TypedSequence[]) => runLogits(model, sequences);
  const token = Math.min(1, model.config.vocab_size - 1);
  await logitsOf([
    { tokenIds: Int32Array.of(token, token), secondFrom: 1 },
    { tokenIds: Int32Array.of(token), secondFrom: 1 },
  ]);
  const tokenizer = readChecked(join(folder, "tokenizer_config.json"), tokenizerSchema);
  return {
    card: { modelName: modelNameOf(folder), maxTokens: model.maxTokens(tokenizer?.model_max_length) },
    score: (pairs) => model.inRuns(pairs, logitsOf),
  };
}

async function runLogits(model: OnnxTextModel, sequences: readonly TypedSequence[]): Promise<readonly number[]> {
  const { data, dims } = await model.run(sequences, "logits");
  const [rows, columns = 1] = dims;
  if (rows !== sequences.length || columns !== 1 || dims.length > 2) {
    const shape = `[${dims.join(", ")}] for ${sequences.length} pairs`;
    const wanted = "a cross-encoder gives one logit for each (sequence classification with one label)";
    throw new ModelError(`${model.file}: its output has the shape ${shape}; ${wanted}`);
  }
  if (!data.every(Number.isFinite)) throw new ModelError(`${model.file}: a logit is no finite number`);
  return [...data];
}
