/**
 * Traces what a request spends its time on, as spans: the request itself and under it retrieval, lowering, and the
 * queue, prefill, first token and decode of each run. Names and attributes come from fixed sets and from the server's
 * own ids and counts. They hold no text, key or salt, and of the caller's headers only the trace's ids.
 *
 * There are two sinks. A collector, where one is set, has a share of the requests, as OpenTelemetry's spans. The server's
 * own memory has the last requests of each tenant (trace-ring.ts), whoever collects.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import { randomBytes } from "node:crypto";
import { type Hold, holdUntil } from "../base/hold.ts";
import type { FinishedEvent } from "../dispatch/request/request.ts";
import { type EndedTrace, type RequestFacts, TraceParts } from "./ended-trace.ts";
import type { Attributes, FinishedSpan, SpanExporter } from "./exporter.ts";

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

type SpanSink = Pick<SpanExporter, "add" | "stop">;

export interface TracerSinks {
  /** Absent: no collector is set. */
  readonly exporter?: SpanSink | undefined;
  /** Called with each request that had a part that took time, once its last part has ended. Absent: nothing is kept. */
  readonly keep?: ((trace: EndedTrace) => void) | undefined;
}

export class Tracer {
  readonly #sinks: TracerSinks;
  readonly #ratio: number;
  readonly #random: () => number;

  /** @param ratio the share of requests that is exported when the caller makes no decision */
  constructor(sinks: TracerSinks, ratio = 1, random: () => number = Math.random) {
    this.#sinks = sinks;
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
    const { exporter, keep } = this.#sinks;
    const parent = exporter === undefined ? undefined : parentOf(traceparent);
    const isExported = exporter !== undefined && (parent?.sampled ?? this.#random() < this.#ratio);
    if (!isExported && keep === undefined) return await work(undefined);
    const trace = new RequestTrace(isExported ? new ExportedSpans(exporter, parent) : undefined, keep);
    using _hold = trace.hold();
    await current.run(trace, () => work(trace));
  }

  async stop(): Promise<void> {
    await this.#sinks.exporter?.stop();
  }
}

export class RequestTrace {
  readonly #exported: ExportedSpans | undefined;
  readonly #keep: TracerSinks["keep"];
  readonly #parts: TraceParts | undefined;
  readonly #startMs = performance.now();
  #facts: RequestFacts | undefined;
  #held = 0;

  constructor(exported: ExportedSpans | undefined, keep: TracerSinks["keep"]) {
    this.#exported = exported;
    this.#keep = keep;
    this.#parts = keep === undefined ? undefined : new TraceParts(this.#startMs);
  }

  describe(facts: RequestFacts): void {
    this.#facts = facts;
  }

  /** Keeps the request's span open until the hold ends, once. */
  hold(): Hold {
    this.#held += 1;
    return holdUntil(() => {
      this.#held -= 1;
      if (this.#held > 0) return;
      const endMs = performance.now();
      this.#exported?.request(this.#startMs, endMs, this.#facts);
      if (this.#facts === undefined) return;
      const ended = this.#parts?.ended(endMs, this.#facts);
      if (ended !== undefined) this.#keep?.(ended);
    });
  }

  /** The number of a run that begins now, for its parts. */
  beginRun(): number {
    return this.#parts?.beginRun() ?? 0;
  }

  /** Notes what a run used and where its KV was from. @param plan the plan it ran: choices of an answer share one */
  ran(run: number, plan: object, end: FinishedEvent, firstTokenMs: number | undefined): void {
    this.#parts?.ran(run, plan, end, firstTokenMs);
  }

  /**
   * Adds a span for a part of the request. Times are by performance.now().
   * @param run the run that it is a part of; absent: it is the request's as a whole
   */
  span(name: string, startMs: number, endMs: number, attributes: Attributes = {}, failed = false, run?: number): void {
    const lastMs = Math.max(startMs, endMs);
    this.#exported?.part(name, startMs, lastMs, attributes, failed);
    this.#parts?.add(name, startMs, lastMs, failed, run);
  }
}

/** A request's spans on their way to the collector. */
class ExportedSpans {
  readonly #exporter: Pick<SpanExporter, "add">;
  readonly #traceId: string;
  readonly #spanId = randomBytes(8).toString("hex");
  readonly #parentSpanId: string | undefined;
  /**
   * Computed for each request, because the wall clock may be set and performance.now() may stand still while the
   * machine sleeps.
   */
  readonly #originMs = Date.now() - performance.now();

  constructor(exporter: Pick<SpanExporter, "add">, parent: Parent | undefined) {
    this.#exporter = exporter;
    this.#traceId = parent?.traceId ?? randomBytes(16).toString("hex");
    this.#parentSpanId = parent?.spanId;
  }

  request(startMs: number, endMs: number, facts: RequestFacts | undefined): void {
    const { method, route, status, requestId } = facts ?? {};
    const name = facts === undefined ? "request" : `${method} ${route}`;
    const attributes =
      facts === undefined
        ? {}
        : {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "spangate.request_id": requestId,
          };
    const ids = { spanId: this.#spanId, parentSpanId: this.#parentSpanId };
    this.#add({ ...ids, name, kind: "server", startMs, endMs, attributes, failed: (status ?? 0) >= 500 });
  }

  part(name: string, startMs: number, endMs: number, attributes: Attributes, failed: boolean): void {
    const ids = { spanId: randomBytes(8).toString("hex"), parentSpanId: this.#spanId };
    this.#add({ ...ids, name, kind: "internal", startMs, endMs, attributes, failed });
  }

  #add(span: Omit<FinishedSpan, "traceId">): void {
    const { startMs, endMs } = span;
    const times = { startMs: this.#originMs + startMs, endMs: this.#originMs + endMs };
    this.#exporter.add({ ...span, ...times, traceId: this.#traceId });
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
