/**
 * Owns the requests in flight: places each on a worker, hands its events on, retries silently while nothing
 * was streamed, ends it with an error otherwise. Every request ends: by its worker, its deadline or its abort.
 */
import type { WorkerErrorCode, WorkerMessage } from "../../worker/contract/messages.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { ApiError, type ErrorCode } from "../errors.ts";
import type { Log } from "../log.ts";
import { Evictions, type TenantPart } from "./evictions.ts";
import { type InFlight, openEntry } from "./in-flight.ts";
import { type Placed, Placer } from "./placement.ts";
import type { Registry } from "./registry.ts";
import type { DispatchRequest, FinishedEvent, GenerationEvent } from "./request.ts";
import type { Residency } from "./residency.ts";
import type { Supervisor, WorkerEvents } from "./supervisor.ts";
import type { Underway } from "./underway.ts";
import type { UseCounts } from "./use-counts.ts";

export interface DispatcherOptions {
  readonly registry: Registry;
  readonly residency: Residency;
  readonly underway: Underway;
  readonly uses: Pick<UseCounts, "note">;
  readonly supervisor: Pick<Supervisor, "send">;
  readonly log: Log;
  /** Times a request is sent to a worker, the first time included. */
  readonly maxAttempts: number;
  readonly maxInFlightPerWorker: number;
  /** Requests that wait for a worker to become ready. */
  readonly maxUnplaced: number;
  /** How long a worker may take to confirm an abort. */
  readonly abortGraceMs: number;
}

const codeOfFailure: Readonly<Record<WorkerErrorCode, ErrorCode>> = {
  bad_plan: "internal",
  prompt_too_long: "context_length_exceeded",
  overloaded: "overloaded",
  internal: "internal",
};

export class Dispatcher implements WorkerEvents {
  readonly #options: DispatcherOptions;
  readonly #placer: Placer;
  readonly #evictions: Evictions;
  /** By the id the worker knows it by; a retry gets another, so that a late message finds nothing. */
  readonly #byWorkerRequestId = new Map<string, InFlight>();
  readonly #unplaced = new Set<InFlight>();
  #draining = false;

  constructor(options: DispatcherOptions) {
    this.#options = options;
    this.#placer = new Placer(options);
    this.#evictions = new Evictions(options);
  }

