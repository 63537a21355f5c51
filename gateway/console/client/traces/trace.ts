/** A trace as `GET /admin/v1/traces` and `/traces/{id}` give it, and what can be said of it in a sentence. */
import { count, duration, percent } from "../kit/format.ts";

export interface TraceHead {
  readonly id: string;
  readonly tenant_id: string;
  readonly key_id: string;
  readonly route: string;
  readonly status: number;
  readonly failed: boolean;
  /** Unix time in seconds. */
  readonly started_at: number;
  readonly duration_ms: number;
  readonly ttft_ms: number | null;
  readonly queue_ms: number | null;
  readonly runs: number;
  readonly prompt_tokens: number;
  readonly cached_tokens: number;
  readonly completion_tokens: number;
  readonly stage_ms: Readonly<Record<string, number>>;
}

export interface Stage {
  readonly name: string;
  /** Since the request's arrival. */
  readonly start_ms: number;
  readonly duration_ms: number;
  /** null: the request's as a whole. */
  readonly run: number | null;
  readonly failed: boolean;
}

export interface Fragment {
  readonly id: string | null;
  readonly run: number;
  readonly worker: string;
  readonly tokens: number;
  readonly cached_tokens: number;
  /** Where its KV was from: found in the pool (`device`), loaded from a tier, or computed. */
  readonly source: "computed" | "device" | "host" | "disk" | "s3";
}

export interface Trace extends TraceHead {
  readonly stages: readonly Stage[];
  readonly worker_runs: readonly { readonly run: number; readonly worker: string; readonly finish_reason: string }[];
  readonly fragments: readonly Fragment[];
  readonly left_out: { readonly stages: number; readonly worker_runs: number; readonly fragments: number };
}

/** What a stage is called, and what it is. */
const stageTexts: Readonly<Record<string, readonly [name: string, meaning: string]>> = {
  retrieval: ["retrieval", "searching the corpus"],
  reading: ["reading", "reading files of the prompt"],
  grammar: ["grammar", "compiling the answer's schema"],
  lowering: ["lowering", "making tokens of the prompt"],
  queue: ["queue", "waiting for a worker"],
  prefill: ["prefill", "computing the prompt"],
  first_token: ["first token", "the first token's own step, and its way back"],
  decode: ["decode", "generating the answer"],
  run: ["run", "a run that failed"],
};

export const stageName = (stage: string): string => stageTexts[stage]?.[0] ?? stage;
export const stageMeaning = (stage: string): string => stageTexts[stage]?.[1] ?? "";

/** The stage that took longest; undefined: there was none. */
export function longestStage({
  stage_ms,
}: Pick<TraceHead, "stage_ms">): readonly [name: string, ms: number] | undefined {
  return Object.entries(stage_ms).toSorted(([, a], [, b]) => b - a)[0];
}

/** Prompt tokens whose KV was there, as a part of all; undefined: there was no prompt. */
export const foundPart = ({ cached_tokens, prompt_tokens }: TraceHead): number | undefined =>
  prompt_tokens === 0 ? undefined : cached_tokens / prompt_tokens;

/** Where the time went, in words. */
export function whereTimeWent(trace: TraceHead): string {
  const longest = longestStage(trace);
  if (longest === undefined) return "Nothing of it was measured.";
  const [name, ms] = longest;
  const stage = `${stageName(name)}: ${stageMeaning(name)}.`;
  const most =
    ms > trace.duration_ms
      ? `${count(trace.runs)} runs beside each other took ${duration(ms)} together for ${stage}`
      : `${duration(ms)} of ${duration(trace.duration_ms)} (${percent(ms / trace.duration_ms)}) went into ${stage}`;
  return `${most}${reasonOf(trace, name, ms)}`;
}

function reasonOf(
  { prompt_tokens, cached_tokens, completion_tokens, runs }: TraceHead,
  stage: string,
  ms: number,
): string {
  if (stage === "prefill") {
    return ` ${count(prompt_tokens - cached_tokens)} of ${count(prompt_tokens)} prompt tokens had to be computed.`;
  }
  if (stage === "decode" && completion_tokens > runs) {
    return ` ${count(completion_tokens)} tokens, ${duration(ms / completion_tokens)} each.`;
  }
  return stage === "queue" ? " The workers were busy with other requests." : "";
}
