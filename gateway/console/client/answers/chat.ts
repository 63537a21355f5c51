/** A question to the server, and its answer as it comes. */
import { stream } from "../kit/api.ts";
import type { SpanReport } from "./sources.tsx";

export interface Citation {
  readonly filename?: string;
  readonly title?: string;
  readonly document_id?: string;
  readonly page?: number;
  readonly page_name?: string;
  readonly quote?: string;
  /** First character of the answer that rests on it, and the one behind the last. */
  readonly answer_range: readonly [number, number];
}

export interface Retrieved {
  readonly id: string;
  readonly file_id: string;
  readonly filename: string;
  readonly score: number;
}

export interface AnswerReport {
  readonly request_id: string;
  readonly worker: string;
  readonly queue_ms: number;
  readonly prefill_ms: number;
  readonly ttft_ms: number;
  readonly spans: readonly SpanReport[];
  readonly retrieved?: readonly Retrieved[];
  readonly citations?: readonly Citation[];
}

export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly prompt_tokens_details: { readonly cached_tokens: number };
}

export interface AnswerPart {
  readonly index: number;
  readonly text: string;
  readonly thinking: string;
}

interface Chunk {
  readonly choices?: readonly {
    readonly index: number;
    readonly text?: string;
    readonly delta?: { readonly content?: string | null; readonly reasoning_content?: string };
    readonly reasoning_content?: string;
  }[];
  readonly usage?: Usage | null;
  readonly spangate?: AnswerReport;
  readonly error?: { readonly message?: string };
}

export interface AnswerEnd {
  readonly report: AnswerReport | undefined;
  readonly usage: Usage | undefined;
}

interface Asked {
  readonly path: string;
  readonly body: unknown;
  readonly query?: Readonly<Record<string, string>>;
  readonly signal: AbortSignal;
  readonly onPart: (part: AnswerPart) => void;
}

/** @throws ApiFailure; Error when the answer breaks off; AbortError */
export async function answerOf({ path, body, query, signal, onPart }: Asked): Promise<AnswerEnd> {
  let report: AnswerReport | undefined;
  let usage: Usage | undefined;
  for await (const { data } of stream("POST", path, { body, query, signal })) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error !== undefined) throw new Error(chunk.error.message ?? "The answer broke off.");
    for (const { index, text, delta, reasoning_content: thought } of chunk.choices ?? []) {
      const part = { index, text: text ?? delta?.content ?? "", thinking: thought ?? delta?.reasoning_content ?? "" };
      if (part.text !== "" || part.thinking !== "") onPart(part);
    }
    report = chunk.spangate ?? report;
    usage = chunk.usage ?? usage;
  }
  return { report, usage };
}