  /**
   * Runs a plan. The events end after `finished`; leaving the loop early aborts the request.
   * @throws ApiError (while iterating, or at once) overloaded, not_ready, worker_lost, deadline_exceeded, …
   */
  submit(request: DispatchRequest): AsyncIterableIterator<GenerationEvent> {
    if (this.#draining) throw new ApiError("server_shutdown");
    const entry = openEntry(request, (aborted) => this.#abort(aborted));
    this.#place(entry);
    if (request.params.maxTokens > 0) this.#options.uses.note(request.plan);
    entry.timers.deadline = setTimeout(() => this.#cutOff(entry, "deadline_exceeded"), request.deadlineMs);
    request.signal?.addEventListener("abort", entry.onAbort, { once: true });
    if (request.signal?.aborted === true) this.#abort(entry);
    return entry.queue;
  }

  /** See Evictions. */
  evict(blockKeys: readonly BlockKey[]): void {
    this.#evictions.evict(blockKeys);
  }

  evictTenant(tenantId: string, part: TenantPart): number {
    return this.#evictions.evictTenant(tenantId, part);
  }

  /** Takes nothing new; resolves when nothing runs or at the deadline, when the rest ends with `server_shutdown`. */
  async drain(deadlineMs: number): Promise<void> {
    this.#draining = true;
    const endMs = performance.now() + deadlineMs;
    for (const entry of [...this.#unplaced]) this.#fail(entry, new ApiError("server_shutdown"));
    while (this.#byWorkerRequestId.size > 0 && performance.now() < endMs) await Bun.sleep(10);
    for (const entry of [...this.#byWorkerRequestId.values()]) this.#cutOff(entry, "server_shutdown");
  }

  /** Requests that run on a worker, and those that wait for one. */
  stats(): { readonly running: number; readonly unplaced: number } {
    return { running: this.#byWorkerRequestId.size, unplaced: this.#unplaced.size };
  }

  onReady(): void {
    for (const entry of [...this.#unplaced]) {
      this.#unplaced.delete(entry);
      this.#placeOrFail(entry);
    }
  }

  onLost(workerId: string): void {
    this.#options.residency.forget(workerId);
    this.#options.underway.forget(workerId);
    for (const entry of [...this.#byWorkerRequestId.values()]) {
      if (entry.workerId !== workerId) continue;
      this.#detach(entry);
      const seen = entry.streamedTokens > 0 && entry.request.restartable !== true;
      if (!seen && !entry.aborted && entry.attempt < this.#options.maxAttempts) this.#restart(entry);
      else if (entry.aborted) this.#finishAborted(entry);
      else this.#fail(entry, new ApiError("worker_lost"));
    }
    // The last worker failed for good: what waits for one would wait until its deadline.
    if (this.#isHopeless()) for (const entry of [...this.#unplaced]) this.#fail(entry, new ApiError("not_ready"));
  }

  onMessage(workerId: string, message: WorkerMessage): void {
    switch (message.type) {
      case "kv":
        this.#options.residency.apply(workerId, message.events);
        return;
      case "stats":
        this.#options.registry.setStats(workerId, message.stats);
        return;
      case "tokens":
        this.#onRequestMessage(message);
        return;
      case "finished":
      case "failed":
        this.#onRequestMessage(message);
        this.#options.underway.end(message.requestId);
        return;
      default:
        return;
    }
  }

  #onRequestMessage(message: Extract<WorkerMessage, { readonly requestId: string }>): void {
    const entry = this.#byWorkerRequestId.get(message.requestId);
    if (entry === undefined) return;
    switch (message.type) {
      case "tokens": {
        if (entry.streamedTokens === 0) this.#releasePending(entry);
        entry.streamedTokens += message.tokenIds.length;
        const { tokenIds, logprobs } = message;
        entry.queue.push(
          logprobs === undefined ? { type: "tokens", tokenIds } : { type: "tokens", tokenIds, logprobs },
        );
        return;
      }
      case "finished": {
        const { reason, usage, timings, spans, blend } = message;
        const workerId = entry.workerId ?? "";
        this.#finish(entry, { type: "finished", reason, usage, timings, spans, blend, workerId });
        return;
      }
      case "failed": {
        const { code, message: reason } = message;
        if (code === "overloaded" && !entry.aborted) return this.#placeElsewhere(entry);
        this.#options.log("error", "worker refused a request", { worker: entry.workerId, code, reason });
        this.#fail(entry, new ApiError(codeOfFailure[code]));
        return;
      }
    }
  }

  #place(entry: InFlight): void {
    const { registry, maxUnplaced } = this.#options;
    const ready = registry.ready();
    if (ready.length === 0) {
      if (this.#isHopeless()) throw new ApiError("not_ready");
      if (this.#unplaced.size >= maxUnplaced) throw new ApiError("overloaded", { retryAfterS: 2 });
      this.#unplaced.add(entry);
      return;
    }
    const open = ready.filter(({ id }) => !entry.refusedBy.has(id));
    const placed = this.#placer.choose(open, entry.request, entry.promptTokens);
    if (placed === undefined) throw new ApiError("overloaded", { retryAfterS: 2 });
    this.#send(entry, placed);
  }

  #send(entry: InFlight, { workerId, missingTokens, missing }: Placed): void {
    const { registry, underway, supervisor } = this.#options;
    const { requestId, tenantId, plan, params, closeTokenIds } = entry.request;
    const reuse = entry.request.reuse && !this.#evictions.concern(entry.request, entry.readAtMs);
    entry.attempt += 1;
    entry.workerId = workerId;
    entry.workerRequestId = `${requestId}.${entry.attempt}`;
    entry.pendingTokens = missingTokens;
    this.#byWorkerRequestId.set(entry.workerRequestId, entry);
    registry.addLoad(workerId, 1, missingTokens);
    underway.begin(workerId, entry.workerRequestId, { plan, missing, tenantId });
    // A worker that cannot be reached is about to be reported lost; onLost then retries this entry too.
    const submit = { type: "submit", requestId: entry.workerRequestId, plan, params, reuse } as const;
    supervisor.send(workerId, closeTokenIds === undefined ? submit : { ...submit, closeTokenIds });
  }

  /** The worker's queue is full: another may have room. */
  #placeElsewhere(entry: InFlight): void {
    if (entry.workerId !== undefined) entry.refusedBy.add(entry.workerId);
    this.#leaveWorker(entry);
    this.#placeOrFail(entry);
  }

  /** No worker will ever be ready. */
  #isHopeless(): boolean {
    return this.#options.registry.list().every(({ state }) => state === "failed" || state === "stopped");
  }

  #restart(entry: InFlight): void {
    if (entry.streamedTokens > 0) entry.queue.push({ type: "restarted" });
    entry.streamedTokens = 0;
    this.#placeOrFail(entry);
  }

  #placeOrFail(entry: InFlight): void {
    try {
      this.#place(entry);
    } catch (error) {
      this.#fail(entry, error);
    }
  }

  #abort(entry: InFlight): void {
    if (entry.aborted) return;
    entry.aborted = true;
    if (entry.workerRequestId === undefined) {
      this.#finishAborted(entry);
      return;
    }
    this.#tellAbort(entry.workerId, entry.workerRequestId);
    entry.timers.abort = setTimeout(() => this.#finishAborted(entry), this.#options.abortGraceMs);
  }

  #tellAbort(workerId: string | undefined, requestId: string | undefined): void {
    if (workerId === undefined || requestId === undefined) return;
    this.#options.supervisor.send(workerId, { type: "abort", requestId });
  }

  /** Ends the request here first, so that nothing the worker still says of it counts. */
  #cutOff(entry: InFlight, code: ErrorCode): void {
    const { workerId, workerRequestId } = entry;
    this.#fail(entry, new ApiError(code));
    this.#tellAbort(workerId, workerRequestId);
  }

  /** The worker did not say how it ended: what is known here stands in for its report. */
  #finishAborted(entry: InFlight): void {
    const { promptTokens, streamedTokens: completionTokens, workerId = "" } = entry;
    const usage = { promptTokens, completionTokens, cachedTokens: 0, cacheWriteTokens: 0 };
    const timings = { queueMs: 0, prefillMs: 0, ttftMs: 0 };
    this.#finish(entry, { type: "finished", reason: "abort", usage, timings, spans: [], workerId });
  }

  #finish(entry: InFlight, event: FinishedEvent): void {
    this.#settle(entry, event.usage.promptTokens + event.usage.completionTokens);
    entry.queue.push(event);
    entry.queue.end();
  }

  #fail(entry: InFlight, error: unknown): void {
    this.#settle(entry, entry.streamedTokens === 0 ? 0 : entry.promptTokens + entry.streamedTokens);
    entry.queue.fail(error);
  }

  #settle(entry: InFlight, tokens: number): void {
    entry.request.onEnd?.(tokens);
    clearTimeout(entry.timers.deadline);
    clearTimeout(entry.timers.abort);
    entry.request.signal?.removeEventListener("abort", entry.onAbort);
    this.#unplaced.delete(entry);
    this.#leaveWorker(entry);
  }

  #leaveWorker(entry: InFlight): void {
    this.#releasePending(entry);
    if (entry.workerId !== undefined) this.#options.registry.addLoad(entry.workerId, -1, 0);
    this.#detach(entry);
  }

  #releasePending(entry: InFlight): void {
    if (entry.workerId === undefined || entry.workerRequestId === undefined) return;
    this.#options.underway.prompted(entry.workerRequestId);
    this.#options.registry.addLoad(entry.workerId, 0, -entry.pendingTokens);
    entry.pendingTokens = 0;
  }

  /** The entry is on no worker now. The registry has set a lost worker's load to zero by itself. */
  #detach(entry: InFlight): void {
    if (entry.workerRequestId !== undefined) this.#byWorkerRequestId.delete(entry.workerRequestId);
    entry.workerId = undefined;
    entry.workerRequestId = undefined;
    entry.pendingTokens = 0;
  }
}
