/** Messages between gateway and embedder, over Bun's IPC: token ids one way, vectors the other; no text, no tenant. */

/** What the embedder tells about itself, once, when it is ready. */
export interface EmbedderCard {
  /** The name of the model's folder. */
  readonly modelName: string;
  /** Identifies the model: vectors of models with different ids are never compared. */
  readonly modelId: string;
  readonly dimensions: number;
  /** The longest sequence in tokens, special tokens included. */
  readonly maxTokens: number;
  /** Every token id is below it. */
  readonly vocabSize: number;
}

export interface EmbedMessage {
  readonly type: "embed";
  readonly id: number;
  /** Sequences of token ids, each of 1 to `maxTokens`. */
  readonly sequences: readonly Int32Array[];
}

export type EmbedderMessage =
  | { readonly type: "ready"; readonly card: EmbedderCard }
  /** One vector of unit length for each sequence. */
  | { readonly type: "vectors"; readonly id: number; readonly vectors: readonly Float32Array[] }
  | { readonly type: "failed"; readonly id: number }
  /** The model cannot be opened; the process ends after this message. */
  | { readonly type: "fatal"; readonly reason: string };

export interface Embedder {
  readonly card: EmbedderCard;
  embed(sequences: readonly Int32Array[]): Promise<readonly Float32Array[]>;
}

/** Scales to unit length in place; a vector of zeros stays as it is. */
export function normalise(vector: Float32Array): Float32Array {
  let sum = 0;
  for (const value of vector) sum += value * value;
  if (sum > 0) {
    const scale = 1 / Math.sqrt(sum);
    for (let i = 0; i < vector.length; i++) vector[i] *= scale;
  }
  return vector;
}
