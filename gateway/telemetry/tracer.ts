/**
 * Traces what a request spends its time on, as spans: the request itself and under it retrieval, lowering, and the
 * queue, prefill, first token and decode of each run. Names and attributes come from fixed sets and from the server's
 * own ids and counts. They hold no text, key or salt, and of the caller's headers only the trace's ids.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import { randomBytes } from "node:crypto";
import { type Hold, holdUntil } from "../base/hold.ts";
import type { Attributes, SpanExporter } from "./exporter.ts";

/** The trace of the request that the running code works for; there is none while nothing is traced. */
const current = new AsyncLocalStorage<RequestTrace>();

export const currentTrace = (): RequestTrace | undefined => current.getStore();

/** Runs a part of a request's work as a span of it. */
export async function traced<Result>(
  name: string,
  work: () => Result | Promise<Result>,
  attributesOf?: (result: Result) => Attributes,
): Promise<Result> {
  const trace = current.getStore();
  if (trace === undefined) return await work();
  const startMs = performance.now();
  using _hold = trace.hold();
  try {
    const result = await work();
    trace.span(name, startMs, performance.now(), attributesOf?.(result));
    return result;
  } catch (error) {
    trace.span(name, startMs, performance.now(), {}, true);
    throw error;
  }
}

interface Parent {
  readonly traceId: string;
  readonly spanId: string;
  readonly sampled: boolean;
}

export class Tracer {
  readonly #exporter: Pick<SpanExporter, "add" | "stop">;
  readonly #ratio: number;
  readonly #random: () => number;

  /** @param ratio the share of requests that is traced when the caller makes no decision */
  constructor(exporter: Pick<SpanExporter, "add" | "stop">, ratio: number, random: () => number = Math.random) {
    this.#exporter = exporter;
    this.#ratio = ratio;
    this.#random = random;
  }

  /**
   * Runs a request. Its span ends with the last part of its work, which may be after its handler has returned.
   * @param traceparent the caller's header (W3C Trace Context): its trace continues and its sampling decision holds
   */
  async request(
    traceparent: string | undefined,
    work: (trace: RequestTrace | undefined) => Promise<void>,
  ): Promise<void> {
    const parent = parentOf(traceparent);
    if (!(parent?.sampled ?? this.#random() < this.#ratio)) return await work(undefined);
    const trace = new RequestTrace(this.#exporter, parent);
    using _hold = trace.hold();
    await current.run(trace, () => work(trace));
  }

  async stop(): Promise<void> {
    await this.#exporter.stop();
  }
}

export class RequestTrace {
  readonly #exporter: Pick<SpanExporter, "add">;
  readonly #traceId: string;
  readonly #spanId = randomBytes(8).toString("hex");
  readonly #parentSpanId: string | undefined;
  readonly #startMs = performance.now();
  /**
   * Computed for each request, because the wall clock may be set and performance.now() may stand still while the
   * machine sleeps.
   */
  readonly #originMs = Date.now() - this.#startMs;
  #name = "request";
  #attributes: Attributes = {};
  #failed = false;
  #held = 0;

  constructor(exporter: Pick<SpanExporter, "add">, parent: Parent | undefined) {
    this.#exporter = exporter;
    this.#traceId = parent?.traceId ?? randomBytes(16).toString("hex");
    this.#parentSpanId = parent?.spanId;
  }

  describe(name: string, attributes: Attributes, failed: boolean): void {
    this.#name = name;
    this.#attributes = attributes;
    this.#failed = failed;
  }

  /** Keeps the request's span open until the hold ends, once. */
  hold(): Hold {
    this.#held += 1;
    return holdUntil(() => {
      this.#held -= 1;
      if (this.#held > 0) return;
      this.#add(this.#name, this.#startMs, performance.now(), this.#attributes, this.#failed);
    });
  }

  /** Adds a span for a part of the request. Times are by performance.now(). */
  span(name: string, startMs: number, endMs: number, attributes: Attributes = {}, failed = false): void {
    this.#add(name, startMs, Math.max(startMs, endMs), attributes, failed, this.#spanId);
  }

  #add(name: string, startMs: number, endMs: number, attributes: Attributes, failed: boolean, parent?: string): void {
    const isRequest = parent === undefined;
    this.#exporter.add({
      traceId: this.#traceId,
      spanId: isRequest ? this.#spanId : randomBytes(8).toString("hex"),
      parentSpanId: parent ?? this.#parentSpanId,
      name,
      kind: isRequest ? "server" : "internal",
      startMs: this.#originMs + startMs,
      endMs: this.#originMs + endMs,
      attributes,
      failed,
    });
  }
}

/** Parses a W3C Trace Context header: version-traceid-parentid-flags. undefined: the header is invalid. */
function parentOf(header: string | undefined): Parent | undefined {
  const match = /^(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/.exec(header ?? "");
  const [, traceId = "", spanId = "", flags = "", rest] = match ?? [];
  if (match === null || /^0+$/.test(traceId) || /^0+$/.test(spanId)) return undefined;
  if (rest !== undefined && header?.startsWith("00")) return undefined;
  return { traceId, spanId, sampled: (Number.parseInt(flags, 16) & 1) === 1 };
}
