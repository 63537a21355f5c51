/**
 * A response that is written piece by piece, with back-pressure: a slow reader holds its own producer up, one that
 * never reads is let go, and one whose key is revoked meanwhile is told so. Pings keep the connection when there is nothing to say.
 */
import type { Context } from "hono";
import { type ApiError, toApiError } from "../../base/errors.ts";
import { limits } from "../../config.ts";
import type { AppEnv } from "./context.ts";

export interface TextStream {
  /** Resolves when there is room for more. Does nothing once the stream is closed. */
  write(text: string): Promise<void>;
  readonly closed: boolean;
  /** Aborted when the client has gone, does not read, or must not any more. */
  readonly signal: AbortSignal;
}

/** How a content type writes pings and errors. */
export interface Framing {
  readonly contentType: string;
  /** A ping: text that clients skip. */
  readonly ping: string;
  /** What ends a stream whose producer threw. */
  readonly error: (error: ApiError) => string;
}

export interface TextStreamOptions {
  /** Called with what `produce` threw; the client gets the framing's error. */
  readonly onError?: (error: ApiError) => void;
  readonly pingMs?: number;
  readonly stallMs?: number;
}

/**
 * Answers with what `produce` writes; the stream closes when it returns. When it throws, the error is the last that is
 * sent. An answer that is all written in this turn of the event loop leaves whole, in one system call: as a stream Bun
 * would send its head and its parts one by one, and each may wake the reader.
 */
export async function textStreamResponse(
  context: Context<AppEnv>,
  framing: Framing,
  produce: (stream: TextStream) => Promise<void>,
  options: TextStreamOptions = {},
): Promise<Response> {
  const letIdle = context.env?.holdStream?.();
  context.header("content-type", framing.contentType);
  context.header("cache-control", "no-cache, no-transform");
  context.header("x-accel-buffering", "no");
  // Bun adds it to the end of a short stream otherwise, in pieces, each with a system call.
  context.header("date", new Date().toUTCString());
  const release = context.get("held")?.holdOpen();
  const trace = context.get("trace");
  trace?.enter();
  const writer = new StreamWriter(framing, options);
  const unwatch = context.get("watchCaller")?.((error) => writer.refuse(error));
  const ended = (): void => {
    unwatch?.();
    trace?.release();
    release?.();
    letIdle?.();
  };
  const done = writer.run((stream) => produce(stream).finally(ended));
  await Promise.race([done, new Promise((resolve) => setImmediate(resolve))]);
  // HEAD is answered with the headers of a GET: what is written is dropped unread, and nothing would ever end it.
  if (context.req.method !== "HEAD") return context.body(writer.body());
  writer.end();
  return context.body(null);
}

const utf8 = new TextEncoder();

class StreamWriter implements TextStream {
  readonly #framing: Framing;
  readonly #options: TextStreamOptions;
  readonly #gone = new AbortController();
  /** What was written before there is a stream, and its size. */
  #early = "";
  #earlyBytes = 0;
  #controller: ReadableStreamDefaultController<Uint8Array> | undefined;
  #pings: ReturnType<typeof setInterval> | undefined;
  #room: PromiseWithResolvers<void> | undefined;
  #lastWriteMs = 0;
  #closed = false;

  constructor(framing: Framing, options: TextStreamOptions) {
    this.#framing = framing;
    this.#options = options;
  }

  get closed(): boolean {
    return this.#closed;
  }

  get signal(): AbortSignal {
    return this.#gone.signal;
  }

  /** Resolves when `produce` has ended. Never rejects. */
  async run(produce: (stream: TextStream) => Promise<void>): Promise<void> {
    try {
      await produce(this);
    } catch (thrown) {
      const error = toApiError(thrown);
      this.#write(this.#framing.error(error));
      if (!this.#gone.signal.aborted) this.#options.onError?.(error);
    } finally {
      clearInterval(this.#pings);
      if (!this.#closed) {
        this.#closed = true;
        this.#controller?.close();
      }
    }
  }

  /** What was written, if that is all; else a stream of it and of what follows. To be called once. */
  body(): string | ReadableStream<Uint8Array> {
    if (this.#closed) return this.#early;
    return new ReadableStream<Uint8Array>(
      {
        start: (controller) => this.#open(controller),
        pull: () => this.#makeRoom(),
        cancel: () => this.end(),
      },
      { highWaterMark: limits.streamBufferBytes, size: (chunk) => chunk?.byteLength ?? 0 },
    );
  }

  async write(text: string): Promise<void> {
    this.#write(text);
    if (this.#closed || this.#freeBytes > 0) return;
    await this.#waitForRoom();
  }

  /** Ends the stream with an error: whoever reads it must not any more. */
  refuse(error: ApiError): void {
    this.#write(this.#framing.error(error));
    this.end();
  }

  /** The client has gone, does not read, or must not any more. */
  end(): void {
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

  #open(controller: ReadableStreamDefaultController<Uint8Array>): void {
    this.#controller = controller;
    if (this.#early !== "") controller.enqueue(utf8.encode(this.#early));
    this.#early = "";
    const pingMs = this.#options.pingMs ?? limits.streamPingMs;
    this.#pings = setInterval(() => {
      const silent = performance.now() - this.#lastWriteMs >= pingMs / 2;
      // A reader that is behind has unread text waiting, so it needs no ping.
      if (silent && this.#freeBytes > 0) this.#write(this.#framing.ping);
    }, pingMs / 2);
  }

  /** What the buffer still takes. */
  get #freeBytes(): number {
    return this.#controller?.desiredSize ?? limits.streamBufferBytes - this.#earlyBytes;
  }

  #write(text: string): void {
    if (this.#closed) return;
    this.#lastWriteMs = performance.now();
    if (this.#controller !== undefined) {
      this.#controller.enqueue(utf8.encode(text));
      return;
    }
    this.#early += text;
    this.#earlyBytes += Buffer.byteLength(text);
  }

  async #waitForRoom(): Promise<void> {
    this.#room ??= Promise.withResolvers<void>();
    const timer = setTimeout(() => this.end(), this.#options.stallMs ?? limits.streamStallMs);
    await this.#room.promise;
    clearTimeout(timer);
  }

  #makeRoom(): void {
    this.#room?.resolve();
    this.#room = undefined;
  }
}
