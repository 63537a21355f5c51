/**
 * The engine of one worker. A step is: schedule, begin, collect what it answers. Where the backend takes a step while
 * one runs, the next one begins before this one is waited for (in-flight.ts); otherwise, or with `pipelined` off, one
 * follows the other. Messages come in between, so `collect` passes over requests that are gone by then.
 */
import { type Backend, DeviceLost } from "../backend/backend.ts";
import { BlockPool } from "../cache/block-pool.ts";
import { KvEventLog } from "../cache/kv-events.ts";
import { PrefixCache } from "../cache/prefix-cache.ts";
import type { FinishReason, SubmitMessage, WorkerErrorCode, WorkerMessage, WorkerStats } from "../contract/messages.ts";
import type { BlockKey } from "../contract/units.ts";
import { planFault } from "../contract/validate.ts";
import { type Relocation, relocationOf } from "../relocation/relocation.ts";
import { GrammarTooAmbiguous } from "../sample/byte-automaton.ts";
import { Constraints } from "../sample/constraints.ts";
import { MaskSlices } from "../sample/mask-slices.ts";
import { SparseDecoding } from "../sparse/sparse-decoding.ts";
import { eventsAbove, Tiers, tiersOf } from "../tiers/tiers.ts";
import {
  type Draw,
  expectResults,
  type StepInFlight,
  type StepResult,
  StepsInFlight,
  settleRuns,
} from "./in-flight.ts";
import { assertInvariants, assertSettled } from "./invariants.ts";
import { defaultEngineLimits, type EngineLimits, type EngineOptions } from "./limits.ts";
import { Request } from "./request.ts";
import { Scheduler } from "./scheduler.ts";
import { isEmpty, rowCount, type StepPlan } from "./step.ts";
import { StepRunner } from "./step-runner.ts";

/** Loads that are late lose their claims, so who waits for them looks again. */
const longestPauseMs = 50;

export class Engine {
  readonly #backend: Backend;
  readonly #eosTokenIds: readonly number[];
  readonly #limits: EngineLimits;
  readonly #clock: () => number;
  readonly #emit: (message: WorkerMessage) => void;
  readonly #debug: boolean;
  readonly #pool: BlockPool;
  readonly #events = new KvEventLog();
  readonly cache: PrefixCache;
  readonly constraints: Constraints;
  /** Undefined where K stays where its chain has it. */
  readonly relocation: Relocation | undefined;
  /** KV in files and in the host's memory; nothing where blocks are moved within the pool. */
  readonly tiers: Tiers;
  /** Undefined where the backend chooses nothing. */
  readonly #sparse: SparseDecoding | undefined;
  readonly #scheduler: Scheduler;
  readonly #runner: StepRunner;
  /** Requests in progress, by their ids. */
  readonly #requests = new Map<string, Request>();
  readonly maskSlices: MaskSlices<Request>;
  readonly #inFlight = new StepsInFlight();
  /** Called when no request is in progress any more. */
  readonly #whenIdle: (() => void)[] = [];
  #generatedTokens = 0;
  #draining = false;
  #stopped = false;
  readonly #wake = new Wake();

