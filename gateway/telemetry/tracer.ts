/**
 * Traces what a request spends its time on, as spans: the request itself and under it retrieval, lowering, and the
 * queue, prefill, first token and decode of each run. Names and attributes come from fixed sets and from the server's
 * own ids and counts. They hold no text, key or salt, and of the caller's headers only the trace's ids.
 *
 * There are two sinks. A collector, where one is set, has a share of the requests, as OpenTelemetry's spans. The server's
 * own memory has the last requests of each tenant (trace-ring.ts), whoever collects.
 */
import { randomBytes } from "node:crypto";
import type { FinishedEvent } from "../dispatch/request/request.ts";
import { type EndedTrace, type RequestFacts, TraceParts } from "./ended-trace.ts";
import type { Attributes, FinishedSpan, SpanExporter } from "./exporter.ts";

/**
 * Runs a part of a request's work as a span of it.
 * @param trace undefined: nothing is noted
 */
export const traced = <Result>(
  trace: RequestTrace | undefined,
  name: string,
  work: () => Result | Promise<Result>,
  attributesOf?: (result: Result) => Attributes,
): Result | Promise<Result> => (trace === undefined ? work() : noted(trace, name, work, attributesOf));

async function noted<Result>(
  trace: RequestTrace,
  name: string,
  work: () => Result | Promise<Result>,
  attributesOf?: (result: Result) => Attributes,
): Promise<Result> {
  const startMs = performance.now();
  trace.enter();
  let failed = true;
  let attributes: Attributes | undefined;
  try {
    const result = await work();
    failed = false;
    if (trace.isExported) attributes = attributesOf?.(result);
    return result;
  } finally {
    trace.span(name, startMs, performance.now(), attributes, failed);
    trace.leave();
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
  /** Traces that have not ended, by the id of their request. */
  readonly #open = new Map<string, RequestTrace>();

  /** @param ratio the share of requests that is exported when the caller makes no decision */
  constructor(sinks: TracerSinks, ratio = 1, random: () => number = Math.random) {
    this.#sinks = sinks;
    this.#ratio = ratio;
    this.#random = random;
  }

  /**
   * Begins the trace of a request. It ends with `leave`, or with the last part of the request's work where that is later.
   * @param traceparent the caller's header (W3C Trace Context): its trace continues and its sampling decision holds
   * @returns undefined: the request is not traced
   */
  begin(requestId: string, traceparent: string | undefined): RequestTrace | undefined {
    const { exporter, keep } = this.#sinks;
    const parent = exporter === undefined ? undefined : parentOf(traceparent);
    const isExported = exporter !== undefined && (parent?.sampled ?? this.#random() < this.#ratio);
    if (!isExported && keep === undefined) return undefined;
    const exported = isExported ? new ExportedSpans(exporter, parent) : undefined;
    const trace = new RequestTrace(exported, keep, () => {
      if (this.#open.get(requestId) === trace) this.#open.delete(requestId);
    });
    this.#open.set(requestId, trace);
    return trace;
  }

  /**
   * The trace of the request that some work belongs to, while it has not ended.
   * @param workId the request's id, alone or followed by a point and more
   */
  of(workId: string): RequestTrace | undefined {
    const point = workId.indexOf(".");
    return this.#open.get(point < 0 ? workId : workId.slice(0, point));
  }

  /** Nothing is kept of what still runs for a tenant that is deleted. */
  forget(tenantId: string): void {
    for (const trace of this.#open.values()) trace.forget(tenantId);
  }

  async stop(): Promise<void> {
    await this.#sinks.exporter?.stop();
  }
}

/** Finds the trace of the request that some work belongs to; see `Tracer.of`. */
export type TraceOf = (workId: string) => RequestTrace | undefined;

export class RequestTrace {
  readonly #exported: ExportedSpans | undefined;
  readonly #keep: TracerSinks["keep"];
  readonly #onEnd: () => void;
  readonly #startMs = performance.now();
  /** Made with the first part: most requests only read, and have none. */
  #parts: TraceParts | undefined;
  #facts: RequestFacts | undefined;
  /** Tenants that were deleted meanwhile. */
  #forgotten: string[] | undefined;
  /** Parts that have not ended, the request's own among them. */
  #open = 1;
  /** When the last part that has ended did. */
  #endMs = this.#startMs;

  constructor(exported: ExportedSpans | undefined, keep: TracerSinks["keep"], onEnd: () => void) {
    this.#exported = exported;
    this.#keep = keep;
    this.#onEnd = onEnd;
  }

  /** Whether anybody reads attributes. */
  get isExported(): boolean {
    return this.#exported !== undefined;
  }

  describe(facts: RequestFacts): void {
    this.#facts = facts;
  }

  forget(tenantId: string): void {
    this.#forgotten ??= [];
    this.#forgotten.push(tenantId);
  }

  /** A part begins, or may still begin. */
  enter(): void {
    this.#open += 1;
  }

  /** A part has ended. The trace ends with the last one. */
  leave(): void {
    this.#endMs = performance.now();
    this.release();
  }

  /** No further part begins, as of an answer whose stream has ended: how long a client reads is no time of the request's. */
  release(): void {
    this.#open -= 1;
    if (this.#open > 0) return;
    this.#onEnd();
    const endMs = this.#endMs;
    const facts = this.#facts;
    this.#exported?.request(this.#startMs, endMs, facts);
    if (facts === undefined || this.#parts === undefined) return;
    if (facts.tenantId !== undefined && this.#forgotten?.includes(facts.tenantId)) return;
    this.#keep?.(this.#parts.ended(endMs, facts));
  }

  /** The number of a run that begins now, for its parts. */
  beginRun(): number {
    return this.#noted?.beginRun() ?? 0;
  }

  /** Notes what a run used and where its KV was from. @param plan the plan it ran: choices of an answer share one */
  ran(run: number, plan: object, end: FinishedEvent, firstTokenMs: number | undefined): void {
    this.#noted?.ran(run, plan, end, firstTokenMs);
  }

  /**
   * Adds a span for a part of the request. Times are by performance.now().
   * @param run the run that it is a part of; absent: it is the request's as a whole
   */
  span(name: string, startMs: number, endMs: number, attributes: Attributes = {}, failed = false, run?: number): void {
    const lastMs = Math.max(startMs, endMs);
    this.#exported?.part(name, startMs, lastMs, attributes, failed);
    this.#noted?.add(name, startMs, lastMs, failed, run);
  }

  get #noted(): TraceParts | undefined {
    if (this.#keep !== undefined) this.#parts ??= new TraceParts(this.#startMs);
    return this.#parts;
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
