/**
 * One completion: its plan is dispatched, a reader turns its tokens into text and tool calls, and a stop string may end
 * it. The completions of one request are merged into one sequence of events.
 */
import { EventQueue } from "../base/event-queue.ts";
import type { Awaitable } from "../corpus/search/retrieve.ts";
import type { Dispatcher } from "../dispatch/dispatcher.ts";
import type { DispatchRequest, FinishedEvent } from "../dispatch/request/request.ts";
import type { TokenBytes } from "../text/detokenizer.ts";
import { AnswerReader, type AnswerReading, type TokenReader } from "./answer-reader.ts";
import type { CompletionEvent, EndEvent } from "./events.ts";

/** The request to run, and the callback for its end. */
export interface RunInput extends Omit<DispatchRequest, "onAbandoned"> {
  readonly signal: AbortSignal;
  /**
   * Called once when the run has ended, even if the reader of its events has left. Not called when the run has failed.
   */
  readonly onRunEnd?: ((end: EndEvent) => void) | undefined;
}

export interface GenerationInput extends RunInput, AnswerReading {}

/** Runs a plan and reads its tokens as an answer. @throws ApiError as Dispatcher.submit does */
export function generate(
  dispatcher: Pick<Dispatcher, "submit">,
  tokenBytes: TokenBytes,
  input: GenerationInput,
): AsyncGenerator<CompletionEvent, void> {
  const open = (): TokenReader => new AnswerReader(tokenBytes, input);
  return runRead(dispatcher, input, open, input.stops.length > 0);
}

/**
 * Runs a plan and passes its tokens to a reader.
 * @param open makes a reader at the start, and a new one whenever the tokens so far became void
 * @param mayStop whether a reader may end the answer before its worker does
 * @throws ApiError as Dispatcher.submit does
 */
export function runRead(
  dispatcher: Pick<Dispatcher, "submit">,
  input: RunInput,
  open: () => TokenReader,
  mayStop = true,
): AsyncGenerator<CompletionEvent, void> {
  const { signal, onRunEnd } = input;
  const stopper = mayStop ? new AbortController() : undefined;
  const onAbandoned = (event: FinishedEvent): void => onRunEnd?.(endOf(event, unread(event)));
  // The plan is submitted now, not at the first read, so that several completions run side by side and a refusal is
  // thrown here.
  const either = stopper === undefined ? signal : AbortSignal.any([signal, stopper.signal]);
  const events = dispatcher.submit({ ...input, onAbandoned, signal: either });
  return eventsRead(events, open, { stopper, onRunEnd });
}

async function* eventsRead(
  events: ReturnType<Dispatcher["submit"]>,
  open: () => TokenReader,
  { stopper, onRunEnd }: { readonly stopper: AbortController | undefined } & Pick<RunInput, "onRunEnd">,
): AsyncGenerator<CompletionEvent, void> {
  let reader = open();
  let receivedTokens = 0;
  let stop: string | undefined;
  for await (const event of events) {
    if (event.type === "tokens") {
      // Tokens that were already on their way when the stop string came are no part of the answer.
      if (stop !== undefined) continue;
      receivedTokens += event.tokenIds.length;
      const { events: read, stoppedBy } = reader.push(event.tokenIds, event.logprobs);
      for (const one of read) yield one;
      stop = stoppedBy;
      if (stop !== undefined) stopper?.abort();
      continue;
    }
    if (event.type === "restarted") {
      reader = open();
      receivedTokens = 0;
      yield { type: "restart" };
      continue;
    }
    const last = reader.end();
    const { reasoningTokens } = reader;
    const end = endOf(event, { stoppedBy: stop, receivedTokens, reasoningTokens });
    // This is called before the last events are shown, because the reader may leave at any of them.
    onRunEnd?.(end);
    for (const one of last) yield one;
    yield end;
  }
}

/** What was read of a completion when it ended. */
interface ReadSoFar {
  /** The stop string that ended it. */
  readonly stoppedBy: string | undefined;
  readonly receivedTokens: number;
  readonly reasoningTokens: number;
}

/** Nobody reads: what the tokens were is not known. */
const unread = ({ usage }: FinishedEvent): ReadSoFar => {
  return { stoppedBy: undefined, receivedTokens: usage.completionTokens, reasoningTokens: 0 };
};

/** The end of a completion as its reader sees it. */
function endOf(report: FinishedEvent, { stoppedBy, receivedTokens, reasoningTokens }: ReadSoFar): EndEvent {
  const read = { type: "end", stoppedBy, reasoningTokens, report } as const;
  if (stoppedBy !== undefined) return { ...read, reason: "stop", completionTokens: receivedTokens };
  const reason = report.reason === "prepared" ? "length" : report.reason;
  return { ...read, reason, completionTokens: report.usage.completionTokens };
}

/** The events of several completions as they come, each with the index of its completion. */
export type MergedEvents = AsyncGenerator<readonly [index: number, event: CompletionEvent], void>;

export interface MergeOptions {
  /**
   * Called with the error of a failed completion. What it throws is thrown to the reader; if it returns, the events end
   * without an error.
   */
  readonly onError?: (error: unknown) => void;
  /** Called when the events have ended or the reader has left. */
  readonly onEnd?: () => void;
}

const rethrow = (error: unknown): never => {
  throw error;
};

/**
 * Merges completions. When one fails, or the reader leaves, all of them end.
 * @param start makes the completions; it is called when the first event is asked for
 */
export async function* mergeCompletions(
  start: () => Awaitable<readonly AsyncGenerator<CompletionEvent, void>[]>,
  { onError = rethrow, onEnd }: MergeOptions = {},
): MergedEvents {
  let completions: readonly AsyncGenerator<CompletionEvent, void>[] = [];
  try {
    completions = await start();
    const [only] = completions;
    if (only !== undefined && completions.length === 1) {
      for await (const event of only) yield [0, event];
      return;
    }
    let running = completions.length;
    if (running === 0) return;
    const { steps, advance } = stepsOf(completions);
    for await (const { index, result } of steps) {
      if (result.done !== true) {
        yield [index, result.value];
        advance(index);
        continue;
      }
      running -= 1;
      if (running === 0) return;
    }
  } catch (error) {
    onError(error);
  } finally {
    // A generator that waits for its next event cannot return yet; the abort of the request's signal ends that wait.
    for (const completion of completions) void completion.return().catch(() => undefined);
    onEnd?.();
  }
}

interface Step {
  readonly index: number;
  readonly result: IteratorResult<CompletionEvent, void>;
}

/** The next event of each completion, as they come. `advance` asks a completion for its next event. */
function stepsOf(completions: readonly AsyncGenerator<CompletionEvent, void>[]) {
  // A queue is used instead of Promise.race, which would leave one more reaction on every waiting completion at each
  // event.
  const steps = new EventQueue<Step>(() => undefined);
  const advance = (index: number): void => {
    completions[index]?.next().then(
      (result) => steps.push({ index, result }),
      (error) => steps.fail(error),
    );
  };
  for (const index of completions.keys()) advance(index);
  return { steps, advance };
}
