/**
 * Messages between gateway and embedder, over Bun's IPC: token ids one way, vectors and scores the other; no text, no
 * tenant.
 */

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

/** What the embedder tells about the cross-encoder that it has opened beside the embedding model. */
export interface RerankerCard {
  /** The name of the model's folder. */
  readonly modelName: string;
  /** The longest pair in tokens, special tokens included. */
  readonly maxTokens: number;
}

/** Two texts in one sequence, as a cross-encoder reads them. */
export interface TokenPair {
  readonly tokenIds: Int32Array;
  /** Where the second text's part begins: from there on the tokens have the type 1. */
  readonly secondFrom: number;
}

export interface EmbedMessage {
  readonly type: "embed";
  readonly id: number;
  /** Sequences of token ids, each of 1 to `maxTokens`. */
  readonly sequences: readonly Int32Array[];
}

export interface ScoreMessage {
  readonly type: "score";
  readonly id: number;
  readonly pairs: readonly TokenPair[];
}

export type EmbedderMessage =
  | { readonly type: "ready"; readonly card: EmbedderCard; readonly reranker: RerankerCard | undefined }
  /** One vector of unit length for each sequence. */
  | { readonly type: "vectors"; readonly id: number; readonly vectors: readonly Float32Array[] }
  /** One logit for each pair. */
  | { readonly type: "scores"; readonly id: number; readonly scores: readonly number[] }
  | { readonly type: "failed"; readonly id: number }
  /** The model cannot be opened; the process ends after this message. */
  | { readonly type: "fatal"; readonly reason: string };

export interface Embedder {
  readonly card: EmbedderCard;
  embed(sequences: readonly Int32Array[]): Promise<readonly Float32Array[]>;
}

export interface Reranker {
  readonly card: RerankerCard;
  score(pairs: readonly TokenPair[]): Promise<readonly number[]>;
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