  constructor(options: EngineOptions) {
    const { backend, eosTokenIds, limits, clock, emit, debug = false, positions = "deferred" } = options;
    const { shape } = backend;
    this.#backend = backend;
    this.#eosTokenIds = eosTokenIds;
    this.#limits = { ...defaultEngineLimits, ...limits };
    this.#clock = clock;
    this.#emit = emit;
    this.#debug = debug;
    this.constraints = new Constraints(shape.vocabSize);
    this.#pool = new BlockPool(shape.blockCount, clock);
    this.relocation = relocationOf(positions, this.#pool, shape, this.#events);
    const events = eventsAbove(this.#events, () => this.tiers.host);
    this.cache = this.relocation?.cache ?? new PrefixCache(this.#pool, shape.blockTokens, events);
    const { cache, relocation } = this;
    this.tiers = this.#makeTiers(options);
    const { tiers: loads } = this;
    if (shape.sparse && relocation) throw new RangeError("rows do not choose what they read where K is moved");
    const sparse = shape.sparse && new SparseDecoding(backend, shape.sparse, this.#pool, cache, options.sparse);
    this.#sparse = sparse;
    const parts = { cache, limits: this.#limits, shape, clock, relocation, sparse, loads };
    this.#scheduler = new Scheduler({ pool: this.#pool, ...parts });
    this.#runner = new StepRunner(backend);
    this.maskSlices = new MaskSlices(this.#limits.stepMaskWork, (request, error) => this.#failMask(request, error));
  }

  /** Queues a request. What is wrong with it is answered as `failed`; nothing is thrown. */
  submit(message: SubmitMessage): void {
    const { requestId } = message;
    const refuse = (code: WorkerErrorCode, text: string): void =>
      this.#emit({ type: "failed", requestId, code, message: text });
    const fault = planFault(message, this.#backend.shape);
    if (fault !== undefined) return refuse("bad_plan", fault);
    if (this.#requests.has(requestId)) return refuse("bad_plan", "a request with this requestId is in progress");
    if (this.#draining) return refuse("overloaded", "the worker is shutting down");
    const { maxWaitingRequests } = this.#limits;
    if (this.#scheduler.waiting.length >= maxWaitingRequests) {
      return refuse("overloaded", `${maxWaitingRequests} requests are waiting, no more are taken`);
    }
    const request = this.#requestOf(message);
    if (request instanceof RangeError) return refuse("bad_plan", request.message);
    const { blockCount, blockTokens } = this.#backend.shape;
    if (request.blockCount > blockCount) {
      request.release();
      const need = `the prompt's ${request.promptTokens} tokens take ${request.blockCount} blocks of ${blockTokens}`;
      return refuse("prompt_too_long", `${need}, the KV pool has ${blockCount}`);
    }
    this.#requests.set(requestId, request);
    this.#scheduler.add(request);
    this.#wake.call();
  }

  /** Ends a request at once; an unknown one (finished meanwhile) is passed over. */
  abort(requestId: string): void {
    const request = this.#requests.get(requestId);
    if (request !== undefined) this.#finish(request, "abort");
    this.#wake.call();
  }

  /**
   * Forgets these keys and what was computed from them at once. Blocks in use lose their key and are freed when
   * released; requests in progress that would compute them go on without keeping them, so that nothing comes back.
   * @param owner number of the owner whose blocks and runs are meant; undefined: everybody's
   */
  evict(blockKeys: readonly BlockKey[], owner?: number): void {
    this.cache.evict(blockKeys, owner);
    this.tiers.evict(blockKeys, owner);
    const evicted = new Set(blockKeys);
    for (const { runs } of this.#requests.values()) for (const run of runs) run.forget(evicted, owner);
    this.#flushEvents();
  }

  /** Pins keys, present and future, or unpins them (PrefixCache.pin). @param tier "host": not on the device */
  pin(blockKeys: readonly BlockKey[], pinned: boolean, tier?: "host"): void {
    if (tier === undefined) this.cache.pin(blockKeys, pinned);
    this.tiers.pin(blockKeys, pinned);
  }

  /** Counters since the start; requests, blocks and bytes as they are now. */
  stats(): WorkerStats {
    const { blockCount, kvBytesPerBlock } = this.#backend.shape;
    const available = this.#pool.availableCount;
    const cachedBlocks = this.cache.cachedFreeCount;
    const usedBlocks = blockCount - available;
    return {
      queriedTokens: this.#scheduler.queriedTokens,
      hitTokens: this.#scheduler.hitTokens,
      lackedTokens: this.#scheduler.lackedTokens,
      broughtTokens: this.#scheduler.broughtTokens,
      computedTokens: this.#runner.computedTokens,
      generatedTokens: this.#generatedTokens,
      preemptions: this.#scheduler.preemptions,
      evictedBlocks: this.cache.evictedBlocks,
      steps: this.#runner.steps,
      runningRequests: this.#scheduler.running.length,
      waitingRequests: this.#scheduler.waiting.length,
      usedBlocks,
      cachedBlocks,
      freeBlocks: available - cachedBlocks,
      residentBytes: (usedBlocks + cachedBlocks) * kvBytesPerBlock,
      tiers: this.tiers.stats(),
    };
  }

  /** Takes nothing new; resolves when all requests in progress have ended. */
  async drain(): Promise<void> {
    this.#draining = true;
    if (this.#requests.size > 0) await new Promise<void>((resolve) => this.#whenIdle.push(resolve));
  }

  /**
   * Steps until `stop()`, then waits for what has begun. Yields to the event loop after each step and sleeps while
   * there is nothing to do.
   * @throws DeviceLost
   */
  async run(): Promise<void> {
    while (!this.#stopped) {
      if (await this.step()) await new Promise((resolve) => setImmediate(resolve));
      else await this.#wake.sleep();
    }
    await this.#inFlight.end();
  }

  /** Ends `run` after the step that it is in. */
  stop(): void {
    this.#stopped = true;
    this.#wake.call();
  }

  /** Takes one step's answer, and begins the next before when that is possible; false when there is nothing to do. */
  async step(): Promise<boolean> {
    this.#wake.clear();
    const { gaps } = this.tiers;
    if (this.#inFlight.first === undefined && this.#requests.size === 0) {
      gaps?.rest();
      return false;
    }
    const [beganMs, beganAt] = [performance.now(), this.#clock()];
    gaps?.begin();
    this.maskSlices.take([...this.#scheduler.running, ...this.#scheduler.admissible]);
    this.constraints.trim();
    const step = this.#inFlight.first ?? this.#begin(this.#scheduler.schedule());
    if (step.allowsNext && this.#scheduler.canScheduleAhead()) {
      const next = this.#scheduler.schedule(step.plan);
      if (!isEmpty(next)) this.#begin(next);
    }
    const result = await this.#resultOf(step);
    if (result !== undefined) {
      this.tiers.noteStep(rowCount(step.plan), this.#clock() - beganAt);
      this.#collect(step, result);
    }
    for (const request of this.#inFlight.shift()) this.#scheduler.releaseBlocks(request);
    this.#flushEvents();
    if (this.#debug) this.checkInvariants();
    if (isEmpty(step.plan) && this.tiers.isBusy) {
      gaps?.rest();
      await this.#wake.sleep(longestPauseMs);
    } else await gaps?.gap(performance.now() - beganMs);
    return true;
  }

  /** @throws Error when the bookkeeping contradicts itself. For tests and for debugging. */
  checkInvariants(): void {
    assertInvariants(this.#pool, this.cache, this.#scheduler, [...this.#requests.values()], this.#inFlight.leaving);
    if (this.#inFlight.first === undefined) for (const request of this.#requests.values()) assertSettled(request);
    this.relocation?.assertPlaces(this.#scheduler.running);
    this.#sparse?.assertSeats([...this.#scheduler.running, ...this.#inFlight.leaving]);
  }

  #makeTiers({ backend, modelDigest, files, clock }: EngineOptions): Tiers {
    if (this.relocation !== undefined) return new Tiers(undefined, undefined);
    return tiersOf({
      ...{ backend, modelDigest, files, clock, emit: this.#emit, events: this.#events.host },
      ...{ pool: this.#pool, cache: this.cache, blockTokens: backend.shape.blockTokens },
      reservedBlocks: () => this.#scheduler.reservedBlocks,
      isDecoding: () => this.#scheduler.running.some(({ decoding }) => decoding),
      onChange: () => {
        this.#flushEvents();
        this.#wake.call();
      },
    });
  }

  /** Makes the request. A RangeError as answer says why its completion cannot be constrained as it asks. */
  #requestOf(message: SubmitMessage): Request | RangeError {
    const places = this.relocation?.placesOf(message.plan.runs);
    const constrain = (stopTokenIds: readonly number[]) => this.constraints.of(message, stopTokenIds);
    try {
      return new Request(message, this.#backend.shape, this.#eosTokenIds, this.#clock(), places, constrain);
    } catch (error) {
      if (error instanceof RangeError) return error;
      throw error;
    }
  }

  #begin(plan: StepPlan): StepInFlight {
    for (const request of plan.outgrown) this.#finish(request, request.closingReason ?? "length");
    const step = this.#runner.begin(plan);
    expectResults(plan);
    this.#inFlight.add(step);
    return step;
  }

  async #resultOf(step: StepInFlight): Promise<StepResult | undefined> {
    try {
      return await step.result();
    } catch (error) {
      // The gateway is not told of failures: requests that have not begun to answer can go to another worker.
      if (error instanceof DeviceLost) throw error;
      // Blocks of this step have no key yet, so nothing half-written stays findable.
      const text = `a step failed: ${error instanceof Error ? error.message : String(error)}`;
      for (const request of [...this.#scheduler.running]) this.#fail(request, text);
      // It is not known whether blocks were moved, by this step or by the one after it, so they are forgotten.
      for (const { target } of this.#inFlight.moves) this.cache.forget(target);
      return undefined;
    }
  }

  #collect(step: StepInFlight, { draws, deviations }: StepResult): void {
    settleRuns(step, deviations, this.cache);
    this.#flushEvents();
    let row = 0;
    for (const { request, wantsLogits } of step.plan.pieces) {
      if (!wantsLogits) continue;
      if (step.isFor(request)) this.#acceptDraw(request, draws[row]);
      row += 1;
    }
    this.#flushEvents();
    for (const request of [...this.#scheduler.running]) {
      const reason = request.reasonWhenComplete;
      if (reason !== undefined && request.allRunsComplete) this.#finish(request, reason);
    }
  }

  #acceptDraw(request: Request, sampled: Draw): void {
    if (sampled instanceof Error) {
      // What made the logits unusable may stand in a cached block, so all blocks that this request read are forgotten.
      for (const run of request.runs) for (const blockId of run.blocks) this.cache.forget(blockId);
      return this.#fail(request, `sampling failed: ${sampled.message}`);
    }
    this.#generatedTokens += 1;
    const { emit, reason } = request.accept(sampled.tokenId, this.#clock());
    if (emit) this.#emit(request.tokens(sampled));
    if (reason === undefined) return;
    // A step that began meanwhile goes on from this token, and its answer for this request is not wanted.
    this.#inFlight.dropAfterFirst(request);
    if (request.endsAt(reason, this.cache)) this.#finish(request, reason);
  }

  /** Takes the request out and tells the gateway how it ended. */
  #finish(request: Request, reason: FinishReason): void {
    this.#remove(request);
    if (reason === "prepared") request.times.markPrefilled(this.#clock());
    this.#emit(request.finished(reason, this.#clock(), this.#sparse?.reportOf(request)));
  }

  /** Takes the request out and tells the gateway that it failed here. */
  #fail(request: Request, message: string, code: WorkerErrorCode = "internal"): void {
    this.#remove(request);
    this.#emit({ type: "failed", requestId: request.requestId, code, message });
  }

  /** No token may come next, or working out which ones may takes more than the bounds allow. */
  #failMask(request: Request, error: RangeError): void {
    if (!(error instanceof GrammarTooAmbiguous)) return this.#fail(request, `sampling failed: ${error.message}`);
    this.#fail(request, `the grammar cannot be followed: ${error.message}`, "grammar_too_ambiguous");
  }

  /** Its blocks are given back when no step in flight holds them. */
  #remove(request: Request): void {
    this.#scheduler.remove(request);
    this.#requests.delete(request.requestId);
    request.release();
    if (!this.#inFlight.leave(request)) this.#scheduler.releaseBlocks(request);
    if (this.#requests.size === 0) for (const resolve of this.#whenIdle.splice(0)) resolve();
  }

  #flushEvents(): void {
    const events = this.#events.take();
    if (events.length > 0) this.#emit({ type: "kv", events });
  }
}

/** Lets one loop sleep until there is something to do. A call that comes before the loop sleeps is not lost. */
class Wake {
  #isCalled = false;
  #resolve: (() => void) | undefined;

  call(): void {
    this.#isCalled = true;
    this.#resolve?.();
  }

  /** What was called for until now is seen to. */
  clear(): void {
    this.#isCalled = false;
  }

  /** Resolves when it was called since `clear`, or after that time. */
  async sleep(limitMs?: number): Promise<void> {
    if (this.#isCalled) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#resolve = resolve;
    const timer = limitMs === undefined ? undefined : setTimeout(resolve, limitMs);
    await promise;
    clearTimeout(timer);
    this.#resolve = undefined;
  }
}
