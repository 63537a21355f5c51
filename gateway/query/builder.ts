/**
 * Span queries written in TypeScript, as the JSON that the server reads:
 * `q.g({ model }, q.cross(q.system("…"), q.plus(q.fragment({ id }), q.fragment({ id: other })), q.user("…")))`.
 * Only types are checked here; the server says what else is wrong, by path.
 */

import type { Augment, Message } from "./ir.ts";
import type {
  AssistantJson,
  AugmentJson,
  ChatJson,
  CrossJson,
  FragmentJson,
  GenerateJson,
  GenerateOptionsJson,
  MapJson,
  MonadJson,
  ParJson,
  PlusJson,
  QueryJson,
  RepeatJson,
  RetrieveJson,
  SeqJson,
  SystemJson,
  UserJson,
  ZipJson,
} from "./wire.ts";

/** A part of a query; a string is a message of the user. */
export type Part = QueryJson | string;

const nodeOf = (part: Part): QueryJson => (typeof part === "string" ? { user: part } : part);
const nodesOf = (parts: readonly Part[]): readonly QueryJson[] => parts.map(nodeOf);

export interface AugmentDocument {
  readonly name: string;
  readonly text: string;
  readonly embeddingModel?: string;
}

export const q = {
  user: (text: string): UserJson => ({ user: text }),
  system: (text: string): SystemJson => ({ system: text }),
  assistant: (text: string): AssistantJson => ({ assistant: text }),

  /** An ordered join. */
  seq: (...parts: readonly Part[]): SeqJson => ({ seq: nodesOf(parts) }),
  cross: (...parts: readonly Part[]): CrossJson => ({ cross: nodesOf(parts) }),
  /** An ordered join whose parts may run concurrently. */
  par: (...parts: readonly Part[]): ParJson => ({ par: nodesOf(parts) }),
  /** A commutative join: the parts do not see each other, and their order does not matter. */
  plus: (...parts: readonly Part[]): PlusJson => ({ plus: nodesOf(parts) }),
  /** A commutative join whose parts all see the preamble before them. */
  plusAfter: (preamble: Part, ...parts: readonly Part[]): PlusJson => ({
    plus: { preamble: nodeOf(preamble), children: nodesOf(parts) },
  }),
  /** A part that is run only for its effect (warming). */
  monad: (part: Part): MonadJson => ({ monad: nodeOf(part) }),

  /** A generate. Several parts become a seq. */
  g: (options: GenerateOptionsJson, input: Part, ...more: readonly Part[]): GenerateJson => ({
    g: { ...options, input: more.length === 0 ? nodeOf(input) : { seq: nodesOf([input, ...more]) } },
  }),
  /** `n` samples of one generate. */
  repeat: (n: number, generate: GenerateJson): RepeatJson => ({ repeat: { n, g: generate.g } }),
  /** One generate for each text. */
  map: (options: GenerateOptionsJson, inputs: readonly string[]): MapJson => ({ map: { metadata: options, inputs } }),
  /** Puts `first` before every part of `second`. */
  zip: (first: Part, second: Part): ZipJson => ({ zip: { first: nodeOf(first), second: nodeOf(second) } }),
  /** A generate with the server's defaults over an ordered join. */
  chat: (...parts: readonly Part[]): ChatJson => ({ chat: nodesOf(parts) }),

  /** The parts of an attached document that fit the body best. */
  augment: (body: Part, { name, text, embeddingModel }: AugmentDocument): AugmentJson => ({
    augment: {
      ...(embeddingModel === undefined ? {} : { embedding_model: embeddingModel }),
      body: nodeOf(body),
      doc: [name, { Text: text }],
    },
  }),
  /** The best fragments of corpora for a question, which may be a text or a query's output. */
  retrieve: (fields: RetrieveJson["retrieve"]): RetrieveJson => ({ retrieve: fields }),
  /** One fragment, stored (`id`) or sent along (`text`). */
  fragment: (fields: FragmentJson["fragment"]): FragmentJson => ({ fragment: fields }),
} as const;

/** One user message for each chunk of a document, as IBM/spnl writes them: the chunk's number is part of the text. */
export function augmentFragments({ doc }: Augment, chunks: readonly string[]): readonly Message[] {
  const baseName = doc.name.split(/[/\\]/).at(-1) ?? "";
  return chunks.map((chunk, index) => ({
    kind: "message",
    role: "user",
    text: `Relevant Document @base-${baseName}-${index}: ${chunk}`,
  }));
}
