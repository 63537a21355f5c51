/** What answers of all APIs report beside their text: usage, log-probabilities, and the `spangate` object. */
import type { RequestUsage, SpanReport, TokenLogprob } from "../../../worker/contract/messages.ts";
import type { SparseReport } from "../../../worker/contract/sparse.ts";
import type { MissReport } from "../../dispatch/request/miss-report.ts";
import type { EndEvent } from "../../generate/events.ts";
import type { ChatRun } from "../../generate/pipeline.ts";
import { shareOf, sumOf } from "../../generate/usage-counters.ts";
import type { TokenBytes } from "../../text/detokenizer.ts";

export interface AnswerHead {
  readonly id: string;
  readonly created: number;
  readonly model: string;
}

export function usageOf(ends: readonly EndEvent[]) {
  const reasoningTokens = ends.reduce((sum, end) => sum + end.reasoningTokens, 0);
  return usageBody(sumOf(ends.map((end, index) => shareOf(end, index === 0))), reasoningTokens);
}

/** Counts of the tokens of one answer, or of many together. */
export function tokenCounts({ promptTokens, completionTokens, cachedTokens, cacheWriteTokens }: RequestUsage) {
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: cachedTokens, cache_write_tokens: cacheWriteTokens },
  };
}

/** The same counts with all fields of OpenAI's `usage`. */
export function usageBody(usage: RequestUsage, reasoningTokens = 0) {
  const counts = tokenCounts(usage);
  return {
    ...counts,
    prompt_tokens_details: { ...counts.prompt_tokens_details, audio_tokens: 0 },
    completion_tokens_details: { reasoning_tokens: reasoningTokens, audio_tokens: 0 },
  };
}

export function spangateOf(requestId: string, run: ChatRun, ends: readonly EndEvent[], citations?: readonly object[]) {
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
    ...sparseFacts(ends.flatMap((end) => end.report.sparse ?? [])),
    ...(run.retrieved.length === 0 ? {} : { retrieved: retrievedOf(run) }),
    ...(citations === undefined ? {} : { citations }),
  };
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

/** What sparse decoding did for these completions together, as it was counted where rows chose; empty: nothing. */
export function sparseFacts(reports: readonly SparseReport[]) {
  const [first] = reports;
  if (first === undefined) return {};
  const sum = (of: (report: SparseReport) => number): number => reports.reduce((total, one) => total + of(one), 0);
  const measured = sum((report) => report.measured);
  const mean = (of: (report: SparseReport) => number) =>
    measured === 0 ? null : Math.round((sum(of) / measured) * 1e4) / 1e4;
  return {
    sparse: {
      mode: first.mode,
      selected_tokens: first.tokens,
      steps: sum(({ steps }) => steps),
      dense_steps: sum(({ denseSteps }) => denseSteps),
      refreshes: sum(({ chosen, chosenAgain }) => chosen - chosenAgain),
      chosen_again: sum(({ chosenAgain }) => chosenAgain),
      changed: sum(({ changed }) => changed),
      rectified_tokens: sum(({ rectifiedTokens }) => rectifiedTokens),
      mass: mean(({ mass }) => mass),
      overlap: mean(({ overlap }) => overlap),
    },
  };
}

/** Empty unless the request asked for diagnostics. */
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
