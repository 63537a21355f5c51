/** What the span-query routes answer with: the fields that clients read. */
import type { JsonValue } from "../query/json.ts";

export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  readonly prompt_tokens_details: { readonly cached_tokens: number; readonly cache_write_tokens?: number };
}

export interface SpanSummary {
  readonly id: string;
  readonly tokens: number;
  /** "computed" when any part of the span was computed, else the farthest tier that a part of it was brought from. */
  readonly source: "device" | "host" | "disk" | "s3" | "computed";
}

export interface SpangateReport {
  readonly request_id: string;
  readonly worker: string;
  readonly queue_ms: number;
  readonly prefill_ms: number;
  readonly ttft_ms: number;
  /** Spans of the outermost generation. */
  readonly spans: readonly SpanSummary[];
  /** Every generation of the tree, inner ones before those that read them. */
  readonly generates: readonly GenerateSummary[];
  /** Tokens of spans that were computed before the generations that read them. */
  readonly prepared: { readonly tokens: number; readonly computed_tokens: number };
  /** With `reuse: "blend"`: tokens whose KV was copied, and those of them that were computed again. */
  readonly blend?: { readonly tokens: number; readonly recomputed_tokens: number };
  /** What sparse decoding did; absent: every row read all it saw. */
  readonly sparse?: SparseSummary;
  /** Absent: the prompts had nothing to cite. */
  readonly citations?: readonly QuotedSource[];
}

/** Counted where rows chose what they read, over all generations together. A list is of a layer and KV head. */
export interface SparseSummary {
  readonly mode: "now" | "ahead";
  /** Tokens that a row chose at most. */
  readonly selected_tokens: number;
  /** Tokens of answers whose rows chose, and of those whose rows read all they saw. */
  readonly steps: number;
  readonly dense_steps: number;
  /** Lists that were chosen, and those that the row's own query chose again. */
  readonly refreshes: number;
  readonly chosen_again: number;
  /** Tokens copied to be read, over all lists. */
  readonly changed: number;
  readonly rectified_tokens: number;
  /** Part of the attention weights that was read, and part of the exact choice that was chosen; null: not measured. */
  readonly mass: number | null;
  readonly overlap: number | null;
}

/** A sentence of an answer that rests on a sentence of a document. */
export interface QuotedSource {
  /** Absent: the document came with the request. */
  readonly filename?: string;
  readonly title?: string;
  readonly page?: number;
  readonly page_name?: string;
  readonly quote: string;
}

export interface GenerateSummary {
  /** Path of the generation in the query as it was sent. */
  readonly path: string;
  /** Number of the sample, in a repeat. */
  readonly index: number;
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly cached_tokens: number;
  readonly ttft_ms: number;
  readonly finish_reason: string;
}

interface AnswerHead {
  readonly id: string;
  readonly created: number;
  readonly model: string;
}

interface WholeAnswer extends AnswerHead {
  readonly usage: Usage;
  readonly spangate: SpangateReport;
}

/** Answer of a `g`, or of a `repeat` with n choices. */
export interface ChatAnswer extends WholeAnswer {
  readonly object: "chat.completion";
  readonly choices: readonly {
    readonly index: number;
    readonly message: { readonly role: "assistant"; readonly content: string };
    readonly finish_reason: string;
  }[];
}

/** Answer of a `map`: one choice for each text. */
export interface TextAnswer extends WholeAnswer {
  readonly object: "text_completion";
  readonly choices: readonly { readonly index: number; readonly text: string; readonly finish_reason: string }[];
}

export type QueryAnswer = ChatAnswer | TextAnswer;

interface Chunk<Choice> extends AnswerHead {
  readonly choices: readonly (Choice & { readonly index: number; readonly finish_reason: string | null })[];
  /** In the last chunk, whose choices are empty. */
  readonly usage?: Usage | null;
  readonly spangate?: SpangateReport;
}

export interface ChatChunk extends Chunk<{ readonly delta: { readonly content?: string | null } }> {
  readonly object: "chat.completion.chunk";
}

export interface TextChunk extends Chunk<{ readonly text: string }> {
  readonly object: "text_completion";
}

export type QueryChunk = ChatChunk | TextChunk;

/** Texts of an answer, by the index of their choice. */
export function textsOf(answer: QueryAnswer): readonly string[] {
  const texts =
    answer.object === "chat.completion"
      ? answer.choices.map(({ index, message }) => [index, message.content] as const)
      : answer.choices.map(({ index, text }) => [index, text] as const);
  return [...texts].sort(([a], [b]) => a - b).map(([, text]) => text);
}

export interface Piece {
  readonly index: number;
  readonly text: string;
  /** true: no more text of this choice follows. */
  readonly isLast: boolean;
}

/** What a chunk adds: one piece for each of its choices. */
export function piecesOf(chunk: QueryChunk): readonly Piece[] {
  return chunk.choices.map((choice) => {
    const text = "delta" in choice ? (choice.delta.content ?? "") : choice.text;
    return { index: choice.index, text, isLast: choice.finish_reason !== null };
  });
}

export interface Prepared {
  readonly spans: readonly SpanSummary[];
  readonly tokens: number;
  readonly computed_tokens: number;
}

export interface Drawing {
  /** A tree of lines. */
  readonly text: string;
  readonly svg: string;
}

export interface Explanation {
  /** The query as it was sent, in canonical form. */
  readonly query: JsonValue;
  /** What each rule did, in order; `path` is of the node that it replaced. */
  readonly steps: readonly { readonly rule: string; readonly path: string; readonly [field: string]: unknown }[];
  readonly rewritten: JsonValue;
  /** For each generation its runs: lengths, block keys, what is held now. */
  readonly plan: JsonValue;
  readonly drawing: { readonly before: Drawing; readonly after: Drawing };
}

export interface BulkItem {
  /** Unique in the request; the number of the line if absent. */
  readonly id?: string;
  readonly query: object;
}

export interface BulkSummary {
  readonly id: string;
  readonly status: "running" | "completed" | "cancelled";
  readonly counts: { readonly total: number; readonly completed: number; readonly failed: number };
  readonly [field: string]: unknown;
}

export interface ErrorBody {
  readonly message: string;
  readonly type?: string;
  readonly param?: string | null;
  readonly code?: string | null;
}

/** One line of a bulk answer: first and last the bulk itself, between them a result each as it finishes. */
export type BulkLine =
  | { readonly bulk: BulkSummary }
  | { readonly id: string; readonly index: number; readonly response: QueryAnswer }
  | { readonly id: string; readonly index: number; readonly error: ErrorBody };
