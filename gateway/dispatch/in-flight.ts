/** A request between its arrival here and its end: where it is, what it still costs there, what its reader has seen. */
import type { SubmitMessage, WorkerMessage } from "../../worker/contract/messages.ts";
import { type PlanOwners, retentionOf } from "../../worker/contract/owners.ts";
import { EventQueue } from "../base/event-queue.ts";
import { type LookUp, missReports } from "./kv/miss-reasons.ts";
import type { DispatchRequest, FinishedEvent, GenerationEvent, TokensEvent, WorkOwner } from "./request/request.ts";
import { RunClock } from "./request/run-clock.ts";

export interface InFlight {
  readonly request: DispatchRequest;
  readonly tenantId: WorkOwner;
  readonly background: boolean;
  readonly queue: EventQueue<GenerationEvent>;
  readonly promptTokens: number;
  /** The tokens that the request counts for in a queue. */
  readonly tokens: number;
  /** The n-th request that came. */
  readonly arrival: number;
  readonly readAtMs: number;
  readonly clock: RunClock;
  readonly timers: { deadline?: ReturnType<typeof setTimeout>; abort?: ReturnType<typeof setTimeout> };
  readonly onAbort: () => void;
  /** Workers that had no space for the request. */
  readonly refusedBy: Set<string>;
  attempt: number;
  workerId: string | undefined;
  workerRequestId: string | undefined;
  /** Prompt tokens of the request that its worker still has to compute. */
  pendingTokens: number;
  streamedTokens: number;
  aborted: boolean;
  /** The reader of the request's events has left. */
  abandoned: boolean;
  /** What was known of the request's KV when it was sent. It is set only if the request asks why KV was not found. */
  lookUp: LookUp | undefined;
}

export function openEntry(
  request: DispatchRequest,
  arrival: number,
  abort: (entry: InFlight) => void,
  nowMs: () => number = () => performance.now(),
): InFlight {
  const onAbort = (): void => abort(entry);
  const promptTokens = request.plan.runs.reduce((sum, run) => sum + run.tokenIds.length, 0);
  const entry: InFlight = {
    request,
    tenantId: request.tenantId,
    background: request.background === true,
    queue: new EventQueue((unread, open) => {
      const end = unread.find((event) => event.type === "finished");
      if (end !== undefined) request.onAbandoned?.(end);
      entry.abandoned = open;
      if (open) onAbort();
    }),
    promptTokens,
    tokens: promptTokens,
    arrival,
    readAtMs: request.readAtMs ?? performance.now(),
    clock: new RunClock(nowMs),
    timers: {},
    onAbort,
    refusedBy: new Set(),
    attempt: 0,
    workerId: undefined,
    workerRequestId: undefined,
    pendingTokens: 0,
    streamedTokens: 0,
    aborted: false,
    abandoned: false,
    lookUp: undefined,
  };
  return entry;
}

/** The message that gives the request to its worker. */
export function submitMessage(
  { request, workerRequestId = "", lookUp }: InFlight,
  reuse: boolean,
  owners: PlanOwners,
): SubmitMessage {
  const { plan, params, closeTokenIds, retention, sparse } = request;
  return {
    type: "submit",
    requestId: workerRequestId,
    plan,
    params,
    reuse,
    owners,
    ...(retention !== undefined && { retention: retentionOf[retention] }),
    ...(closeTokenIds !== undefined && { closeTokenIds }),
    ...(sparse !== undefined && { sparse }),
    ...(lookUp !== undefined && { tellFound: true }),
  };
}

export function tokensEvent({ tokenIds, logprobs }: Extract<WorkerMessage, { readonly type: "tokens" }>): TokensEvent {
  return logprobs === undefined ? { type: "tokens", tokenIds } : { type: "tokens", tokenIds, logprobs };
}

/** Resets the request after its worker was lost: the tokens that the worker gave are void. */
export function restarted(entry: InFlight): void {
  if (entry.streamedTokens > 0) entry.queue.push({ type: "restarted" });
  entry.streamedTokens = 0;
  entry.clock.restarted();
}

/** The end of a request as its worker reported it. */
export function reportedEnd(
  { request, workerId = "", lookUp, clock }: InFlight,
  {
    reason,
    usage,
    timings,
    spans,
    blend,
    sparse,
    foundTokens = [],
  }: Extract<WorkerMessage, { readonly type: "finished" }>,
): FinishedEvent {
  const misses = lookUp && missReports(request.plan.runs, lookUp, foundTokens);
  const times = clock.ended(timings.queueMs);
  return { type: "finished", reason, usage, timings, times, spans, blend, sparse, misses, workerId };
}

/**
 * The end of an aborted request whose worker reported nothing: the report is made from what is known here. A request that
 * was never sent to a worker has used no tokens.
 */
export function abortedEnd(entry: InFlight): FinishedEvent {
  const { promptTokens, streamedTokens: completionTokens, workerId = "", clock } = entry;
  const readTokens = entry.attempt === 0 ? 0 : promptTokens;
  const usage = { promptTokens: readTokens, completionTokens, cachedTokens: 0, cacheWriteTokens: 0 };
  const timings = { queueMs: 0, prefillMs: 0, ttftMs: 0 };
  return { type: "finished", reason: "abort", usage, timings, times: clock.ended(0), spans: [], workerId };
}
