/** One inner generate on a worker: its tokens, cut before a stop string. */

import { ApiError } from "../base/errors.ts";
import type { Dispatcher } from "../dispatch/dispatcher.ts";
import type { DispatchRequest, FinishedEvent } from "../dispatch/request/request.ts";
import { endOf } from "../generate/completion.ts";
import type { EndEvent } from "../generate/events.ts";
import { Detokenizer, type TokenBytes, textOfTokens } from "../text/detokenizer.ts";

export interface OutputRequest extends DispatchRequest {
  readonly signal: AbortSignal;
  readonly stops: readonly string[];
  /** Called when it has ended, aborted or not; not when it has failed. */
  readonly onRunEnd?: ((end: EndEvent) => void) | undefined;
}

export interface OutputTokens {
  readonly tokenIds: Int32Array;
  readonly end: EndEvent;
}

/** @throws ApiError as Dispatcher.submit does; the signal's reason when it aborts */
export async function outputTokens(
  dispatcher: Pick<Dispatcher, "submit">,
  tokenBytes: TokenBytes,
  { stops, signal, onRunEnd, ...request }: OutputRequest,
): Promise<OutputTokens> {
  const stopper = new AbortController();
  const events = dispatcher.submit({ ...request, signal: AbortSignal.any([signal, stopper.signal]) });
  const open = (): Reading => ({
    tokenIds: [],
    text: "",
    stopped: false,
    detokenizer: new Detokenizer(tokenBytes, stops),
  });
  let reading = open();
  for await (const event of events) {
    if (event.type === "restarted") reading = open();
    else if (event.type === "finished") {
      onRunEnd?.(endOf(event, reading.stopped, reading.tokenIds.length));
      return outputOf(event, reading, tokenBytes, signal);
    } else if (!reading.stopped) {
      read(reading, event.tokenIds, stops.length > 0);
      if (reading.stopped) stopper.abort();
    }
  }
  throw new ApiError("internal", { cause: new Error("a generate ended without a report") });
}

interface Reading {
  readonly tokenIds: number[];
  /** Known only where there are stop strings to look for. */
  text: string;
  stopped: boolean;
  readonly detokenizer: Detokenizer;
}

function read(reading: Reading, tokenIds: readonly number[], looksForStops: boolean): void {
  reading.tokenIds.push(...tokenIds);
  if (!looksForStops) return;
  const { text, stoppedBy } = reading.detokenizer.push(tokenIds);
  reading.text += text;
  reading.stopped = stoppedBy !== undefined;
}

function outputOf(
  report: FinishedEvent,
  { tokenIds, text, stopped }: Reading,
  tokenBytes: TokenBytes,
  signal: AbortSignal,
): OutputTokens {
  signal.throwIfAborted();
  if (report.reason === "abort" && !stopped) throw new ApiError("internal", { cause: new Error("a worker gave up") });
  const kept = stopped ? tokenIds.slice(0, tokensWithin(tokenBytes, tokenIds, text)) : tokenIds;
  return { tokenIds: Int32Array.from(kept), end: endOf(report, stopped, tokenIds.length) };
}

/** How many first tokens spell nothing beyond `text`: a token that holds a part of the stop string goes whole. */
function tokensWithin(tokenBytes: TokenBytes, tokenIds: readonly number[], text: string): number {
  for (let count = tokenIds.length; count > 0; count--) {
    if (text.startsWith(textOfTokens(tokenBytes, tokenIds.slice(0, count)))) return count;
  }
  return 0;
}
