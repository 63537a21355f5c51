/** Server-sent events. Comment pings keep the connection when there is nothing to say. */
import type { Context } from "hono";
import { errorBody } from "../../base/errors.ts";
import type { AppEnv } from "./context.ts";
import { type Framing, type TextStream, type TextStreamOptions, textStreamResponse } from "./text-stream.ts";

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

export interface SseOptions extends TextStreamOptions {
  /** How pings and errors look, where they differ from what OpenAI's clients read. */
  readonly framing?: SseFraming | undefined;
}

export type SseFraming = Pick<Framing, "ping" | "error">;

const openaiFraming: SseFraming = {
  ping: ": ping\n\n",
  error: (error) => `data: ${JSON.stringify(errorBody(error))}\n\n`,
};

/**
 * Answers with a stream of what `produce` writes; the stream closes when it returns. When it throws, the last event
 * is `data: {"error": …}` and nothing follows.
 */
export function sseResponse(
  context: Context<AppEnv>,
  produce: (stream: SseStream) => Promise<void>,
  options: SseOptions = {},
): Promise<Response> {
  const framing = { contentType: "text/event-stream; charset=utf-8", ...(options.framing ?? openaiFraming) };
  return textStreamResponse(context, framing, (stream) => produce(new EventWriter(stream)), options);
}

class EventWriter implements SseStream {
  readonly #stream: TextStream;

  constructor(stream: TextStream) {
    this.#stream = stream;
  }

  get closed(): boolean {
    return this.#stream.closed;
  }

  get signal(): AbortSignal {
    return this.#stream.signal;
  }

  event({ data, event, id }: SseEvent): Promise<void> {
    const lines = data.includes("\n") ? data.split("\n").map((line) => `data: ${line}\n`) : [`data: ${data}\n`];
    const head = (id === undefined ? "" : `id: ${id}\n`) + (event === undefined ? "" : `event: ${event}\n`);
    return this.#stream.write(`${head}${lines.join("")}\n`);
  }
}
