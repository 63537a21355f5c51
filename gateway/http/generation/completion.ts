/** What every generating route does: it collects the choices, and answers whole or as a stream. */
import type { Context } from "hono";
import type { ApiError } from "../../base/errors.ts";
import type { MergedEvents } from "../../generate/completion.ts";
import type { ArgumentsEvent, CallEvent, CompletionEvent, TextEvent, ThinkingEvent } from "../../generate/events.ts";
import type { AppEnv } from "../transport/context.ts";
import { type SseFraming, type SseStream, sseResponse } from "../transport/sse.ts";
import { type Choice, collect, finishReasonOf } from "./choice.ts";

/** One request that is running. */
export interface Completion {
  /** Ends after one `end` event per choice. */
  readonly events: MergedEvents;
  readonly choices: readonly Choice[];
  readonly client: AbortController;
  /** Called once, however it ends. */
  readonly onEnd: () => void;
}

/** How a stream's chunks look. */
export interface ChunkShape {
  /** `id`, `object`, `created`, `model` of every chunk. */
  readonly shared: object;
  /** One entry of `choices` each. */
  readonly begin?: (index: number) => object;
  readonly text: (index: number, event: TextEvent) => object;
  /** Absent where no thinking is read. */
  readonly thinking?: (index: number, event: ThinkingEvent) => object;
  /** Absent where no tool may be called. */
  readonly call?: (index: number, event: CallEvent | ArgumentsEvent) => object;
  readonly end: (index: number, finishReason: string) => object;
  /** Further fields of the chunk that ends a choice. */
  readonly endFields?: (index: number) => Promise<object>;
  /** Fields of a last chunk without choices; every other chunk has `usage: null` then. */
  readonly summary: (() => object | Promise<object>) | undefined;
}

/** @param answer called when every choice has ended */
export async function answerWhole(
  context: Context<AppEnv>,
  { events, choices, client, onEnd }: Completion,
  answer: () => object | Promise<object>,
): Promise<Response> {
  const unwatch = context.get("watchCaller")?.((error) => client.abort(error));
  try {
    for await (const [index, event] of events) collect(choices[index], event);
    // A run that is aborted ends without an error: its caller does not count any more.
    client.signal.throwIfAborted();
    return context.json(await answer());
  } finally {
    unwatch?.();
    onEnd();
  }
}

/** How long the status waits for the first event: a failure within this time is an HTTP error, not an event in a 200. */
const defaultFirstEventMs = 2_000;

export interface StreamAnswerOptions {
  /** Called with the error that ends the stream early. */
  readonly onError: (error: ApiError) => void;
  readonly firstEventMs?: number | undefined;
  readonly framing?: SseFraming | undefined;
}

/** An answer in chunks as OpenAI's clients read them. */
export const answerStreamed = (
  context: Context<AppEnv>,
  completion: Completion,
  shape: ChunkShape,
  options: StreamAnswerOptions,
): Promise<Response> =>
  answerInEvents(
    context,
    completion,
    (stream, forEachEvent) => writeStream(stream, completion, shape, forEachEvent),
    options,
  );

/** Calls `take` with every event, once it is in its choice. Resolves early when nobody reads any more. */
export type ForEachEvent = (take: (event: CompletionEvent, index: number) => Promise<void>) => Promise<void>;

/** @param write writes the whole answer */
export async function answerInEvents(
  context: Context<AppEnv>,
  completion: Completion,
  write: (stream: SseStream, forEachEvent: ForEachEvent) => Promise<void>,
  { onError, framing, firstEventMs = defaultFirstEventMs }: StreamAnswerOptions,
): Promise<Response> {
  const { events, choices, client, onEnd } = completion;
  const first = events.next();
  first.catch(() => undefined);
  const timer = Promise.withResolvers<void>();
  const timeout = setTimeout(timer.resolve, firstEventMs);
  try {
    await Promise.race([first, timer.promise]);
  } catch (error) {
    onEnd();
    throw error;
  } finally {
    clearTimeout(timeout);
  }
  const produce = async (stream: SseStream): Promise<void> => {
    stream.signal.addEventListener("abort", () => client.abort(), { once: true });
    const forEachEvent: ForEachEvent = async (take) => {
      for (let next = await first; next.done !== true && !stream.closed; next = await events.next()) {
        const [index, event] = next.value;
        collect(choices[index], event);
        await take(event, index);
      }
    };
    try {
      await write(stream, forEachEvent);
    } finally {
      onEnd();
      void events.return();
    }
  };
  return sseResponse(context, produce, { onError, framing });
}

async function writeStream(
  stream: SseStream,
  { choices }: Completion,
  { shared, begin, text, thinking, call, end, endFields, summary }: ChunkShape,
  forEachEvent: ForEachEvent,
): Promise<void> {
  const common = summary === undefined ? shared : { ...shared, usage: null };
  const write = (fields: object): Promise<void> => stream.event({ data: JSON.stringify({ ...common, ...fields }) });
  if (begin !== undefined) for (const index of choices.keys()) await write({ choices: [begin(index)] });
  await forEachEvent(async (event, index) => {
    if (event.type === "text") await write({ choices: [text(index, event)] });
    else if (event.type === "end") {
      const last = end(index, finishReasonOf(event.reason, choices[index]?.calls.length));
      await write({ choices: [last], ...(await endFields?.(index)) });
    } else if (event.type === "thinking") {
      if (thinking !== undefined) await write({ choices: [thinking(index, event)] });
    } else if (event.type !== "restart" && call !== undefined) await write({ choices: [call(index, event)] });
  });
  if (stream.closed) return;
  if (summary !== undefined) await write({ choices: [], ...(await summary()) });
  await stream.event({ data: "[DONE]" });
}
