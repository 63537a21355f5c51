/** A trace served by one engine, so many requests at a time, and what was found of it. */
import type { Backend } from "../../../worker/backend/backend.ts";
import type { Batch } from "../../../worker/contract/batch.ts";
import type { WorkerMessage } from "../../../worker/contract/messages.ts";
import { Engine } from "../../../worker/engine/loop.ts";
import type { KvPositions } from "../../../worker/relocation/relocation.ts";
import type { Arm, Trace } from "./zipf-trace.ts";

/** Computes nothing: what is found and what is not depends on scheduler and cache alone. */
export class CountingBackend implements Backend {
  readonly name = "counting";
  readonly shape: Backend["shape"];
  readonly #logits: Float32Array;

  constructor(blockCount: number, { options }: Trace, maxLogitRows: number) {
    const { vocabSize, blockTokens } = options;
    this.shape = { vocabSize, contextTokens: 32_768, blockTokens, blockCount, kvBytesPerBlock: 1 };
    this.#logits = new Float32Array(maxLogitRows * vocabSize);
  }

  async forward({ logitRows }: Batch): Promise<Float32Array> {
    return this.#logits.subarray(0, logitRows.length * this.shape.vocabSize);
  }

  async copyTokens(): Promise<void> {
    // There is nothing to copy.
  }

  async deviations({ tokenIds }: Batch): Promise<Float32Array> {
    return new Float32Array(tokenIds.length);
  }

  async dispose(): Promise<void> {
    // There is no memory to free.
  }
}

export interface ServeOptions {
  readonly arm: Arm;
  /** Requests in the engine at the same time; one that ends is followed by the next. */
  readonly concurrency: number;
  /** Requests that fill the cache first and are not counted. */
  readonly warmUp: number;
  readonly stepTokens: number;
}

export interface Served {
  /** Document tokens found, of those asked for. */
  readonly hitRatio: number;
  readonly ttftMs: readonly number[];
  readonly requestsPerSecond: number;
  /** Means over time: requests that run, and blocks for each that holds something different. */
  readonly runningRequests: number;
  readonly copiesPerBlock: number;
  /** Of what was found: moved in place, and copied. */
  readonly movedShare: number;
}

const stepsPerSample = 20;
/** Arms that are compared by time take turns of so many steps: long beside what changing from one to the other costs. */
const stepsPerTurn = 16;

const positionsOf: Readonly<Record<Arm, KvPositions>> = {
  "prefix only": "deferred",
  "a copy a place": "deferred",
  "copies kept": "duplicate",
  relocation: "relocate",
  deferred: "deferred",
};

/** Time that passes only while it is running, in milliseconds. */
class StopWatch {
  #elapsedMs = 0;
  #startedMs: number | undefined;

  start(): void {
    this.#startedMs = performance.now();
  }

  stop(): void {
    this.#elapsedMs = this.nowMs();
    this.#startedMs = undefined;
  }

  nowMs(): number {
    return this.#elapsedMs + (this.#startedMs === undefined ? 0 : performance.now() - this.#startedMs);
  }
}

/** One arm on its way through a trace. Its clock stands still while it has no turn, so that others do not count. */
export class ArmRun {
  readonly #trace: Trace;
  readonly #options: ServeOptions;
  readonly #clock = new StopWatch();
  readonly #engine: Engine;
  readonly #ttftMs: number[] = [];
  #countedFromMs = 0;
  #submitted = 0;
  #askedTokens = 0;
  #foundTokens = 0;
  #allFoundTokens = 0;
  #steps = 0;
  #samples = 0;
  #running = 0;
  #copies = 0;

  constructor(trace: Trace, backend: Backend, options: ServeOptions) {
    const { arm, concurrency, stepTokens } = options;
    this.#trace = trace;
    this.#options = options;
    const limits = { stepTokens, maxRunningRequests: concurrency, maxWaitingRequests: concurrency };
    this.#engine = new Engine({
      backend,
      eosTokenIds: [],
      limits: { ...limits, prefillTokensBesideDecodes: stepTokens },
      clock: () => this.#clock.nowMs(),
      positions: positionsOf[arm],
      emit: (message) => this.#take(message),
    });
  }

  /** @param mostSteps after which others have their turn. @returns whether there is more to do */
  async advance(mostSteps: number): Promise<boolean> {
    this.#clock.start();
    if (this.#submitted === 0) for (let index = 0; index < this.#options.concurrency; index++) this.#submitNext();
    let isBusy = true;
    for (let step = 0; isBusy && step < mostSteps; step++) {
      isBusy = await this.#engine.step();
      if (isBusy) this.#sample();
    }
    this.#clock.stop();
    return isBusy;
  }

  served(): Served {
    const { movedBlocks = 0, copiedBlocks = 0 } = this.#engine.relocation ?? {};
    const movedTokens = (movedBlocks + copiedBlocks) * this.#trace.options.blockTokens;
    return {
      hitRatio: this.#foundTokens / this.#askedTokens,
      ttftMs: this.#ttftMs,
      requestsPerSecond: (1000 * this.#ttftMs.length) / (this.#clock.nowMs() - this.#countedFromMs),
      runningRequests: this.#running / this.#samples,
      copiesPerBlock: this.#copies / this.#samples,
      movedShare: movedTokens / Math.max(1, this.#allFoundTokens),
    };
  }

  #submitNext(): void {
    if (this.#submitted >= this.#trace.options.requestCount) return;
    this.#engine.submit(this.#trace.message(this.#submitted++, this.#options.arm));
  }

  #take(message: WorkerMessage): void {
    if (message.type === "failed") throw new Error(message.message);
    if (message.type !== "finished") return;
    const { arm, warmUp } = this.#options;
    const { cachedTokens } = message.usage;
    this.#allFoundTokens += cachedTokens;
    const index = Number(message.requestId);
    if (index >= warmUp) {
      const repeatedTokens = this.#trace.repeatedTokens(index, arm);
      this.#askedTokens += this.#trace.documentTokens - repeatedTokens;
      this.#foundTokens += cachedTokens - repeatedTokens;
      this.#ttftMs.push(message.timings.ttftMs);
    } else this.#countedFromMs = this.#clock.nowMs();
    this.#submitNext();
  }

  #sample(): void {
    if (this.#steps++ % stepsPerSample !== 0) return;
    this.#samples += 1;
    this.#running += this.#engine.stats().runningRequests;
    this.#copies += this.#engine.relocation?.copiesPerKey() ?? 1;
  }
}

/** Serves the whole trace by one arm. */
export async function serve(trace: Trace, backend: Backend, options: ServeOptions): Promise<Served> {
  const run = new ArmRun(trace, backend, options);
  while (await run.advance(Number.POSITIVE_INFINITY));
  return run.served();
}

/** Serves the whole trace by each of the arms, which take turns of a few steps: what the machine does meets all alike. */
export async function serveInTurns(runs: readonly ArmRun[]): Promise<void> {
  let busy = runs;
  while (busy.length > 0) {
    const next: ArmRun[] = [];
    for (const run of busy) if (await run.advance(stepsPerTurn)) next.push(run);
    busy = next;
  }
}
