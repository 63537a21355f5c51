/** What the gateway is told of a request: its usage, its spans, its times. */
import type { BlendReport, RequestTimings, RequestUsage, SpanReport } from "../contract/messages.ts";
import type { Run } from "./run.ts";

/** @param completionTokens tokens sampled, the stop token that is not emitted too */
export function usageOf(runs: readonly Run[], completionTokens: number): RequestUsage {
  let [promptTokens, cachedTokens, cacheWriteTokens] = [0, 0, 0];
  for (const { promptTokens: own, usage } of runs) {
    promptTokens += own;
    cachedTokens += usage.cachedTokens;
    cacheWriteTokens += usage.cacheWriteTokens;
  }
  return { promptTokens, completionTokens, cachedTokens, cacheWriteTokens };
}

/** Runs of one span are one report, at the place of the first. */
export function spanReports(runs: readonly Run[]): SpanReport[] {
  const reports = new Map<string, SpanReport>();
  for (const [index, { plan, promptTokens, usage }] of runs.entries()) {
    if (plan.kind !== "span") continue;
    const id = plan.spanId ?? String(index);
    const before = reports.get(id) ?? { id, tokens: 0, source: "device", cachedTokens: 0, cacheWriteTokens: 0 };
    reports.set(id, {
      id,
      tokens: before.tokens + promptTokens,
      source: usage.cachedTokens === promptTokens ? before.source : "computed",
      cachedTokens: before.cachedTokens + usage.cachedTokens,
      cacheWriteTokens: before.cacheWriteTokens + usage.cacheWriteTokens,
    });
  }
  return [...reports.values()];
}

/** undefined: nothing of the request is blended. */
export function blendReportOf(runs: readonly Run[]): BlendReport | undefined {
  const blended = runs.filter(({ plan }) => plan.blend !== undefined);
  if (blended.length === 0) return undefined;
  let [copiedTokens, recomputedTokens] = [0, 0];
  for (const { blendReport } of blended) {
    copiedTokens += blendReport?.copiedTokens ?? 0;
    recomputedTokens += blendReport?.recomputedTokens ?? 0;
  }
  return { copiedTokens, recomputedTokens };
}

/** When a request came to its stages, each for the first time; milliseconds on the engine's clock. */
export class RequestTimes {
  private readonly arrivedAtMs: number;
  private admittedAtMs: number | undefined;
  private prefilledAtMs: number | undefined;
  private firstTokenAtMs: number | undefined;

  constructor(arrivedAtMs: number) {
    this.arrivedAtMs = arrivedAtMs;
  }

  /** @returns whether this is the first admission. */
  markAdmitted(nowMs: number): boolean {
    if (this.admittedAtMs !== undefined) return false;
    this.admittedAtMs = nowMs;
    return true;
  }

  markPrefilled(nowMs: number): void {
    this.prefilledAtMs ??= nowMs;
  }

  /** A token was drawn: the prompt is computed too. */
  markToken(nowMs: number): void {
    this.markPrefilled(nowMs);
    this.firstTokenAtMs ??= nowMs;
  }

  /** A stage that was not reached took until now (the request ended in it) or 0 ms (it never began). */
  timings(nowMs: number): RequestTimings {
    const { admittedAtMs } = this;
    const queueMs = (admittedAtMs ?? nowMs) - this.arrivedAtMs;
    const prefillMs = admittedAtMs === undefined ? 0 : (this.prefilledAtMs ?? nowMs) - admittedAtMs;
    const ttftMs = this.firstTokenAtMs === undefined ? 0 : this.firstTokenAtMs - this.arrivedAtMs;
    return { queueMs, prefillMs, ttftMs };
  }
}
