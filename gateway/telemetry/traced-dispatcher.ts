/** The dispatcher, with the stages of each run as spans of the request that it is part of. */
import type { Dispatcher } from "../dispatch/dispatcher.ts";
import type { FinishedEvent, GenerationEvent } from "../dispatch/request/request.ts";
import { currentTrace, type RequestTrace } from "./tracer.ts";

export function tracedDispatcher(dispatcher: Pick<Dispatcher, "submit">): Pick<Dispatcher, "submit"> {
  return {
    submit: (request) => {
      const trace = currentTrace();
      if (trace === undefined) return dispatcher.submit(request);
      const run = new RunTrace(trace);
      try {
        const onAbandoned = (end: FinishedEvent): void => {
          run.ended(end);
          request.onAbandoned?.(end);
        };
        const onEnd = (tokens: number): void => {
          run.settled();
          request.onEnd?.(tokens);
        };
        return observed(dispatcher.submit({ ...request, onAbandoned, onEnd }), run);
      } catch (error) {
        run.failed();
        throw error;
      }
    },
  };
}

/** The stages of one run, told from its worker's timings and from when its events came. */
class RunTrace {
  readonly #trace: RequestTrace;
  readonly #leave: () => void;
  readonly #startMs = performance.now();
  #firstTokenMs: number | undefined;
  #over = false;
  #settled = false;
  #left = false;

  constructor(trace: RequestTrace) {
    this.#trace = trace;
    this.#leave = trace.hold();
  }

  tokens(): void {
    this.#firstTokenMs ??= performance.now();
  }

  ended({ reason, usage, timings, workerId }: FinishedEvent): void {
    if (this.#over) return;
    const nowMs = performance.now();
    const { queueMs, prefillMs, ttftMs } = timings;
    // The worker's clock is another one: its stages are told back from what came here.
    const firstTokenMs = this.#firstTokenMs ?? nowMs;
    const arrivedMs = Math.max(this.#startMs, firstTokenMs - Math.max(ttftMs, queueMs + prefillMs));
    const admittedMs = Math.min(arrivedMs + queueMs, firstTokenMs);
    const prefilledMs = Math.min(admittedMs + prefillMs, firstTokenMs);
    const { promptTokens, cachedTokens, cacheWriteTokens, completionTokens } = usage;
    const worker = { "spangate.worker": workerId };
    this.#trace.span("queue", this.#startMs, admittedMs, worker);
    const found = { "spangate.cached_tokens": cachedTokens, "spangate.cache_write_tokens": cacheWriteTokens };
    this.#trace.span("prefill", admittedMs, prefilledMs, {
      ...worker,
      ...found,
      "gen_ai.usage.input_tokens": promptTokens,
    });
    if (this.#firstTokenMs !== undefined) {
      this.#trace.span("first_token", prefilledMs, firstTokenMs, worker);
      const said = { "gen_ai.usage.output_tokens": completionTokens, "gen_ai.response.finish_reasons": reason };
      this.#trace.span("decode", firstTokenMs, nowMs, { ...worker, ...said });
    }
    this.#end();
  }

  /** The dispatcher is done with it; whoever reads is told how it ended. */
  settled(): void {
    this.#settled = true;
    // Of what has failed nobody else tells.
    if (this.#left) queueMicrotask(() => this.failed());
  }

  /** Nobody reads any more. */
  left(): void {
    this.#left = true;
    if (this.#settled) this.failed();
  }

  failed(): void {
    if (this.#over) return;
    this.#trace.span("run", this.#startMs, performance.now(), {}, true);
    this.#end();
  }

  #end(): void {
    this.#over = true;
    this.#leave();
  }
}

function observed(
  events: AsyncIterableIterator<GenerationEvent>,
  run: RunTrace,
): AsyncIterableIterator<GenerationEvent> {
  const note = (event: GenerationEvent | undefined): void => {
    if (event?.type === "tokens") run.tokens();
    else if (event?.type === "finished") run.ended(event);
  };
  return {
    next: async () => {
      try {
        const result = await events.next();
        note(result.done === true ? undefined : result.value);
        return result;
      } catch (error) {
        run.failed();
        throw error;
      }
    },
    return: async () => {
      await events.return?.();
      run.left();
      return { value: undefined, done: true };
    },
    [Symbol.asyncIterator]() {
      return this;
    },
  };
}
