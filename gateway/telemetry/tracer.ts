/**
 * What a request spends its time on, as spans: the request itself and under it retrieval, lowering, and the queue,
 * prefill, first token and decode of each run. Names and attributes come from fixed sets and from our own ids and
 * counts: no text, no key, no salt, and nothing of the caller's headers but the trace's own ids.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import { randomBytes } from "node:crypto";
import type { Attributes, SpanExporter } from "./exporter.ts";

/** The request that the present work is part of; there is none while nothing is traced. */
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
  const leave = trace.hold();
  try {
    const result = await work();
    trace.span(name, startMs, performance.now(), attributesOf?.(result));
    return result;
  } catch (error) {
    trace.span(name, startMs, performance.now(), {}, true);
    throw error;
  } finally {
    leave();
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

  /** @param ratio share of the requests without a caller's decision that is traced */
  constructor(exporter: Pick<SpanExporter, "add" | "stop">, ratio: number, random: () => number = Math.random) {
    this.#exporter = exporter;
    this.#ratio = ratio;
    this.#random = random;
  }

  /**
   * Runs a request; its span ends with the last part of its work, which may be after its handler.
   * @param traceparent the caller's header (W3C Trace Context): its trace goes on, and its decision holds
   */
  async request(
    traceparent: string | undefined,
    work: (trace: RequestTrace | undefined) => Promise<void>,
  ): Promise<void> {
    const parent = parentOf(traceparent);
    if (!(parent?.sampled ?? this.#random() < this.#ratio)) return await work(undefined);
    const trace = new RequestTrace(this.#exporter, parent);
    const leave = trace.hold();
    try {
      await current.run(trace, () => work(trace));
    } finally {
      leave();
    }
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
  /** The clock is set now and then, and stands while the machine sleeps: what performance.now() counts from moves. */
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

  /** The request goes on until what this gives is called, once. */
  hold(): () => void {
    this.#held += 1;
    return () => {
      this.#held -= 1;
      if (this.#held > 0) return;
      this.#add(this.#name, this.#startMs, performance.now(), this.#attributes, this.#failed);
    };
  }

  /** A part of the request. Times by performance.now(). */
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

/** W3C Trace Context: version-traceid-parentid-flags; undefined when it is none. */
function parentOf(header: string | undefined): Parent | undefined {
  const match = /^(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/.exec(header ?? "");
  const [, traceId = "", spanId = "", flags = "", rest] = match ?? [];
  if (match === null || /^0+$/.test(traceId) || /^0+$/.test(spanId)) return undefined;
  if (rest !== undefined && header?.startsWith("00")) return undefined;
  return { traceId, spanId, sampled: (Number.parseInt(flags, 16) & 1) === 1 };
}
