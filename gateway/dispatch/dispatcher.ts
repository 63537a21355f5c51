/**
 * Owns the requests in flight: places each on a worker, hands its events on, retries silently while nothing
 * was streamed, ends it with an error otherwise. Every request ends: by its worker, its deadline or its abort.
 */
import type { TenantId } from "../../db/ids.ts";
import type { WorkerErrorCode, WorkerMessage } from "../../worker/contract/messages.ts";
import type { KvOwner } from "../../worker/contract/owners.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { ApiError, type ErrorCode } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { FairQueue } from "./fair-queue.ts";
import {
  abortedEnd,
  type InFlight,
  openEntry,
  reportedEnd,
  restarted,
  submitMessage,
  tokensEvent,
} from "./in-flight.ts";
import { Evictions } from "./kv/evictions.ts";
import type { KvHistory } from "./kv/history.ts";
import type { MissReasons } from "./kv/miss-reasons.ts";
import { KvOwners } from "./kv/owners.ts";
import type { PendingBlocks } from "./kv/pending-blocks.ts";
import type { Residency } from "./kv/residency.ts";
import type { UseCounts } from "./kv/use-counts.ts";
import { type Placed, Placer } from "./placement/placer.ts";
import { WorkerAdmission } from "./placement/worker-admission.ts";
import type { DispatchRequest, FinishedEvent, GenerationEvent } from "./request/request.ts";
import type { Registry } from "./workers/registry.ts";
import type { Supervisor, WorkerEvents } from "./workers/supervisor.ts";

export interface DispatcherOptions {
  readonly registry: Registry;
  readonly residency: Residency;
  readonly pendingBlocks: PendingBlocks;
  readonly uses: Pick<UseCounts, "note">;
  /** undefined: nobody is told why KV was not found. */
  readonly misses?: MissReasons;
  readonly history?: KvHistory;
  readonly supervisor: Pick<Supervisor, "send">;
  readonly log: Log;
  /** Times a request is sent to a worker, the first time included. */
  readonly maxAttempts: number;
  /** Deaths of workers, each of which left none, that a request may live through, running or waiting. */
  readonly maxDeaths: number;
  /** Requests that a worker runs at the same time. */
  readonly maxRunningPerWorker: number;
  /** Most requests that may wait for a worker, and most tokens of their prompts. */
  readonly maxWaiting: number;
  readonly maxWaitingTokens: number;
  /** How long a worker may take to confirm an abort. */
  readonly abortGraceMs: number;
  /** Bytes of KV that a tenant may keep on each worker; undefined: no quota. */
  readonly kvQuotaBytesOf?: (tenantId: TenantId) => number | undefined;
  /** How many of a chain's first blocks lie in files; absent: none do. */
  readonly blocksInFiles?: (blockKeys: readonly BlockKey[]) => number;
  readonly nowMs?: () => number;
  /** Called when a request that was accepted ends with this error. */
  readonly onFailed?: (code: ErrorCode) => void;
}

/** What the client is told of a worker's refusal. */
const codeOfFailure: Readonly<Record<WorkerErrorCode, ErrorCode>> = {
  bad_plan: "internal",
  prompt_too_long: "context_length_exceeded",
  grammar_too_ambiguous: "schema_too_ambiguous",
  overloaded: "overloaded",
  internal: "internal",
};

export class Dispatcher implements WorkerEvents {
  readonly evictions: Evictions;
  readonly #options: DispatcherOptions;
  readonly #placer: Placer;
  /** By the id that the worker knows. A retry gets another id, so that a late message of the old one finds nothing. */
  readonly #byWorkerRequestId = new Map<string, InFlight>();
  readonly #admission: WorkerAdmission;
  readonly #owners: KvOwners;
  readonly #waiting: FairQueue<InFlight>;
  #arrivals = 0;
  /** When workers died and left none, by performance.now(): the last `maxDeaths` times. */
  readonly #deathsMs: number[] = [];
  #draining = false;

