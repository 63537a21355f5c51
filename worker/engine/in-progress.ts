/** The requests in progress, and how they end. */
import type { FinishReason, WorkerErrorCode, WorkerMessage } from "../contract/messages.ts";
import { GrammarTooAmbiguous } from "../sample/byte-automaton.ts";
import type { StepInFlight } from "./in-flight.ts";
import type { Request } from "./request.ts";
import type { Scheduler } from "./scheduler.ts";

export interface RequestsInProgressParts {
  readonly scheduler: Scheduler;
  /** The engine's own list of steps. */
  readonly inFlight: readonly StepInFlight[];
  readonly clock: () => number;
  readonly emit: (message: WorkerMessage) => void;
}

export class RequestsInProgress {
  private readonly requests = new Map<string, Request>();
  private readonly scheduler: Scheduler;
  private readonly inFlight: readonly StepInFlight[];
  private readonly clock: () => number;
  private readonly emit: (message: WorkerMessage) => void;
  private readonly whenNone: (() => void)[] = [];

  constructor({ scheduler, inFlight, clock, emit }: RequestsInProgressParts) {
    this.scheduler = scheduler;
    this.inFlight = inFlight;
    this.clock = clock;
    this.emit = emit;
  }

  get count(): number {
    return this.requests.size;
  }

  all(): IterableIterator<Request> {
    return this.requests.values();
  }

  has(requestId: string): boolean {
    return this.requests.has(requestId);
  }

  get(requestId: string): Request | undefined {
    return this.requests.get(requestId);
  }

  /** Queues it behind all that wait. */
  add(request: Request): void {
    this.requests.set(request.requestId, request);
    this.scheduler.waiting.push(request);
  }

  /** Takes it out and tells the gateway how it ended. */
  finish(request: Request, reason: FinishReason): void {
    this.remove(request);
    if (reason === "prepared") request.times.markPrefilled(this.clock());
    this.emit(request.finished(reason, this.clock()));
    this.tellNone();
  }

  /** Takes it out and tells the gateway that it failed here. */
  fail(request: Request, message: string, code: WorkerErrorCode = "internal"): void {
    this.remove(request);
    this.emit({ type: "failed", requestId: request.requestId, code, message });
    this.tellNone();
  }

  /** No token may come next, or what may come cannot be worked out within the bounds. */
  failMask(request: Request, error: RangeError): void {
    if (!(error instanceof GrammarTooAmbiguous)) return this.fail(request, `sampling failed: ${error.message}`);
    this.fail(request, `the grammar cannot be followed: ${error.message}`, "grammar_too_ambiguous");
  }

  /** Resolves when all have ended. */
  async none(): Promise<void> {
    if (this.requests.size === 0) return;
    await new Promise<void>((resolve) => this.whenNone.push(resolve));
  }

  /** Its blocks are given back when no step in flight has them. */
  private remove(request: Request): void {
    this.scheduler.remove(request);
    this.requests.delete(request.requestId);
    request.release();
    const holder = this.inFlight.findLast((step) => step.holds(request));
    if (holder === undefined) this.scheduler.releaseBlocks(request);
    else holder.leaving.push(request);
    for (const step of this.inFlight) step.drop(request);
  }

  private tellNone(): void {
    if (this.requests.size > 0) return;
    for (const resolve of this.whenNone.splice(0)) resolve();
  }
}
