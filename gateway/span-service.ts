/** Spans for the corpus side: how a fragment is lowered, and preparing it on a worker ahead of its use. */
import { greedySampling } from "../worker/contract/greedy-sampling.ts";
import type { TokenPlan } from "../worker/contract/messages.ts";
import type { ModelCard } from "../worker/contract/model-card.ts";
import type { BlockKey } from "../worker/contract/units.ts";
import { limits } from "./config.ts";
import type { PreparedSpan, SpanPort, SpanText } from "./corpus/ports.ts";
import type { Dispatcher } from "./dispatch/dispatcher.ts";
import type { FinishedEvent } from "./dispatch/request.ts";
import type { Residency } from "./dispatch/residency.ts";
import { ApiError } from "./errors.ts";
import type { LoweredSpan, Lowerer } from "./lower/plan.ts";

export interface SpanServiceDeps {
  readonly dispatcher: Pick<Dispatcher, "submit" | "evict">;
  readonly residency: Residency;
  readonly card: () => ModelCard | undefined;
  /** Resolves once a model is known. */
  readonly modelReady: () => Promise<void>;
  readonly lowererFor: (card: ModelCard) => Lowerer;
}

export class SpanService implements SpanPort {
  readonly #deps: SpanServiceDeps;

  constructor(deps: SpanServiceDeps) {
    this.#deps = deps;
  }

  /** @throws ApiError not_ready while no model is known */
  lowerSpan(span: SpanText): LoweredSpan {
    return this.#lowerer().lowerSpan(span);
  }

  /** Ends early when `signal` aborts, also while no model is known. @throws ApiError */
  async *prepareSpans(spans: readonly SpanText[], signal: AbortSignal): AsyncGenerator<PreparedSpan, void> {
    try {
      await unlessAborted(this.#deps.modelReady(), signal);
    } catch (cause) {
      // No fault of the spans: with another model folder they can be prepared.
      throw new ApiError("not_ready", { cause });
    }
    if (signal.aborted) return;
    let group: SpanText[] = [];
    let groupTokens = 0;
    for (const span of spans) {
      const tokenCount = this.lowerSpan(span).tokenIds.length;
      const full = group.length >= limits.prepareSpans || groupTokens + tokenCount > limits.prepareTokens;
      if (group.length > 0 && full) {
        yield* this.#prepare(group, signal);
        group = [];
        groupTokens = 0;
      }
      group.push(span);
      groupTokens += tokenCount;
    }
    if (group.length > 0) yield* this.#prepare(group, signal);
  }

  evict(blockKeys: readonly BlockKey[]): void {
    this.#deps.dispatcher.evict(blockKeys);
  }

  residentWorkers(spanKey: BlockKey): readonly number[] {
    return this.#deps.residency.holders(spanKey).map(workerNumber);
  }

  async *#prepare(spans: readonly SpanText[], signal: AbortSignal): AsyncGenerator<PreparedSpan, void> {
    const plan = this.#lowerer().preparePlan(spans);
    // Fragments of one corpus are asked about together, so they are prepared on the same worker.
    const report = await this.#run(plan, spans[0]?.salt ?? "", signal);
    for (const { id, tokens, source } of report.spans) {
      yield { id, tokens, source, worker: workerNumber(report.workerId) };
    }
  }

  async #run(plan: TokenPlan, affinity: string, signal: AbortSignal): Promise<FinishedEvent> {
    const events = this.#deps.dispatcher.submit({
      requestId: `prepare_${crypto.randomUUID().replaceAll("-", "")}`,
      plan,
      params: prepareOnly,
      reuse: true,
      deadlineMs: limits.requestMs,
      signal,
      affinity,
      sticky: true,
    });
    for await (const event of events) if (event.type === "finished") return event;
    throw new ApiError("internal", { cause: new Error("a prepare plan ended without a report") });
  }

  #lowerer(): Lowerer {
    const card = this.#deps.card();
    if (card === undefined) throw new ApiError("not_ready");
    return this.#deps.lowererFor(card);
  }
}

/** Resolves with the promise, or as soon as the signal aborts. */
async function unlessAborted(promise: Promise<void>, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return;
  const aborted = Promise.withResolvers<void>();
  const onAbort = (): void => aborted.resolve();
  signal.addEventListener("abort", onAbort, { once: true });
  try {
    await Promise.race([promise, aborted.promise]);
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}

const prepareOnly = {
  maxTokens: 0,
  minTokens: 0,
  ignoreEos: false,
  stopTokenIds: [],
  sampling: greedySampling,
};

const workerNumber = (workerId: string): number => Number(workerId.replace("worker-", ""));