  constructor(options: DispatcherOptions) {
    this.#options = options;
    const { maxWaiting, maxWaitingTokens, nowMs = () => performance.now() } = options;
    this.#admission = new WorkerAdmission({ ...options, nowMs });
    this.#waiting = new FairQueue({ maxItems: maxWaiting, maxTokens: maxWaitingTokens });
    this.#placer = new Placer({ ...options, admission: this.#admission });
    this.#owners = new KvOwners(options.kvQuotaBytesOf);
    this.evictions = new Evictions({ ...options, owners: this.#owners });
  }

  /**
   * Runs a plan. The events end after `finished`; leaving the loop early aborts the request.
   * @throws ApiError (while iterating, or at once) overloaded, concurrency_limited, not_ready, worker_lost, …
   */
  submit(request: DispatchRequest): AsyncIterableIterator<GenerationEvent> {
    if (this.#draining) throw new ApiError("server_shutdown");
    this.#arrivals += 1;
    const entry = openEntry(request, this.#arrivals, (aborted) => this.#abort(aborted), this.#options.nowMs);
    if (!entry.background) this.#admission.note(request.tenantId);
    this.#place(entry);
    if (request.params.maxTokens > 0) this.#options.uses.note(request.plan);
    entry.timers.deadline = setTimeout(() => this.#cutOff(entry, "deadline_exceeded"), request.deadlineMs);
    request.signal?.addEventListener("abort", entry.onAbort, { once: true });
    if (request.signal?.aborted === true) this.#abort(entry);
    return entry.queue;
  }

  /** Accepts no new request. Resolves when nothing runs, or at the deadline, when the rest ends with `server_shutdown`. */
  async drain(deadlineMs: number): Promise<void> {
    this.#draining = true;
    const endMs = performance.now() + deadlineMs;
    for (const entry of this.#waiting.items()) this.#cutOff(entry, "server_shutdown");
    // Requests of a lost worker wait for another one meanwhile.
    const left = (): readonly InFlight[] => [...this.#byWorkerRequestId.values(), ...this.#waiting.items()];
    while (left().length > 0 && performance.now() < endMs) await Bun.sleep(10);
    for (const entry of left()) this.#cutOff(entry, "server_shutdown");
  }

  /** The tenant as workers know it, who count its blocks. */
  kvOwnerOf(tenantId: TenantId): KvOwner {
    return this.#owners.of(tenantId, this.#options.registry.card()?.kvBytesPerBlock ?? 1);
  }

  /** Requests that run on a worker, and those that wait for one. */
  stats(): { readonly running: number; readonly unplaced: number } {
    return { running: this.#byWorkerRequestId.size, unplaced: this.#waiting.size };
  }

  onReady(): void {
    this.#sendWaiting();
  }

  onLost(workerId: string): void {
    this.#options.history?.lost(this.#options.residency.keys(workerId));
    this.#options.residency.forget(workerId);
    this.#options.pendingBlocks.forget(workerId);
    this.#admission.forget(workerId);
    this.#noteDeath();
    const lost = [...this.#byWorkerRequestId.values()].filter((entry) => entry.workerId === workerId);
    for (const entry of lost) this.#detach(entry);
    const { again = [], over = [] } = Object.groupBy(lost, (entry) => (this.#mayRestart(entry) ? "again" : "over"));
    // All of them are in their lines before another worker takes one.
    for (const entry of again) {
      restarted(entry);
      this.#waiting.add(entry);
    }
    for (const entry of over) {
      if (entry.aborted) this.#finish(entry, abortedEnd(entry));
      else this.#fail(entry, new ApiError("worker_lost"));
    }
    // What waits for a worker that failed for good, or dies again and again, would wait until its deadline.
    const code = this.#isHopeless() ? "not_ready" : "worker_lost";
    for (const entry of this.#waiting.items()) {
      if (code === "not_ready" || this.#isWornOut(entry)) this.#cutOff(entry, code);
    }
    this.#sendWaiting();
  }

  onMessage(workerId: string, message: WorkerMessage): void {
    switch (message.type) {
      case "kv":
        this.#options.residency.apply(workerId, message.events);
        this.#options.history?.apply(message.events);
        return;
      case "stats":
        this.#options.registry.setStats(workerId, message.stats);
        return;
      case "tokens":
        return this.#onRequestMessage(message);
      case "finished":
      case "failed":
        this.#onRequestMessage(message);
        this.#options.pendingBlocks.end(message.requestId);
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
        if (entry.streamedTokens === 0) {
          entry.clock.firstToken();
          entry.request.onFirstToken?.();
          this.#releasePending(entry);
          this.#sendWaiting();
        }
        entry.streamedTokens += message.tokenIds.length;
        this.#waiting.charge(entry, message.tokenIds.length);
        entry.queue.push(tokensEvent(message));
        return;
      }
      case "finished":
        this.#finish(entry, reportedEnd(entry, message));
        return;
      case "failed": {
        const { code, message: reason } = message;
        if (code === "overloaded" && !entry.aborted) return this.#placeElsewhere(entry);
        this.#options.log("error", "worker refused a request", { worker: entry.workerId, code, reason });
        this.#fail(entry, new ApiError(codeOfFailure[code]));
        return;
      }
    }
  }

  /** Sends a request to a worker that has room, or lets it wait for one. */
  #place(entry: InFlight): void {
    const isNext = entry.background ? this.#waiting.size === 0 : !this.#waiting.isWaiting(entry);
    const placed = isNext ? this.#fit(entry) : undefined;
    if (placed !== undefined) {
      this.#send(entry, placed);
      return;
    }
    if (this.#isHopeless()) throw new ApiError("not_ready");
    const refusal = this.#waiting.refusal(entry);
    if (refusal === "full") throw new ApiError("overloaded", { retryAfterS: 2 });
    if (refusal === "tenant full") {
      const message = "The tenant has too many requests that wait to be run.";
      throw new ApiError("concurrency_limited", { message, retryAfterS: 2 });
    }
    this.#waiting.add(entry);
    // The requests before it may wait for a worker that it does not need.
    if (!isNext) this.#sendWaiting();
  }

  #fit(entry: InFlight): Placed | undefined {
    const ready = this.#options.registry.ready();
    const others = ready.filter(({ id }) => !entry.refusedBy.has(id));
    // When the others are gone, a worker that has refused it is asked again: nothing else would ever wake the request.
    return this.#placer.choose(others.length > 0 ? others : ready, entry.request, entry.promptTokens);
  }

  #sendWaiting(): void {
    for (;;) {
      const next = this.#waiting.take((entry) => this.#fit(entry));
      if (next === undefined) return;
      this.#send(next.item, next.fit);
    }
  }

  #send(entry: InFlight, { workerId, missingTokens, missing }: Placed): void {
    const { registry, pendingBlocks, supervisor } = this.#options;
    const { requestId, tenantId, plan } = entry.request;
    const reuse = entry.request.reuse && !this.evictions.concern(entry.request, entry.readAtMs);
    entry.lookUp = this.#options.misses?.lookUp(workerId, reuse, entry.request);
    entry.attempt += 1;
    entry.clock.sent();
    entry.workerId = workerId;
    entry.workerRequestId = `${requestId}.${entry.attempt}`;
    entry.pendingTokens = missingTokens;
    this.#byWorkerRequestId.set(entry.workerRequestId, entry);
    registry.addLoad(workerId, 1, missingTokens);
    this.#admission.enter(workerId, tenantId, entry.pendingTokens);
    this.#waiting.charge(entry, missingTokens);
    pendingBlocks.begin(workerId, entry.workerRequestId, { plan, missing, tenantId });
    // A worker that cannot be reached is about to be reported lost; onLost then retries this entry too.
    const owners = this.#owners.ofPlan(pendingBlocks.tenantsOf(plan, tenantId), registry.card()?.kvBytesPerBlock ?? 1);
    supervisor.send(workerId, submitMessage(entry, reuse, owners));
    // The worker has begun meanwhile.
    this.#options.misses?.noteTexts(workerId, reuse, entry.request);
  }

  /** The worker's queue is full, so the request is tried on another one. */
  #placeElsewhere(entry: InFlight): void {
    if (entry.workerId !== undefined) entry.refusedBy.add(entry.workerId);
    const elsewhere = this.#options.registry.ready().some(({ id }) => !entry.refusedBy.has(id));
    this.#leaveWorker(entry);
    if (elsewhere) {
      this.#waiting.add(entry);
      this.#sendWaiting();
    } else this.#fail(entry, new ApiError("overloaded", { retryAfterS: 2 }));
  }

  /** Whether no worker will ever be ready again. */
  #isHopeless(): boolean {
    return this.#options.registry.list().every(({ state }) => state === "failed" || state === "stopped");
  }

  #noteDeath(): void {
    if (this.#options.registry.ready().length > 0) return;
    this.#deathsMs.push(performance.now());
    if (this.#deathsMs.length > this.#options.maxDeaths) this.#deathsMs.shift();
  }

  /**
   * Whether a request has lived through as many deaths as any may. The requests of a tree were read at the same time, so
   * its later ones do not begin anew.
   */
  #isWornOut({ readAtMs }: InFlight): boolean {
    const [firstMs = Number.POSITIVE_INFINITY] = this.#deathsMs;
    return this.#deathsMs.length === this.#options.maxDeaths && readAtMs < firstMs;
  }

  /** Whether a request whose worker was lost may be sent again. */
  #mayRestart({ request, streamedTokens, aborted, attempt }: InFlight): boolean {
    const isSeen = streamedTokens > 0 && request.restartable !== true;
    return !isSeen && !aborted && attempt < this.#options.maxAttempts;
  }

  #abort(entry: InFlight): void {
    if (entry.aborted) return;
    entry.aborted = true;
    if (entry.workerRequestId === undefined) {
      this.#finish(entry, abortedEnd(entry));
      return;
    }
    this.#tellAbort(entry.workerId, entry.workerRequestId);
    entry.timers.abort = setTimeout(() => this.#finish(entry, abortedEnd(entry)), this.#options.abortGraceMs);
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

  #finish(entry: InFlight, event: FinishedEvent): void {
    this.#settle(entry, event.usage.promptTokens + event.usage.completionTokens, event);
    if (entry.abandoned) entry.request.onAbandoned?.(event);
    entry.queue.push(event);
    entry.queue.end();
  }

  #fail(entry: InFlight, error: ApiError): void {
    this.#options.onFailed?.(error.code);
    this.#settle(entry, entry.streamedTokens === 0 ? 0 : entry.promptTokens + entry.streamedTokens);
    entry.queue.fail(error);
  }

  #settle(entry: InFlight, tokens: number, end?: FinishedEvent): void {
    entry.request.onEnd?.(tokens, end);
    clearTimeout(entry.timers.deadline);
    clearTimeout(entry.timers.abort);
    entry.request.signal?.removeEventListener("abort", entry.onAbort);
    this.#waiting.remove(entry);
    this.#leaveWorker(entry);
    this.#sendWaiting();
  }

  #leaveWorker(entry: InFlight): void {
    this.#releasePending(entry);
    if (entry.workerId !== undefined) {
      this.#options.registry.addLoad(entry.workerId, -1, 0);
      this.#admission.leave(entry.workerId, entry.tenantId);
    }
    this.#detach(entry);
  }

  #releasePending(entry: InFlight): void {
    if (entry.workerId === undefined || entry.workerRequestId === undefined) return;
    this.#options.pendingBlocks.prompted(entry.workerRequestId);
    this.#options.registry.addLoad(entry.workerId, 0, -entry.pendingTokens);
    this.#admission.prompted(entry.workerId, entry.tenantId, entry.pendingTokens);
    entry.pendingTokens = 0;
  }

  /** Takes the entry from its worker. A lost worker's load was already set to zero by the registry. */
  #detach(entry: InFlight): void {
    if (entry.workerRequestId !== undefined) this.#byWorkerRequestId.delete(entry.workerRequestId);
    entry.workerId = undefined;
    entry.workerRequestId = undefined;
    entry.pendingTokens = 0;
  }
}
