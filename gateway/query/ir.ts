/**
 * The span-query tree. A query says what text a model reads, which parts of it commute, and what is generated
 * from what. It is IBM/spnl's tree (seq, cross, plus, par, monad, g, repeat, map, zip, augment) and the paper's
 * retrieve, fragment and chat. Nodes are immutable; a tree may share nodes (a DAG).
 *
 * Sharing has a meaning: *one generate object is one run*. Where a rule shows the same generate at two places, both
 * places show the same sampled output. Two generates that are only equal in structure are two runs.
 */

export type Role = "system" | "user" | "assistant";

/** `{"user": s}`, `{"system": s}`, `{"assistant": s}` */
export interface Message {
  readonly kind: "message";
  readonly role: Role;
  readonly text: string;
}

/** Ordered join: the children stand one after the other in one chain. A `par` also allows them to run concurrently. */
export interface Ordered {
  readonly kind: "seq" | "cross" | "par";
  readonly children: readonly Query[];
}

/**
 * Commutative join: each child is a span of its own. The children do not see each other, and their order does not
 * matter. A preamble (`{"plus": {"preamble": q, "children": [q…]}}`) stands before the children, and they see it.
 */
export interface Plus {
  readonly kind: "plus";
  readonly children: readonly Query[];
  readonly preamble?: Query;
}

/** A part that is run only for its effect (warming). It puts nothing into the prompt. */
export interface Monad {
  readonly kind: "monad";
  readonly child: Query;
}

export interface GenerateOptions {
  /** Name of the model. "": the server's model. */
  readonly model: string;
  /** Most tokens of the output. 0: the server's default. */
  readonly maxTokens: number;
  readonly temperature: number;
  readonly topP?: number;
  readonly topK?: number;
  readonly minP?: number;
  readonly seed?: number;
  readonly presencePenalty?: number;
  readonly frequencyPenalty?: number;
  readonly repetitionPenalty?: number;
  readonly minTokens?: number;
  readonly ignoreEos?: boolean;
  readonly stop?: readonly string[];
  /** What an enclosing generate sees of this one. Absent: "both" as a child of a plus, "output" in an ordered join. */
  readonly expose?: "both" | "output";
  /** How fragments and outputs in an *ordered* join get their KV. Absent: "exact", all is computed in place. */
  readonly reuse?: "exact" | "blend";
  /** Share of the blended tokens that is recomputed with full visibility, 0 to 1. Absent: 0.15. */
  readonly recomputeRatio?: number;
  /** Whether rows of the output may choose what they read (sparse decoding). Absent: as the server has it. */
  readonly sparse?: boolean | { readonly tokens?: number; readonly mode?: "now" | "ahead" };
  /** Allows a judge over many commutative children to become a tree of judges over `arity` children each. */
  readonly reduce?: { readonly arity: number };
}

/** `{"g": {...options, "input": q}}`. In a prompt it stands for its output, which is a message of the assistant. */
export interface Generate {
  readonly kind: "generate";
  readonly options: GenerateOptions;
  readonly input: Query;
}

/** `n` samples of one generate. */
export interface Repeat {
  readonly kind: "repeat";
  readonly n: number;
  readonly generate: Generate;
}

/** One generate for each string. */
export interface MapInputs {
  readonly kind: "map";
  readonly options: GenerateOptions;
  readonly inputs: readonly string[];
}

/** Puts `first` before every child of `second`. */
export interface Zip {
  readonly kind: "zip";
  readonly first: Query;
  readonly second: Query;
}

/** Retrieval over one document that comes with the query. `body` is what is searched for. */
export interface Augment {
  readonly kind: "augment";
  readonly embeddingModel: string;
  readonly body: Query;
  readonly doc: { readonly name: string; readonly text: string };
}

/** The paper's R: the best fragments of corpora for a query. */
export interface Retrieve {
  readonly kind: "retrieve";
  readonly vectorStoreIds: readonly string[];
  readonly query: string | Query;
  readonly maxResults: number;
  readonly filters?: unknown;
}

/** The paper's F: one fragment, of a corpus by id or given as text. */
export type Fragment =
  | { readonly kind: "fragment"; readonly id: string }
  | { readonly kind: "fragment"; readonly text: string; readonly title?: string };

/** The paper's C: a generate with the server's defaults over an ordered join. */
export interface Chat {
  readonly kind: "chat";
  readonly children: readonly Query[];
}

/** The result of a resolved retrieve or augment. Only the resolver makes it; no client can send it. */
export interface Retrieved {
  readonly kind: "retrieved";
  readonly fragments: readonly Query[];
}

export type Query =
  | Message
  | Ordered
  | Plus
  | Monad
  | Generate
  | Repeat
  | MapInputs
  | Zip
  | Augment
  | Retrieve
  | Fragment
  | Chat
  | Retrieved;

/** The temperature of spnl's serde where none is given. */
export const defaultTemperature = 0.6;
export const defaultRecomputeRatio = 0.15;

/** The children of a node, each with the path step that error messages and explain use (`.g.input`, `.plus[2]`). */
export function childrenOf(query: Query): readonly (readonly [step: string, child: Query])[] {
  const listed = (name: string, children: readonly Query[]) =>
    children.map((child, index) => [`.${name}[${index}]`, child] as const);
  switch (query.kind) {
    case "message":
    case "fragment":
    case "map":
      return [];
    case "seq":
    case "cross":
    case "par":
    case "chat":
      return listed(query.kind, query.children);
    case "plus":
      if (query.preamble === undefined) return listed("plus", query.children);
      return [[".plus.preamble", query.preamble], ...listed("plus.children", query.children)];
    case "monad":
      return [[".monad", query.child]];
    case "generate":
      return [[".g.input", query.input]];
    case "repeat":
      return [[".repeat", query.generate]];
    case "zip":
      return [
        [".zip.first", query.first],
        [".zip.second", query.second],
      ];
    case "augment":
      return [[".augment.body", query.body]];
    case "retrieve":
      return typeof query.query === "string" ? [] : [[".retrieve.query", query.query]];
    case "retrieved":
      return listed("retrieved", query.fragments);
  }
}
