/** Traces and statistics as /openapi.json describes them, and as the routes give them. */
import { z } from "zod";
import { kvTiers } from "../../../worker/contract/tiers.ts";
import type { EndedTrace, FragmentPart, TraceDetails, TraceHead } from "../../telemetry/ended-trace.ts";
import {
  type Quantiles,
  type Resolution,
  resolutions,
  type Stats,
  type StatsSums,
  type WindowStats,
} from "../../telemetry/trace-stats.ts";
import { seconds } from "../transport/paging.ts";

/** To a hundredth of a millisecond, which is finer than these are measured. */
const rounded = (duration: number): number => Math.round(duration * 100) / 100;

const count = z.int().min(0);
const ms = z.number().min(0);

const head = {
  id: z.string().describe("The request's id, as its answer has it in the header `x-request-id`."),
  tenant_id: z.string().describe("Whose request it was."),
  key_id: z.string().describe("The API key that it came with."),
  route: z.string().describe("Method and route, such as `POST /v1/chat/completions`."),
  status: z.int().describe("HTTP status of the answer."),
  failed: z.boolean().describe("The answer is an error, or a part of the work failed after it had begun."),
  started_at: z.int().describe("Unix time in seconds."),
  duration_ms: ms.describe("From the request's arrival to the end of its last part."),
  ttft_ms: ms.nullable().describe("From the request's arrival to its first token; null: there was none."),
  queue_ms: ms
    .nullable()
    .describe("The longest that one of its runs waited until a worker took it in; null: none ran."),
  runs: count.describe("Prompts given to workers: one for each choice, and for each generate of a query."),
  prompt_tokens: count.describe("Tokens of its prompts; choices of an answer share theirs."),
  cached_tokens: count.describe("Those of them whose KV was there already, so that nothing was computed."),
  completion_tokens: count.describe("Tokens generated."),
  stage_ms: z
    .record(z.string(), ms)
    .describe(
      "Time by stage, in the order in which they began: `retrieval`, `reading` (files of the prompt), `grammar`, `lowering`, and of each run `queue`, `prefill`, `first_token`, `decode`, or `run` for one that failed. Parts beside each other count each.",
    ),
};

export const traceAnswer = z.strictObject({ ...head, object: z.literal("trace") });

const stage = z.strictObject({
  name: z.string().describe("As in `stage_ms`."),
  start_ms: z.number().describe("Since the request's arrival."),
  duration_ms: ms.describe("How long it took."),
  run: count.nullable().describe("The run that it is a part of, counted from 0; null: the request's as a whole."),
  failed: z.boolean().describe("It ended with an error."),
});

const run = z.strictObject({
  run: count.describe("Counted from 0, in the order in which they began."),
  worker: z.string().describe("The worker that computed it; empty where it ended before it had one."),
  finish_reason: z.enum(["stop", "length", "abort", "prepared"]).describe("Why it ended."),
  prompt_tokens: count.describe("Tokens of its prompt."),
  cached_tokens: count.describe("Those of them whose KV was found."),
  completion_tokens: count.describe("Tokens that it generated."),
});

const fragment = z.strictObject({
  id: z
    .string()
    .nullable()
    .describe("The fragment of a vector store; null: a document that came with the request, whose id is not kept."),
  run: count.describe("The first run whose prompt has it."),
  worker: z.string().describe("The worker of that run."),
  tokens: count.describe("Tokens of the fragment."),
  cached_tokens: count.describe("Those of them whose KV was found."),
  source: z
    .enum([...kvTiers, "computed"])
    .describe(
      "Where its KV was from: `computed` when any part of it was computed, `device` when it was found in the worker's pool, else the tier that it was loaded from.",
    ),
});

export const traceDetailsAnswer = traceAnswer.extend({
  stages: z.array(stage).describe("In the order in which they ended, 64 at most."),
  worker_runs: z.array(run).describe("64 at most."),
  fragments: z.array(fragment).describe("In the order of their prompts, 64 at most."),
  left_out: z
    .strictObject({
      stages: count.describe("Stages beyond the first 64."),
      worker_runs: count.describe("Runs beyond the first 64."),
      fragments: count.describe("Fragments beyond the first 64."),
    })
    .describe("What the lists lack."),
});

export const traceListAnswer = z.strictObject({
  object: z.literal("list"),
  data: z.array(traceAnswer).describe("The traces that are still kept."),
  first_id: z.string().nullable().describe("The first trace of the page; null: there is none."),
  last_id: z.string().nullable().describe("The last trace of the page, for `after`; null: there is none."),
  has_more: z.boolean().describe("Whether more are kept than this page has."),
});

const quantiles = z
  .strictObject({ p50: ms.describe("Half of the values are at most this."), p99: ms.describe("99 of 100 are.") })
  .nullable();

