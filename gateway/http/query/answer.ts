/** The JSON of span queries' answers. */
import type { TenantId } from "../../../db/ids.ts";
import type { Explanation } from "../../execute/explain.ts";
import type { PreparedSpans } from "../../execute/prepare-tree.ts";
import type { GenerateReport, TreeReport } from "../../execute/report.ts";
import { countAnswer } from "../../generate/usage-counters.ts";
import type { Query } from "../../query/ir.ts";
import type { Metrics } from "../../telemetry/metrics.ts";
import { type Choice, finishReasonOf } from "../generation/choice.ts";
import type { choiceCitations } from "../generation/citations.ts";
import type { ChunkShape } from "../generation/completion.ts";
import { type AnswerHead, diagnosticsOf, rounded, spanBody, sparseFacts, usageBody } from "../generation/report.ts";
import { chatChunks } from "../openai/chat-answer.ts";

/** A map's answer is a text completion with one choice for each input; all others are chat completions. */
export type AnswerKind = "chat" | "text";

export const answerKindOf = ({ kind }: Query): AnswerKind => (kind === "map" || kind === "plus" ? "text" : "chat");

export function headOf(kind: AnswerKind, requestId: string, model: string, nowMs: number): AnswerHead {
  const prefix = kind === "text" ? "cmpl" : "chatcmpl";
  return { id: `${prefix}-${requestId}`, created: Math.floor(nowMs / 1000), model };
}

function choiceOf(kind: AnswerKind, index: number, { text, thinking, end }: Choice) {
  const thought = thinking === "" ? {} : { reasoning_content: thinking };
  const message = { role: "assistant", content: text, refusal: null, ...thought };
  const content = kind === "text" ? { text, ...thought } : { message };
  return { index, ...content, logprobs: null, finish_reason: finishReasonOf(end?.reason) };
}

export function queryAnswer(
  kind: AnswerKind,
  head: AnswerHead,
  requestId: string,
  report: TreeReport,
  choices: readonly Choice[],
  citations: QueryCitations,
) {
  return {
    ...head,
    object: kind === "text" ? "text_completion" : "chat.completion",
    choices: choices.map((choice, index) => choiceOf(kind, index, choice)),
    ...queryFacts(requestId, report, citations),
  };
}

/** `spangate.citations`; undefined: no prompt had anything to cite. */
type QueryCitations = Awaited<ReturnType<typeof choiceCitations>>;

/** Counts a tree's tokens in the metrics; called once for each tree. */
export function countTree(metrics: Metrics, tenantId: TenantId, report: TreeReport): void {
  const { ends, usage } = report.count();
  countAnswer(metrics, tenantId, ends, usage);
}

/** Usage of the whole tree, and what became of each run. */
export function queryFacts(requestId: string, report: TreeReport, citations: QueryCitations) {
  const outer = report.outer[0]?.end.report;
  const { queueMs = 0, prefillMs = 0, ttftMs = 0 } = outer?.timings ?? {};
  const blend = blendOf(report);
  return {
    usage: usageBody(report.usage(), report.reasoningTokens),
    spangate: {
      request_id: requestId,
      worker: outer?.workerId ?? "",
      queue_ms: rounded(queueMs),
      prefill_ms: rounded(prefillMs),
      ttft_ms: rounded(ttftMs),
      spans: (outer?.spans ?? []).map(spanBody),
      ...diagnosticsOf(report.misses),
      generates: report.generates.map(generateFacts),
      prepared: { tokens: report.preparedTokens.all, computed_tokens: report.preparedTokens.computed },
      ...(blend === undefined ? {} : { blend }),
      ...sparseFacts(report.generates.flatMap(({ end }) => end.report.sparse ?? [])),
      ...(citations === undefined ? {} : { citations }),
    },
  };
}

function generateFacts({ path, place, index, end }: GenerateReport) {
  const { usage, timings } = end.report;
  return {
    path,
    place,
    index,
    prompt_tokens: usage.promptTokens,
    completion_tokens: end.completionTokens,
    cached_tokens: usage.cachedTokens,
    ttft_ms: rounded(timings.ttftMs),
    finish_reason: finishReasonOf(end.reason),
  };
}

/** Counts over all runs with a blended prompt: tokens that were copied, and how many of them were computed again. */
function blendOf(report: TreeReport) {
  const reports = report.generates.flatMap(({ end }) => end.report.blend ?? []);
  if (reports.length === 0) return undefined;
  return {
    tokens: reports.reduce((sum, { copiedTokens }) => sum + copiedTokens, 0),
    recomputed_tokens: reports.reduce((sum, { recomputedTokens }) => sum + recomputedTokens, 0),
  };
}

/** Chunks of a streamed answer; the last one has the usage. */
export function queryChunks(kind: AnswerKind, head: AnswerHead, summary: () => Promise<object>): ChunkShape {
  if (kind === "text") {
    const choice = (index: number, text: string, reason: string | null) => {
      return { index, text, logprobs: null, finish_reason: reason };
    };
    return {
      shared: { ...head, object: "text_completion" },
      text: (index, { text }) => choice(index, text, null),
      thinking: (index, { text }) => ({ ...choice(index, "", null), reasoning_content: text }),
      end: (index, reason) => choice(index, "", reason),
      summary,
    };
  }
  return chatChunks(head, undefined, { summary });
}

export function preparedBody(requestId: string, prepared: PreparedSpans) {
  const { spans, tokens, cachedTokens, cacheWriteTokens } = prepared;
  const usage = usageBody({ promptTokens: tokens, completionTokens: 0, cachedTokens, cacheWriteTokens });
  const shown = spans.map((span) => ({ ...spanBody(span), worker: span.worker }));
  return {
    object: "query.prepared",
    request_id: requestId,
    spans: shown,
    tokens,
    computed_tokens: tokens - cachedTokens,
    usage,
  };
}

export function explanationBody(explanation: Explanation) {
  const { query, steps, moreSteps, rewritten, plan, drawing } = explanation;
  return {
    object: "query.explanation",
    query,
    steps,
    more_steps: moreSteps,
    rewritten,
    plan: plan.map(({ path, place, samples, promptTokens, runs, moreRuns }) => ({
      path,
      place,
      samples,
      prompt_tokens: promptTokens,
      runs: runs.map(({ kind, spanId, position, tokens, blockKeys, known, cachedTokens, worker }) => ({
        kind,
        span_id: spanId ?? null,
        position,
        tokens,
        block_keys: blockKeys,
        known,
        cached_tokens: cachedTokens,
        worker: worker === "" ? null : worker,
      })),
      more_runs: moreRuns,
    })),
    drawing,
  };
}
