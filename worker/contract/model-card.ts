/** What a worker tells of the model that it serves. The gateway knows nothing else of it but its text files. */
export interface ModelCard {
  /** Public name in /v1/models: the folder's name, or SPANGATE_MODEL_NAME. */
  readonly id: string;
  /** SHA-256 (hex) over configuration, weights and numeric mode: KV of another digest is another model's. */
  readonly digest: string;
  readonly vocabSize: number;
  /** Positions the model allows (max_position_embeddings). */
  readonly contextTokens: number;
  /** Tokens a block holds. */
  readonly blockTokens: number;
  /** Blocks in the pool. */
  readonly blockCount: number;
  readonly kvBytesPerBlock: number;
  /** Rows of prompts that a step has at most when it decodes as well; undefined: not told. */
  readonly stepPromptTokens?: number;
  /** Ids that end a generation. */
  readonly eosTokenIds: readonly number[];
  /** "float32", "int8" … and the backend's name, for reports. */
  readonly numericMode: string;
  readonly backend: string;
}