const sums = {
  requests: count.describe("Requests that ended and had run something or failed at it."),
  failed: count.describe("Those of them that failed."),
  prompt_tokens: count.describe("Tokens of their prompts."),
  cached_tokens: count.describe("Prompt tokens whose KV was there already: computation that was saved."),
  completion_tokens: count.describe("Tokens generated."),
  ttft_ms: quantiles.describe("From arrival to the first token, to within 10 %; null: there was none."),
  queue_ms: quantiles.describe("The wait for a worker to take the request in, to within 10 %; null: none ran."),
};
const statsSums = z.strictObject(sums);
const statsWindow = z.strictObject({
  at: z.int().describe("When the window begins, Unix time in seconds."),
  ...sums,
});

export const statsAnswer = z.strictObject({
  object: z.literal("stats"),
  tenant_id: z.string().nullable().describe("Whose requests are counted; null: all tenants'."),
  resolution: z.enum(Object.keys(resolutions) as [Resolution, ...Resolution[]]).describe("What a window spans."),
  covers: z
    .enum(["all", "recent"])
    .describe("`recent`: the key's own requests among its tenant's last ones, for keys without `tenant:admin`."),
  data: z.array(statsWindow).describe("The oldest first. Windows without requests are left out."),
  total: statsSums.describe("All windows together."),
  now: z
    .strictObject({
      running_requests: count.describe("Runs at the workers."),
      waiting_requests: count.describe("Runs that wait for a worker."),
    })
    .nullable()
    .describe("Of all tenants together, for the platform's operators; null for all others."),
});

export function traceBody(trace: TraceHead): z.infer<typeof traceAnswer> {
  return {
    id: trace.requestId,
    object: "trace",
    tenant_id: trace.tenantId ?? "",
    key_id: trace.keyId ?? "",
    route: `${trace.method} ${trace.route}`,
    status: trace.status,
    failed: trace.failed,
    started_at: seconds(trace.startedAtMs),
    duration_ms: rounded(trace.durationMs),
    ttft_ms: roundedOrNull(trace.firstTokenMs),
    queue_ms: roundedOrNull(trace.queueMs),
    runs: trace.runs,
    prompt_tokens: trace.promptTokens,
    cached_tokens: trace.cachedTokens,
    completion_tokens: trace.completionTokens,
    stage_ms: Object.fromEntries(Object.entries(trace.stageMs).map(([name, duration]) => [name, rounded(duration)])),
  };
}

export function traceDetailsBody(head: TraceHead, details: TraceDetails): z.infer<typeof traceDetailsAnswer> {
  const workers = new Map(details.runs.map(({ run, worker }) => [run, worker]));
  return {
    ...traceBody(head),
    stages: details.stages.map(({ name, startMs, durationMs, run, failed }) => {
      return { name, start_ms: rounded(startMs), duration_ms: rounded(durationMs), run: run ?? null, failed };
    }),
    worker_runs: details.runs.map(runBody),
    fragments: details.fragments.map((fragment) => fragmentBody(fragment, workers.get(fragment.run) ?? "")),
    left_out: {
      stages: details.leftOut.stages,
      worker_runs: details.leftOut.runs,
      fragments: details.leftOut.fragments,
    },
  };
}

function runBody(part: EndedTrace["details"]["runs"][number]): z.infer<typeof run> {
  return {
    run: part.run,
    worker: part.worker,
    finish_reason: part.finishReason,
    prompt_tokens: part.promptTokens,
    cached_tokens: part.cachedTokens,
    completion_tokens: part.completionTokens,
  };
}

function fragmentBody(part: FragmentPart, worker: string): z.infer<typeof fragment> {
  const { id, run, tokens, cachedTokens, source } = part;
  return { id, run, worker, tokens, cached_tokens: cachedTokens, source };
}

export function statsBody(stats: Stats) {
  return { data: stats.windows.map(windowBody), total: sumsBody(stats.total) };
}

const windowBody = (window: WindowStats): z.infer<typeof statsWindow> => {
  return { at: seconds(window.atMs), ...sumsBody(window) };
};

function sumsBody(window: StatsSums): z.infer<typeof statsSums> {
  return {
    requests: window.requests,
    failed: window.failed,
    prompt_tokens: window.promptTokens,
    cached_tokens: window.cachedTokens,
    completion_tokens: window.completionTokens,
    ttft_ms: quantilesBody(window.firstTokenMs),
    queue_ms: quantilesBody(window.queueMs),
  };
}

const quantilesBody = (quantiles: Quantiles | undefined) =>
  quantiles === undefined ? null : { p50: rounded(quantiles.p50), p99: rounded(quantiles.p99) };

const roundedOrNull = (duration: number | undefined): number | null =>
  duration === undefined ? null : rounded(duration);
