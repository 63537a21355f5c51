/**
 * The engine of one worker. A step is: schedule, compute, collect. Messages come in between steps and also
 * while the backend computes (`forward` is awaited): a request that is gone by then is passed over in collect,
 * and no block is taken outside `schedule`, so blocks freed meanwhile are not written by anybody else.
 */
import { type Backend, DeviceLost } from "../backend/backend.ts";
import { BlockPool } from "../cache/block-pool.ts";
import { KvEventLog } from "../cache/kv-events.ts";
import { PrefixCache } from "../cache/prefix-cache.ts";
import type { FinishReason, SubmitMessage, WorkerErrorCode, WorkerMessage, WorkerStats } from "../contract/messages.ts";
import type { BlockKey } from "../contract/units.ts";
import type { SampledToken } from "../sample/sampler.ts";
import { assertInvariants } from "./invariants.ts";
import { Request } from "./request.ts";
import { type EngineLimits, Scheduler } from "./scheduler.ts";
import type { StepPlan } from "./step.ts";
import { type Draw, type StepResult, StepRunner } from "./step-runner.ts";
import { planFault } from "./validate.ts";

export const defaultEngineLimits: EngineLimits = {
  maxRunningRequests: 64,
  maxWaitingRequests: 1_024,
  stepTokens: 512,
  prefillTokensBesideDecodes: 128,
};

export interface EngineOptions {
  readonly backend: Backend;
  readonly eosTokenIds: readonly number[];
  readonly limits?: Partial<EngineLimits>;
  /** Milliseconds from any fixed point, never falling. */
  readonly clock: () => number;
  /** Takes every message to the gateway, in order; called synchronously. */
  readonly emit: (message: WorkerMessage) => void;
  /** Re-derives the bookkeeping after every step and throws when it contradicts itself. */
  readonly debug?: boolean;
  /** Draws tokens on the host even when the backend could (step-runner.ts). */
  readonly hostSampling?: boolean;
}

export class Engine {
  private readonly backend: Backend;
  private readonly eosTokenIds: readonly number[];
  private readonly limits: EngineLimits;
  private readonly clock: () => number;
  private readonly emit: (message: WorkerMessage) => void;
  private readonly debug: boolean;
  private readonly pool: BlockPool;
  private readonly events = new KvEventLog();
  private readonly cache: PrefixCache;
  private readonly scheduler: Scheduler;
  private readonly runner: StepRunner;
  private readonly requests = new Map<string, Request>();
  private generatedTokens = 0;
  private draining = false;
  private stopped = false;
  private wake: (() => void) | undefined;
  private readonly whenIdle: (() => void)[] = [];

  constructor({ backend, eosTokenIds, limits, clock, emit, debug = false, hostSampling }: EngineOptions) {
    const { blockCount, blockTokens } = backend.shape;
    this.backend = backend;
    this.eosTokenIds = eosTokenIds;
    this.limits = { ...defaultEngineLimits, ...limits };
    this.clock = clock;
    this.emit = emit;
    this.debug = debug;
    this.pool = new BlockPool(blockCount);
    this.cache = new PrefixCache(this.pool, blockTokens, this.events);
    this.scheduler = new Scheduler(this.pool, this.cache, this.limits, blockTokens, clock);
    this.runner = new StepRunner(backend, { hostSampling });
  }

