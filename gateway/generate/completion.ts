/**
 * One completion: a plan is dispatched, its tokens become text, a stop string ends it. Several completions of one
 * request are merged into one row of events.
 */
import type { TenantId } from "../../db/ids.ts";
import type { GenerateParams, TokenPlan } from "../../worker/contract/messages.ts";
import type { RetentionTime } from "../../worker/contract/owners.ts";
import { EventQueue } from "../base/event-queue.ts";
import type { Dispatcher } from "../dispatch/dispatcher.ts";
import type { FinishedEvent } from "../dispatch/request/request.ts";
import type { TokenBytes } from "../text/detokenizer.ts";
import type { CallReaderOptions } from "../tools/call-reader.ts";
import { AnswerReader } from "./answer-reader.ts";
import type { CompletionEvent, EndEvent } from "./events.ts";

export interface GenerationInput {
  readonly requestId: string;
  readonly tenantId: TenantId;
  readonly plan: TokenPlan;
  readonly params: GenerateParams;
  readonly stops: readonly string[];
  /** How calls of tools are read. Absent: there are none. */
  readonly calls?: CallReaderOptions | undefined;
  readonly reuse: boolean;
  readonly retention?: RetentionTime | undefined;
  readonly diagnose?: boolean;
  readonly readAtMs?: number | undefined;
  readonly deadlineMs: number;
  readonly signal: AbortSignal;
  readonly affinity: string;
  /** Nothing is shown before the end: see DispatchRequest. */
  readonly restartable: boolean;
  /** Called once when it has ended, also when its reader has gone; not when it has failed. */
  readonly onRunEnd?: ((end: EndEvent) => void) | undefined;
}

/** @throws ApiError as Dispatcher.submit does */
export function generate(
  dispatcher: Pick<Dispatcher, "submit">,
  tokenBytes: TokenBytes,
  input: GenerationInput,
): AsyncGenerator<CompletionEvent, void> {
  const stopper = new AbortController();
  const { stops, calls, signal, onRunEnd, ...request } = input;
  const onAbandoned = (event: FinishedEvent): void => onRunEnd?.(endOf(event, false, event.usage.completionTokens));
  // Submitted now, not at the first read: several completions run side by side, and a refusal is thrown here.
  const events = dispatcher.submit({ ...request, onAbandoned, signal: AbortSignal.any([signal, stopper.signal]) });
  return textOf(events, () => new AnswerReader(tokenBytes, stops, calls), { stopper, onRunEnd });
}

async function* textOf(
  events: ReturnType<Dispatcher["submit"]>,
  open: () => AnswerReader,
  { stopper, onRunEnd }: { readonly stopper: AbortController } & Pick<GenerationInput, "onRunEnd">,
): AsyncGenerator<CompletionEvent, void> {
  let answer = open();
  let receivedTokens = 0;
  let stop: string | undefined;
  for await (const event of events) {
    if (event.type === "tokens") {
      // Tokens that were on their way when the stop string came are no part of the answer.
      if (stop !== undefined) continue;
      receivedTokens += event.tokenIds.length;
      const { events: read, stoppedBy } = answer.push(event.tokenIds, event.logprobs);
      yield* read;
      stop = stoppedBy;
      if (stop !== undefined) stopper.abort();
      continue;
    }
    if (event.type === "restarted") {
      answer = open();
      receivedTokens = 0;
      yield { type: "restart" };
      continue;
    }
    const end = { ...endOf(event, stop !== undefined, receivedTokens), stoppedBy: stop };
    // Before anything is shown: the reader may leave at any text.
    onRunEnd?.(end);
    yield* answer.end();
    yield end;
  }
}

/** How a completion ended, as its reader sees it. */
export function endOf(report: FinishedEvent, stopped: boolean, receivedTokens: number): EndEvent {
  if (stopped) return { type: "end", reason: "stop", completionTokens: receivedTokens, report };
  const reason = report.reason === "prepared" ? "length" : report.reason;
  return { type: "end", reason, completionTokens: report.usage.completionTokens, report };
}

/** Events of several completions as they come, each with its completion's index. Ends all when one fails or the reader leaves. */
export async function* mergeCompletions(
  completions: readonly AsyncGenerator<CompletionEvent, void>[],
): AsyncGenerator<readonly [index: number, event: CompletionEvent], void> {
  type Step = { readonly index: number; readonly result: IteratorResult<CompletionEvent, void> };
  // Not a race of promises: each event would leave a reaction on every completion that still waits.
  const steps = new EventQueue<Step>(() => undefined);
  const advance = (index: number): void => {
    const completion = completions[index];
    if (completion === undefined) throw new Error(`no completion ${index}`);
    completion.next().then(
      (result) => steps.push({ index, result }),
      (error) => steps.fail(error),
    );
  };
  const open = new Set(completions.keys());
  for (const index of open) advance(index);
  if (open.size === 0) steps.end();
  try {
    for await (const { index, result } of steps) {
      if (result.done !== true) {
        yield [index, result.value];
        advance(index);
        continue;
      }
      open.delete(index);
      if (open.size === 0) return;
    }
  } finally {
    // A generator that is waiting for its next event cannot be returned yet; the request's signal ends that wait.
    for (const index of open) void completions[index]?.return().catch(() => undefined);
  }
}
