import type { KvFormat } from "./kv-object.ts";
import type { ServedMode } from "./sparse.ts";

/** What a model's folder says of sampling where a request does not (`generation_config.json`). */
export interface SamplingDefaults {
  readonly temperature?: number;
  readonly topP?: number;
  readonly topK?: number;
  readonly minP?: number;
  readonly repetitionPenalty?: number;
}

/** What a worker tells the gateway about its model. Beyond this the gateway reads only the model's text files. */
export interface ModelCard {
  /** Public name in /v1/models: the folder's name, or SPANGATE_MODEL_NAME. */
  readonly id: string;
  /** SHA-256 (hex) over configuration, weights and numeric mode: KV of another digest is another model's. */
  readonly digest: string;
  readonly vocabSize: number;
  /** The most positions that the model allows (max_position_embeddings). */
  readonly contextTokens: number;
  /** How many tokens a block holds. */
  readonly blockTokens: number;
  /** How many blocks the pool has. */
  readonly blockCount: number;
  readonly kvBytesPerBlock: number;
  /** The most prompt rows of a step that also decodes; undefined: the worker does not say. */
  readonly stepPromptTokens?: number;
  /** Token ids that end a generation. */
  readonly eosTokenIds: readonly number[];
  /** What requests that say nothing of it are sampled with; absent: the API's defaults. */
  readonly samplingDefaults?: SamplingDefaults;
  /** "float32", "int8" … and the backend's name, for reports. */
  readonly numericMode: string;
  readonly backend: string;
  /** false: KV stays where it was computed (mx8), so nothing is blended. */
  readonly blends?: false;
  /** How rows can choose what they read, and how they do unless a request says; absent: they read all they see. */
  readonly sparse?: {
    readonly modes: readonly ServedMode[];
    readonly mode: ServedMode;
    /** Tokens that a row chooses unless its request says fewer. */
    readonly mostTokens: number;
  };
  /** What the worker's files of KV hold; absent: it keeps none. */
  readonly kvFormat?: KvFormat;
  /** Memory of the host beside the device's pool; absent: there is none. */
  readonly hostKv?: { readonly blockCount: number; readonly bytesPerBlock: number };
}
