/**
 * A request's parts as they are kept in memory: which stage took how long, what each run used, and where the KV of its
 * fragments was from. It holds no text: names of stages are from the code, ids are the server's own, and the id of a
 * document that came with the request, which its caller chose, is left out.
 */
import { parseId } from "../../db/ids.ts";
import type { FinishedEvent } from "../dispatch/request/request.ts";

/** The parts of a request that are kept, of each kind; further ones are counted. */
export const partsPerTrace = 64;

/** Who asked for what, and how it was answered. */
export interface RequestFacts {
  readonly requestId: string;
  /** undefined: the caller has no tenant, or there is no valid key. */
  readonly tenantId: string | undefined;
  readonly keyId: string | undefined;
  readonly method: string;
  /** The route's pattern, never the path, which holds ids that callers choose. */
  readonly route: string;
  readonly status: number;
}

export interface StagePart {
  readonly name: string;
  /** Since the request's beginning. */
  readonly startMs: number;
  readonly durationMs: number;
  /** The run that it is a part of, counted from 0; undefined: the request's as a whole. */
  readonly run?: number | undefined;
  readonly failed: boolean;
}

export interface RunPart {
  readonly run: number;
  readonly worker: string;
  readonly finishReason: FinishedEvent["reason"];
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly completionTokens: number;
}

export interface FragmentPart {
  readonly run: number;
  /** null: a document of the request's own, or another part of its prompt. */
  readonly id: string | null;
  readonly tokens: number;
  readonly cachedTokens: number;
  /** As answers report it: `computed` when any part was, else the tier that it was from. */
  readonly source: FinishedEvent["spans"][number]["source"];
}

/** What a list shows of a trace. Token counts are sums over the request's prompts; choices share theirs. */
export interface TraceSums {
  readonly runs: number;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly completionTokens: number;
  /** The longest wait of a run until a worker took it in; undefined: none ran. */
  readonly queueMs: number | undefined;
  /** From the request's beginning to its first token; undefined: there was none. */
  readonly firstTokenMs: number | undefined;
  /** By stage; runs beside each other count each. */
  readonly stageMs: Readonly<Record<string, number>>;
}

export interface TraceDetails {
  readonly stages: readonly StagePart[];
  readonly runs: readonly RunPart[];
  readonly fragments: readonly FragmentPart[];
  /** Parts beyond the bound. */
  readonly leftOut: { readonly stages: number; readonly runs: number; readonly fragments: number };
}

/** A trace as lists show it. */
export interface TraceHead extends RequestFacts, TraceSums {
  /** Unix time in milliseconds. */
  readonly startedAtMs: number;
  readonly durationMs: number;
  /** The answer is an error, or a part of the work failed. */
  readonly failed: boolean;
}

export interface EndedTrace {
  readonly head: TraceHead;
  readonly details: TraceDetails;
}

/** Collects a request's parts while it runs. */
export class TraceParts {
  readonly #startMs: number;
  readonly #stages: StagePart[] = [];
  readonly #runs: RunPart[] = [];
  readonly #fragments: FragmentPart[] = [];
  readonly #leftOut = { stages: 0, runs: 0, fragments: 0 };
  readonly #stageMs: Record<string, number> = {};
  /** Plans whose prompt has been counted: almost always one. */
  #plan: object | undefined;
  #otherPlans: Set<object> | undefined;
  #begun = 0;
  #partFailed = false;
  #queueMs: number | undefined;
  #firstTokenMs: number | undefined;
  readonly #tokens = { promptTokens: 0, cachedTokens: 0, completionTokens: 0 };

  /** @param startMs when the request began, by performance.now() */
  constructor(startMs: number) {
    this.#startMs = startMs;
  }

  beginRun(): number {
    this.#begun += 1;
    return this.#begun - 1;
  }

  add(name: string, startMs: number, endMs: number, failed: boolean, run: number | undefined): void {
    const durationMs = endMs - startMs;
    this.#partFailed ||= failed;
    this.#stageMs[name] = (this.#stageMs[name] ?? 0) + durationMs;
    if (name === "queue") this.#queueMs = Math.max(this.#queueMs ?? 0, durationMs);
    if (this.#stages.length >= partsPerTrace) this.#leftOut.stages += 1;
    else {
      const sinceMs = inMicroseconds(startMs - this.#startMs);
      this.#stages.push({ name, startMs: sinceMs, durationMs: inMicroseconds(durationMs), run, failed });
    }
  }

  /** @param firstTokenMs when its first token came, by performance.now() */
  ran(
    run: number,
    plan: object,
    { usage, spans, workerId: worker, reason: finishReason }: FinishedEvent,
    firstTokenMs: number | undefined,
  ): void {
    const { promptTokens, cachedTokens, completionTokens } = usage;
    if (firstTokenMs !== undefined) {
      this.#firstTokenMs = Math.min(this.#firstTokenMs ?? Number.POSITIVE_INFINITY, firstTokenMs - this.#startMs);
    }
    if (this.#runs.length >= partsPerTrace) this.#leftOut.runs += 1;
    else this.#runs.push({ run, worker, finishReason, promptTokens, cachedTokens, completionTokens });
    this.#tokens.completionTokens += completionTokens;
    if (!this.#isNew(plan)) return;
    this.#tokens.promptTokens += promptTokens;
    this.#tokens.cachedTokens += cachedTokens;
    for (const { id, tokens, cachedTokens: found, source } of spans) {
      if (this.#fragments.length >= partsPerTrace) this.#leftOut.fragments += 1;
      else this.#fragments.push({ run, id: parseId("fragment", id) ?? null, tokens, cachedTokens: found, source });
    }
  }

  #isNew(plan: object): boolean {
    if (this.#plan === plan || this.#otherPlans?.has(plan) === true) return false;
    if (this.#plan === undefined) this.#plan = plan;
    else {
      this.#otherPlans ??= new Set();
      this.#otherPlans.add(plan);
    }
    return true;
  }

  ended(endMs: number, { requestId, tenantId, keyId, method, route, status }: RequestFacts): EndedTrace {
    const durationMs = endMs - this.#startMs;
    const { promptTokens, cachedTokens, completionTokens } = this.#tokens;
    return {
      head: {
        requestId,
        tenantId,
        keyId,
        method,
        route,
        status,
        startedAtMs: Date.now() - durationMs,
        durationMs,
        failed: this.#partFailed || status >= 400,
        runs: this.#begun,
        promptTokens,
        cachedTokens,
        completionTokens,
        queueMs: this.#queueMs,
        firstTokenMs: this.#firstTokenMs,
        stageMs: this.#stageMs,
      },
      details: { stages: this.#stages, runs: this.#runs, fragments: this.#fragments, leftOut: this.#leftOut },
    };
  }
}

/** Nobody is told more, and the digits take memory. */
const inMicroseconds = (ms: number): number => Math.round(ms * 1_000) / 1_000;
