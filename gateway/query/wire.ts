/** The JSON of a span query as clients write it: every form that parse reads. */
import type { JsonObject } from "./json.ts";

export interface GenerateOptionsJson {
  /** Name of the model. Absent: the server's model. */
  readonly model?: string | null;
  /** Most tokens of the output. 0 or absent: the server's default. */
  readonly max_tokens?: number | null;
  /** Absent: 0.6. */
  readonly temperature?: number | null;
  readonly top_p?: number | null;
  readonly top_k?: number | null;
  readonly min_p?: number | null;
  readonly seed?: number | null;
  readonly stop?: string | readonly string[] | null;
  readonly presence_penalty?: number | null;
  readonly frequency_penalty?: number | null;
  readonly repetition_penalty?: number | null;
  readonly min_tokens?: number | null;
  readonly ignore_eos?: boolean | null;
  /** What an enclosing generate sees of this one: its input and output ("both"), or its output alone. */
  readonly expose?: "both" | "output" | null;
  /** How fragments and outputs in an ordered join get their KV. */
  readonly reuse?: "exact" | "blend" | null;
  /** Share of the blended tokens that is computed again, 0 to 1. */
  readonly recompute_ratio?: number | null;
  /** Whether rows of the output may choose what they read; absent: as the server has it. */
  readonly sparse?: boolean | { readonly tokens?: number | null; readonly mode?: "now" | "ahead" | null } | null;
  /** Lets a judge over many commutative children become a tree of judges over `arity` children each. */
  readonly reduce?: { readonly arity: number } | null;
}

export interface UserJson {
  readonly user: string;
}
export interface SystemJson {
  readonly system: string;
}
export interface AssistantJson {
  readonly assistant: string;
}
export interface SeqJson {
  readonly seq: readonly QueryJson[];
}
export interface CrossJson {
  readonly cross: readonly QueryJson[];
}
export interface ParJson {
  readonly par: readonly QueryJson[];
}
export interface ChatJson {
  readonly chat: readonly QueryJson[];
}
export interface PlusJson {
  readonly plus: readonly QueryJson[] | { readonly preamble?: QueryJson; readonly children: readonly QueryJson[] };
}
export interface MonadJson {
  readonly monad: QueryJson;
}
export interface GenerateJson {
  readonly g: GenerateOptionsJson & {
    /** A list stands for the seq of its entries. */
    readonly input: QueryJson | readonly QueryJson[];
  };
}
export interface RepeatJson {
  readonly repeat:
    | { readonly n: number; readonly g: GenerateJson["g"] }
    | { readonly n: number; readonly query: GenerateJson };
}
export interface MapJson {
  readonly map: { readonly metadata: GenerateOptionsJson; readonly inputs: readonly string[] };
}
export interface ZipJson {
  readonly zip: { readonly first: QueryJson; readonly second: QueryJson };
}
export interface AugmentJson {
  readonly augment: {
    readonly embedding_model?: string;
    readonly body: QueryJson;
    readonly doc: readonly [name: string, content: { readonly Text: string }];
  };
}
export interface RetrieveJson {
  readonly retrieve: {
    readonly vector_store_ids: readonly string[];
    readonly query: string | QueryJson;
    readonly max_num_results?: number;
    readonly filters?: JsonObject;
  };
}
export interface FragmentJson {
  readonly fragment: { readonly id: string } | { readonly text: string; readonly title?: string };
}

export type QueryJson =
  | UserJson
  | SystemJson
  | AssistantJson
  | SeqJson
  | CrossJson
  | ParJson
  | ChatJson
  | PlusJson
  | MonadJson
  | GenerateJson
  | RepeatJson
  | MapJson
  | ZipJson
  | AugmentJson
  | RetrieveJson
  | FragmentJson;
