/** Counts runs that have ended: in the operators' counters and, with the same numbers, in the tenant's usage. */
import type { TenantId } from "../../db/ids.ts";
import type { RequestUsage } from "../../worker/contract/messages.ts";
import type { ErrorCode } from "../base/errors.ts";
import type { FinishedEvent } from "../dispatch/request/request.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { EndEvent } from "./events.ts";

export type CountedRun = Pick<EndEvent, "reason" | "completionTokens" | "report">;

/** The usage of one choice. Choices share their prompt, so it counts once, with the cache hits of the first choice. */
export function shareOf({ completionTokens, report }: CountedRun, isFirst: boolean): RequestUsage {
  if (!isFirst) return { promptTokens: 0, cachedTokens: 0, cacheWriteTokens: 0, completionTokens };
  const { promptTokens, cachedTokens, cacheWriteTokens } = report.usage;
  return { promptTokens, cachedTokens, cacheWriteTokens, completionTokens };
}

export function sumOf(shares: readonly RequestUsage[]): RequestUsage {
  const sum = (read: (share: RequestUsage) => number): number =>
    shares.reduce((total, share) => total + read(share), 0);
  return {
    promptTokens: sum((share) => share.promptTokens),
    cachedTokens: sum((share) => share.cachedTokens),
    cacheWriteTokens: sum((share) => share.cacheWriteTokens),
    completionTokens: sum((share) => share.completionTokens),
  };
}

/** @param isFirst whether it is the first choice of its prompt */
export function countChoice(metrics: Metrics, tenantId: TenantId, end: CountedRun, isFirst: boolean): void {
  countAnswer(metrics, tenantId, [end], shareOf(end, isFirst));
}

/** @param usage the sum over all runs of the answer */
export function countAnswer(
  metrics: Metrics,
  tenantId: TenantId,
  runs: readonly CountedRun[],
  usage: RequestUsage,
): void {
  for (const run of runs) countRun(metrics, run);
  countTokens(metrics, tenantId, usage, { worker: runs[0]?.report.workerId ?? "", requests: runs.length });
}

/** Counts a plan that was computed ahead, for prompts that are still to come. */
export function countPrepared(metrics: Metrics, tenantId: TenantId, { usage, workerId: worker }: FinishedEvent): void {
  countEnd(metrics, "prepared");
  countTokens(metrics, tenantId, usage, { worker, requests: 1 });
}

function countTokens(
  metrics: Metrics,
  tenantId: TenantId,
  { promptTokens, cachedTokens, cacheWriteTokens, completionTokens }: RequestUsage,
  { worker, requests }: { readonly worker: string; readonly requests: number },
): void {
  metrics.count("vllm:prompt_tokens_total", "Prompt tokens.", { worker }, promptTokens);
  metrics.count("vllm:generation_tokens_total", "Generated tokens.", { worker }, completionTokens);
  metrics.count("spangate_cached_tokens_total", "Prompt tokens that were cached.", { worker }, cachedTokens);
  metrics.count("spangate_cache_write_tokens_total", "Prompt tokens stored.", { worker }, cacheWriteTokens);
  metrics.tenantUsage?.add(tenantId, { requests, promptTokens, cachedTokens, cacheWriteTokens, completionTokens });
}

function countEnd(metrics: Metrics, reason: string): void {
  metrics.count("vllm:request_success_total", "Requests that ended, by reason.", { finished_reason: reason });
}

function countRun(metrics: Metrics, { reason, completionTokens, report }: CountedRun): void {
  const { times, timings, usage } = report;
  const observe = (name: string, help: string, ms: number): void => metrics.observe(name, help, ms / 1000);
  countEnd(metrics, reason);
  metrics.observeTokens("vllm:request_prompt_tokens", "Prompt tokens of a request.", usage.promptTokens);
  metrics.observeTokens("vllm:request_generation_tokens", "Generated tokens of a request.", completionTokens);
  observe("vllm:e2e_request_latency_seconds", "Submission to end.", times.totalMs);
  // If the reader left before the first token, there is no time to the first token.
  if (times.firstTokenMs === undefined) return;
  const decodeMs = times.totalMs - times.firstTokenMs;
  observe("vllm:time_to_first_token_seconds", "Submission to first token.", times.firstTokenMs);
  observe("vllm:request_queue_time_seconds", "Submission to admission by a worker.", times.queueMs);
  observe("vllm:request_prefill_time_seconds", "Admission to last prompt token.", timings.prefillMs);
  observe("vllm:request_decode_time_seconds", "First token to end.", decodeMs);
  if (usage.completionTokens < 2) return;
  const tokenMs = decodeMs / (usage.completionTokens - 1);
  observe("vllm:request_time_per_output_token_seconds", "Mean time of a token after the first.", tokenMs);
}

/** Counts a failed run. It may have failed after its stream began; the counter of HTTP answers counts that as a 200. */
export function countFailure(metrics: Metrics, code: ErrorCode): void {
  metrics.count("spangate_run_failures_total", "Runs that failed, by error.", { code });
}

/** Counts a request for embeddings or for a ranking that has ended. */
export function countEmbedding(metrics: Metrics, tenantId: TenantId, tokens: number): void {
  metrics.count("spangate_embedding_requests_total", "Requests of embeddings and rankings that ended.");
  metrics.count("spangate_embedding_tokens_total", "Tokens of embeddings and rankings.", {}, tokens);
  metrics.tenantUsage?.add(tenantId, { requests: 1, embeddingTokens: tokens });
}
