/**
 * Server-sent events with back-pressure: a slow reader holds its own producer up, one that never reads is let go.
 * Comment pings keep the connection when there is nothing to say.
 */
import type { Context } from "hono";
import { limits } from "../config.ts";
import { type ApiError, errorBody, toApiError } from "../errors.ts";
import type { AppEnv } from "./auth.ts";

export interface SseEvent {
  /** One JSON document or word; line breaks would end the field. */
  readonly data: string;
  readonly event?: string;
  readonly id?: string;
}

export interface SseStream {
  /** Resolves when there is room for more. Does nothing once the stream is closed. */
  event(event: SseEvent): Promise<void>;
  readonly closed: boolean;
  /** Aborted when the client has gone or does not read. */
  readonly signal: AbortSignal;
}

export interface SseOptions {
  /** Told of what `produce` threw; the client is told by an error event. */
  readonly onError?: (error: ApiError) => void;
  readonly pingMs?: number;
  readonly stallMs?: number;
}

/**
 * Answers with a stream of what `produce` writes; the stream closes when it returns. When it throws, the last event
 * is `data: {"error": …}` and nothing follows.
 */
export function sseResponse(
  context: Context<AppEnv>,
  produce: (stream: SseStream) => Promise<void>,
  options: SseOptions = {},
): Response {
  context.env?.keepOpen?.();
  context.header("content-type", "text/event-stream; charset=utf-8");
  context.header("cache-control", "no-cache, no-transform");
  context.header("x-accel-buffering", "no");
  const body = new SseWriter(options).start(produce);
  // HEAD is answered with the headers of a GET: the stream is dropped unread, and nothing would ever end it.
  if (context.req.method !== "HEAD") return context.body(body);
  void body.cancel();
  return context.body(null);
}

class SseWriter implements SseStream {
  readonly #options: SseOptions;
  readonly #encoder = new TextEncoder();
  readonly #gone = new AbortController();
  #controller: ReadableStreamDefaultController<Uint8Array> | undefined;
  #room: PromiseWithResolvers<void> | undefined;
  #lastWriteMs = 0;
  #closed = false;

  constructor(options: SseOptions) {
    this.#options = options;
  }

  get closed(): boolean {
    return this.#closed;
  }

  get signal(): AbortSignal {
    return this.#gone.signal;
  }

  start(produce: (stream: SseStream) => Promise<void>): ReadableStream<Uint8Array> {
    return new ReadableStream<Uint8Array>(
      {
        start: (controller) => {
          this.#controller = controller;
          void this.#run(produce);
        },
        pull: () => this.#makeRoom(),
        cancel: () => this.#end(),
      },
      { highWaterMark: limits.streamBufferBytes, size: (chunk) => chunk?.byteLength ?? 0 },
    );
  }

  async event({ data, event, id }: SseEvent): Promise<void> {
    const lines = data.includes("\n") ? data.split("\n").map((line) => `data: ${line}\n`) : [`data: ${data}\n`];
    const head = (id === undefined ? "" : `id: ${id}\n`) + (event === undefined ? "" : `event: ${event}\n`);
    this.#write(`${head}${lines.join("")}\n`);
    if (this.#closed || (this.#controller?.desiredSize ?? 0) > 0) return;
    await this.#waitForRoom();
  }

  async #run(produce: (stream: SseStream) => Promise<void>): Promise<void> {
    const pingMs = this.#options.pingMs ?? limits.streamPingMs;
    const timer = setInterval(() => {
      const silent = performance.now() - this.#lastWriteMs >= pingMs / 2;
      // A reader that is behind needs no sign of life, and gets nothing more to buffer.
      if (silent && (this.#controller?.desiredSize ?? 0) > 0) this.#write(": ping\n\n");
    }, pingMs / 2);
    try {
      await produce(this);
    } catch (thrown) {
      const error = toApiError(thrown);
      this.#write(`data: ${JSON.stringify(errorBody(error))}\n\n`);
      if (!this.#gone.signal.aborted) this.#options.onError?.(error);
    } finally {
      clearInterval(timer);
      if (!this.#closed) {
        this.#closed = true;
        this.#controller?.close();
      }
    }
  }

  #write(text: string): void {
    if (this.#closed) return;
    this.#lastWriteMs = performance.now();
    this.#controller?.enqueue(this.#encoder.encode(text));
  }

  async #waitForRoom(): Promise<void> {
    this.#room ??= Promise.withResolvers<void>();
    const timer = setTimeout(() => this.#end(), this.#options.stallMs ?? limits.streamStallMs);
    await this.#room.promise;
    clearTimeout(timer);
  }

  #makeRoom(): void {
    this.#room?.resolve();
    this.#room = undefined;
  }

  /** Nobody reads any more. */
  #end(): void {
    if (!this.#closed) {
      this.#closed = true;
      try {
        this.#controller?.close();
      } catch {
        // Cancelled by the reader: it is closed already.
      }
    }
    this.#gone.abort();
    this.#makeRoom();
  }
}