  /** Queues a request. What is wrong with it is answered as `failed`; nothing is thrown. */
  submit(message: SubmitMessage): void {
    const { requestId } = message;
    const refuse = (code: WorkerErrorCode, text: string): void =>
      this.emit({ type: "failed", requestId, code, message: text });
    const fault = planFault(message, this.backend.shape);
    if (fault !== undefined) return refuse("bad_plan", fault);
    if (this.requests.has(requestId)) return refuse("bad_plan", "a request with this requestId is in progress");
    if (this.draining) return refuse("overloaded", "the worker is shutting down");
    const { maxWaitingRequests } = this.limits;
    if (this.scheduler.waiting.length >= maxWaitingRequests) {
      return refuse("overloaded", `${maxWaitingRequests} requests are waiting, no more are taken`);
    }
    const request = new Request(message, this.backend.shape, this.eosTokenIds, this.clock());
    const { blockCount, blockTokens } = this.backend.shape;
    if (request.blockCount > blockCount) {
      const need = `the prompt's ${request.promptTokens} tokens take ${request.blockCount} blocks of ${blockTokens}`;
      return refuse("prompt_too_long", `${need}, the KV pool has ${blockCount}`);
    }
    this.requests.set(requestId, request);
    this.scheduler.waiting.push(request);
    this.wake?.();
  }

  /** Ends a request at once; an unknown one (finished meanwhile) is passed over. */
  abort(requestId: string): void {
    const request = this.requests.get(requestId);
    if (request !== undefined) this.finish(request, "abort");
    this.wake?.();
  }

  /**
   * Forgets these keys at once. Blocks in use lose their key and are freed when released; requests in progress
   * that would compute them go on without keeping them, so that what was evicted does not come back.
   */
  evict(blockKeys: readonly BlockKey[]): void {
    this.cache.evict(blockKeys);
    const evicted = new Set(blockKeys);
    for (const request of this.requests.values()) {
      for (const run of request.runs) if (run.keyed && run.mentions(evicted)) run.keyed = false;
    }
    this.flushEvents();
  }

  stats(): WorkerStats {
    const { blockCount, kvBytesPerBlock } = this.backend.shape;
    const available = this.pool.availableCount;
    const cachedBlocks = this.cache.cachedFreeCount;
    const usedBlocks = blockCount - available;
    return {
      queriedTokens: this.scheduler.queriedTokens,
      hitTokens: this.scheduler.hitTokens,
      computedTokens: this.runner.computedTokens,
      generatedTokens: this.generatedTokens,
      preemptions: this.scheduler.preemptions,
      evictedBlocks: this.cache.evictedBlocks,
      steps: this.runner.steps,
      runningRequests: this.scheduler.running.length,
      waitingRequests: this.scheduler.waiting.length,
      usedBlocks,
      cachedBlocks,
      freeBlocks: available - cachedBlocks,
      residentBytes: (usedBlocks + cachedBlocks) * kvBytesPerBlock,
    };
  }

  /** Takes nothing new; resolves when all requests in progress have ended. */
  async drain(): Promise<void> {
    this.draining = true;
    if (this.requests.size === 0) return;
    await new Promise<void>((resolve) => this.whenIdle.push(resolve));
  }

  /**
   * Steps until `stop()`. Yields to the event loop after each step and sleeps while there is nothing to do.
   * @throws DeviceLost
   */
  async run(): Promise<void> {
    while (!this.stopped) {
      if (await this.step()) await new Promise((resolve) => setImmediate(resolve));
      else await this.nextMessage();
    }
  }

  stop(): void {
    this.stopped = true;
    this.wake?.();
  }

  /** One step; false when there is nothing to do. */
  async step(): Promise<boolean> {
    if (this.requests.size === 0) return false;
    const plan = this.scheduler.schedule();
    for (const request of plan.outgrown) this.finish(request, request.closingReason ?? "length");
    const result = await this.compute(plan);
    if (result !== undefined) this.collect(plan, result);
    this.flushEvents();
    if (this.debug) this.checkInvariants();
    return true;
  }

  /** @throws Error when the bookkeeping contradicts itself. For tests and for debugging. */
  checkInvariants(): void {
    assertInvariants(this.pool, this.cache, this.scheduler, [...this.requests.values()]);
  }

  /** Keys that are resident now, in no order. */
  residentKeys(): BlockKey[] {
    return Array.from(this.cache.resident(), ([key]) => key);
  }

