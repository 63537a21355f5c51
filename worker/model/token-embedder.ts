/**
 * Makes sentence vectors from the loaded model's token embeddings alone, without a forward pass. From each token's row
 * the mean row is subtracted; the result has unit length and the weight log(1 + id). Byte-pair vocabularies are ordered
 * by frequency, so by Zipf's law that weight measures how rare a token is (as in Model2Vec). It finds texts with
 * similar words; a sentence-embedding model is better.
 */
import { openSync, readSync } from "node:fs";
import { type Embedder, type EmbedderCard, normalise } from "../contract/embedding.ts";
import { loadModel } from "./load.ts";
import { ModelError } from "./model-error.ts";
import { dtypeBytes } from "./safetensors.ts";
import { applyScales, rowElements, type StoredTensor, widen } from "./stored-form.ts";

/** Wider rows are folded to this many numbers by a random projection, whose signs come from a counter. */
const maxDimensions = 512;
/** How many rows, spread evenly over the vocabulary, the mean is computed from. */
const meanRows = 4_096;
const maxTokens = 8_192;

/** @throws ModelError */
export function openTokenEmbedder(folder: string, name?: string): Embedder {
  const model = loadModel(folder, "embedding");
  const rows = new Rows(model.weights.info("model.embed_tokens.weight"));
  const { hiddenSize, vocabSize } = model.config;
  const dimensions = Math.min(hiddenSize, maxDimensions);
  const card: EmbedderCard = {
    modelName: name ?? model.id,
    modelId: `token-embeddings-1:${model.digest}`,
    dimensions,
    maxTokens,
    vocabSize,
  };
  const mean = meanOf(rows, vocabSize, hiddenSize);
  const embedOne = (tokenIds: Int32Array): Float32Array => {
    const sum = new Float32Array(hiddenSize);
    for (const id of tokenIds) {
      const row = rows.read(id);
      for (let i = 0; i < hiddenSize; i++) row[i] -= mean[i];
      normalise(row);
      const weight = Math.log(1 + id);
      for (let i = 0; i < hiddenSize; i++) sum[i] += weight * row[i];
    }
    return normalise(dimensions === hiddenSize ? sum : fold(sum, dimensions));
  };
  return { card, embed: (sequences) => Promise.resolve(sequences.map(embedOne)) };
}

/**
 * Reads rows of a matrix from its file, each widened to float32. The file stays open and is read where a row stands:
 * Bun maps a file into memory only for who may write it, and a model's folder may be another user's.
 */
class Rows {
  readonly #fd: number;
  readonly #tensor: StoredTensor;
  readonly #width: number;

  constructor(tensor: StoredTensor) {
    this.#fd = openSync(tensor.file, "r");
    this.#tensor = tensor;
    this.#width = rowElements(tensor.shape);
  }

  read(row: number): Float32Array {
    const { dtype, start } = this.#tensor;
    const bytes = new Uint8Array(this.#width * dtypeBytes[dtype]);
    if (readSync(this.#fd, bytes, 0, bytes.length, start + row * bytes.length) !== bytes.length) {
      throw new ModelError("the file of token embeddings has become shorter");
    }
    const values = widen(dtype, bytes);
    applyScales(values, this.#tensor, row * this.#width);
    return values;
  }
}

function meanOf(rows: Rows, vocabSize: number, width: number): Float32Array {
  const count = Math.min(vocabSize, meanRows);
  const mean = new Float32Array(width);
  for (let n = 0; n < count; n++) {
    const row = rows.read(Math.floor((n * vocabSize) / count));
    for (let i = 0; i < width; i++) mean[i] += row[i] / count;
  }
  return mean;
}

/** Sparse random projection: each number is added to one place or subtracted from it, which nearly keeps angles. */
function fold(vector: Float32Array, dimensions: number): Float32Array {
  const folded = new Float32Array(dimensions);
  for (let i = 0; i < vector.length; i++) {
    let hash = Math.imul(i + 1, 0x9e3779b1);
    hash = Math.imul(hash ^ (hash >>> 15), 0x85ebca6b);
    hash ^= hash >>> 13;
    folded[(hash >>> 1) % dimensions] += (hash & 1) === 1 ? vector[i] : -vector[i];
  }
  return folded;
}
