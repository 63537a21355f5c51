/** Wraps the dispatcher so that the stages of each run are traced as spans of its request. */
import type { Dispatcher } from "../dispatch/dispatcher.ts";
import type { DispatchRequest, FinishedEvent } from "../dispatch/request/request.ts";
import type { Attributes } from "./exporter.ts";
import type { RequestTrace, TraceOf } from "./tracer.ts";

export function tracedDispatcher(dispatcher: Pick<Dispatcher, "submit">, traceOf: TraceOf): Pick<Dispatcher, "submit"> {
  return {
    submit: (request) => {
      const trace = traceOf(request.requestId);
      if (trace === undefined) return dispatcher.submit(request);
      const run = new RunTrace(trace, request.plan);
      const onFirstToken = (): void => {
        run.firstToken();
        request.onFirstToken?.();
      };
      const onEnd = (tokens: number, end: FinishedEvent | undefined): void => {
        run.ended(end);
        request.onEnd?.(tokens, end);
      };
      try {
        return dispatcher.submit({ ...request, onFirstToken, onEnd });
      } catch (error) {
        run.ended(undefined);
        throw error;
      }
    },
  };
}

/** The stages of one run, computed from the timings that its worker reports and from the times its events arrive here. */
class RunTrace {
  readonly #trace: RequestTrace;
  readonly #plan: DispatchRequest["plan"];
  readonly #run: number;
  readonly #startMs = performance.now();
  #firstTokenMs: number | undefined;

  constructor(trace: RequestTrace, plan: DispatchRequest["plan"]) {
    this.#trace = trace;
    this.#plan = plan;
    this.#run = trace.beginRun();
    trace.enter();
  }

  /** Notes the first token. A run that is restarted on another worker keeps the time of its very first token. */
  firstToken(): void {
    this.#firstTokenMs ??= performance.now();
  }

  /** @param end undefined when the run has failed */
  ended(end: FinishedEvent | undefined): void {
    if (end === undefined) this.#trace.span("run", this.#startMs, performance.now(), {}, true, this.#run);
    else this.#writeStages(end);
    this.#trace.leave();
  }

  #writeStages(end: FinishedEvent): void {
    this.#trace.ran(this.#run, this.#plan, end, this.#firstTokenMs);
    const nowMs = performance.now();
    const { queueMs, prefillMs, ttftMs } = end.timings;
    // The worker's clock differs from this one, so its stages are placed backwards from the arrival of the first token
    // here.
    const firstTokenMs = this.#firstTokenMs ?? nowMs;
    const arrivedMs = Math.max(this.#startMs, firstTokenMs - Math.max(ttftMs, queueMs + prefillMs));
    const admittedMs = Math.min(arrivedMs + queueMs, firstTokenMs);
    const prefilledMs = Math.min(admittedMs + prefillMs, firstTokenMs);
    const told = this.#trace.isExported ? attributesOf(end) : undefined;
    const write = (name: keyof StageAttributes, startMs: number, endMs: number): void =>
      this.#trace.span(name, startMs, endMs, told?.[name], false, this.#run);
    write("queue", this.#startMs, admittedMs);
    write("prefill", admittedMs, prefilledMs);
    if (this.#firstTokenMs === undefined) return;
    write("first_token", prefilledMs, firstTokenMs);
    write("decode", firstTokenMs, nowMs);
  }
}

type StageAttributes = Readonly<Record<"queue" | "prefill" | "first_token" | "decode", Attributes>>;

/** What a collector is told of each stage. */
function attributesOf({ reason, usage, workerId }: FinishedEvent): StageAttributes {
  const { promptTokens, cachedTokens, cacheWriteTokens, completionTokens } = usage;
  const worker = { "spangate.worker": workerId };
  const found = { "spangate.cached_tokens": cachedTokens, "spangate.cache_write_tokens": cacheWriteTokens };
  const said = { "gen_ai.usage.output_tokens": completionTokens, "gen_ai.response.finish_reasons": reason };
  return {
    queue: worker,
    prefill: { ...worker, ...found, "gen_ai.usage.input_tokens": promptTokens },
    first_token: worker,
    decode: { ...worker, ...said },
  };
}