  private async compute(plan: StepPlan): Promise<StepResult | undefined> {
    try {
      return await this.runner.run(plan);
    } catch (error) {
      // Whoever waits is not told: what has not begun to answer can be given to another worker.
      if (error instanceof DeviceLost) throw error;
      // Blocks of this step have no key yet, so nothing half-written stays findable.
      const text = `a step failed: ${error instanceof Error ? error.message : String(error)}`;
      for (const request of [...this.scheduler.running]) this.fail(request, text);
      return undefined;
    }
  }

  private collect(plan: StepPlan, { draws, deviations }: StepResult): void {
    this.advanceRuns(plan, deviations);
    this.flushEvents();
    let row = 0;
    for (const { request, wantsLogits } of plan.pieces) {
      if (!wantsLogits) continue;
      if (this.inProgress(request)) this.acceptDraw(request, draws[row]);
      row += 1;
    }
    this.flushEvents();
    for (const request of [...this.scheduler.running]) {
      const reason = request.reasonWhenComplete;
      if (reason !== undefined && request.allRunsComplete) this.finish(request, reason);
    }
  }

  private advanceRuns({ pieces, probes, copies }: StepPlan, deviations: Float32Array): void {
    let row = 0;
    for (const { request, run, rowCount } of probes) {
      if (this.inProgress(request)) run.blending?.addDeviations(deviations.subarray(row, row + rowCount));
      row += rowCount;
    }
    for (const { request, run, rowCount } of pieces) {
      if (!this.inProgress(request)) continue;
      if (run.blending === undefined) run.advance(rowCount, this.cache);
      else run.blending.advance(rowCount);
    }
    for (const { request, run } of [...copies, ...pieces]) {
      const blending = this.inProgress(request) ? run.blending : undefined;
      if (blending?.missingTokens === 0) run.completeBlending(blending, this.cache);
    }
  }

  private acceptDraw(request: Request, sampled: Draw): void {
    if (sampled instanceof Error) {
      // Whatever made the logits unusable may sit in a cached block: forget all that this request read.
      for (const run of request.runs) for (const blockId of run.blocks) this.cache.forget(blockId);
      return this.fail(request, `sampling failed: ${sampled.message}`);
    }
    this.generatedTokens += 1;
    const { emit, reason } = request.accept(sampled.tokenId, this.clock());
    if (emit) this.emit(tokensMessage(request.requestId, sampled));
    if (reason !== undefined && request.endsAt(reason, this.cache)) this.finish(request, reason);
  }

  private inProgress(request: Request): boolean {
    return this.requests.get(request.requestId) === request;
  }

  private finish(request: Request, reason: FinishReason): void {
    this.forgetRequest(request);
    if (reason === "prepared") request.markPrefilled(this.clock());
    this.emit(request.finished(reason, this.clock()));
    this.settleIdle();
  }

  private fail(request: Request, message: string): void {
    this.forgetRequest(request);
    this.emit({ type: "failed", requestId: request.requestId, code: "internal", message });
    this.settleIdle();
  }

  private forgetRequest(request: Request): void {
    this.scheduler.remove(request);
    this.requests.delete(request.requestId);
  }

  private settleIdle(): void {
    if (this.requests.size > 0) return;
    for (const resolve of this.whenIdle.splice(0)) resolve();
  }

  private flushEvents(): void {
    const events = this.events.take();
    if (events.length > 0) this.emit({ type: "kv", events });
  }

  private async nextMessage(): Promise<void> {
    if (this.requests.size > 0 || this.stopped) return;
    await new Promise<void>((resolve) => {
      this.wake = resolve;
    });
    this.wake = undefined;
  }
}

function tokensMessage(requestId: string, { tokenId, logprob }: SampledToken): WorkerMessage {
  const message = { type: "tokens", requestId, tokenIds: [tokenId] } as const;
  return logprob === undefined ? message : { ...message, logprobs: [logprob] };
}
