/** The JSON of chat completions: whole answers, chunks, usage, and the `spangate` object. */
import type { SpanReport, TokenLogprob } from "../../../worker/contract/messages.ts";
import type { MissReport } from "../../dispatch/kv/miss-report.ts";
import type { ArgumentsEvent, CallEvent, EndEvent } from "../../generate/completion.ts";
import type { ChatRun } from "../../generate/pipeline.ts";
import { shareOf, sumOf } from "../../generate/usage-counters.ts";
import type { TokenBytes } from "../../text/detokenizer.ts";
import { type ChunkShape, endsOf, finishReasonOf } from "./completion.ts";

export interface AnswerHead {
  readonly id: string;
  readonly created: number;
  readonly model: string;
}

export interface MadeCall {
  /** Letters and digits; APIs put their own prefixes before it. */
  readonly id: string;
  readonly name: string;
  /** JSON, where the answer was not cut off. */
  arguments: string;
}

export interface Choice {
  text: string;
  /** Calls that came before the text began. */
  textAt: number;
  readonly calls: MadeCall[];
  readonly logprobs: TokenLogprob[];
  end: EndEvent | undefined;
}

export function usageOf(ends: readonly EndEvent[]) {
  return usageOfShares(ends.map((end, index) => shareOf(end, index === 0)));
}

export function usageOfShares(shares: Parameters<typeof sumOf>[0]) {
  const { promptTokens, completionTokens, cachedTokens, cacheWriteTokens } = sumOf(shares);
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: {
      cached_tokens: cachedTokens,
      cache_write_tokens: cacheWriteTokens,
      audio_tokens: 0,
    },
    completion_tokens_details: { reasoning_tokens: 0, audio_tokens: 0 },
  };
}

export function spangateOf(requestId: string, run: ChatRun, ends: readonly EndEvent[]) {
  const report = ends[0]?.report;
  const { queueMs = 0, prefillMs = 0, ttftMs = 0 } = report?.timings ?? {};
  return {
    request_id: requestId,
    worker: report?.workerId ?? "",
    queue_ms: rounded(queueMs),
    prefill_ms: rounded(prefillMs),
    ttft_ms: rounded(ttftMs),
    spans: (report?.spans ?? []).map(spanBody),
    ...diagnosticsOf(ends.flatMap((end) => end.report.misses ?? [])),
    ...(run.retrieved.length === 0 ? {} : { retrieved: retrievedOf(run) }),
  };
}

export function wholeAnswer(
  head: AnswerHead,
  requestId: string,
  run: ChatRun,
  choices: readonly Choice[],
  logprobsOf: ((logprobs: readonly TokenLogprob[]) => object) | undefined,
) {
  const ends = endsOf(choices);
  return {
    ...head,
    object: "chat.completion",
    choices: choices.map((choice, index) => ({
      index,
      message: messageOf(choice),
      logprobs: logprobsOf?.(choice.logprobs) ?? null,
      finish_reason: finishReasonOf(choice.end?.reason, choice.calls.length),
    })),
    usage: usageOf(ends),
    spangate: spangateOf(requestId, run, ends),
  };
}

function messageOf({ text, calls }: Choice) {
  if (calls.length === 0) return { role: "assistant", content: text, refusal: null };
  const toolCalls = calls.map(({ id, name, arguments: given }) => {
    return { id: chatCallId(id), type: "function", function: { name, arguments: given } };
  });
  return { role: "assistant", content: text === "" ? null : text, refusal: null, tool_calls: toolCalls };
}

export const chatCallId = (id: string): string => `call_${id}`;

/**
 * Chunks of a streamed answer.
 * @param callsTools it may have calls
 */
export function chatChunks(
  head: AnswerHead,
  logprobsOf: ((logprobs: readonly TokenLogprob[]) => object) | undefined,
  summary: (() => object) | undefined,
  callsTools = false,
): ChunkShape {
  const delta = (index: number, fields: object, finishReason: string | null, logprobs: object | null = null) => {
    return { index, delta: fields, logprobs, finish_reason: finishReason };
  };
  return {
    shared: { ...head, object: "chat.completion.chunk" },
    // An answer of calls alone has no text, not even an empty one.
    begin: (index) => delta(index, { role: "assistant", content: callsTools ? null : "" }, null),
    text: (index, { text, logprobs }) => delta(index, { content: text }, null, logprobsOf?.(logprobs) ?? null),
    call: (index, event) => delta(index, { tool_calls: [callDelta(event)] }, null),
    end: (index, finishReason) => delta(index, {}, finishReason),
    summary,
  };
}

function callDelta(event: CallEvent | ArgumentsEvent) {
  if (event.type === "arguments") return { index: event.call, function: { arguments: event.text } };
  const { call, id, name } = event;
  return { index: call, id: chatCallId(id), type: "function", function: { name, arguments: "" } };
}

export type DescribeLogprobs = (logprobs: readonly TokenLogprob[]) => readonly object[];

/** `[{token, logprob, bytes, top_logprobs}]` */
export function logprobsDescriber(tokenBytes: TokenBytes): DescribeLogprobs {
  return (logprobs) =>
    logprobs.map(({ tokenId, logprob, top }) => ({
      ...tokenBytes.describe(tokenId),
      logprob,
      top_logprobs: top.map(([id, value]) => ({ ...tokenBytes.describe(id), logprob: value })),
    }));
}

export function spanBody({ id, tokens, source, cachedTokens, cacheWriteTokens }: SpanReport) {
  return { id, tokens, source, cached_tokens: cachedTokens, cache_write_tokens: cacheWriteTokens };
}

/** Only of a request that asked for it. */
export function diagnosticsOf(misses: readonly MissReport[]) {
  if (misses.length === 0) return {};
  const rows = misses.map(({ id = null, tokens, cachedTokens, reason = null }) => {
    return { id, tokens, cached_tokens: cachedTokens, reason };
  });
  return { prompt_cache_diagnostics: rows };
}

function retrievedOf(run: ChatRun) {
  return run.retrieved.map(({ id, fileId, filename, corpusId, score }) => {
    return { id, file_id: fileId, filename, vector_store_id: corpusId, score: Math.round(score * 1e6) / 1e6 };
  });
}

export const rounded = (ms: number): number => Math.round(ms * 1000) / 1000;
