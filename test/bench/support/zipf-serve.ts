/** A trace served by one engine, so many requests at a time, and what was found of it. */
import type { Backend } from "../../../worker/backend/backend.ts";
import type { Batch } from "../../../worker/contract/batch.ts";
import type { SubmitMessage, WorkerMessage } from "../../../worker/contract/messages.ts";
import { Engine } from "../../../worker/engine/loop.ts";
import type { KvPositions } from "../../../worker/relocation/relocation.ts";
import type { Arm, Trace } from "./zipf-trace.ts";

/** Computes nothing: what is found and what is not depends on scheduler and cache alone. */
export class CountingBackend implements Backend {
  readonly name = "counting";
  readonly shape: Backend["shape"];
  private readonly logits: Float32Array;

  constructor(blockCount: number, { options }: Trace, maxLogitRows: number) {
    const { vocabSize, blockTokens } = options;
    this.shape = { vocabSize, contextTokens: 32_768, blockTokens, blockCount, kvBytesPerBlock: 1 };
    this.logits = new Float32Array(maxLogitRows * vocabSize);
  }

  async forward({ logitRows }: Batch): Promise<Float32Array> {
    return this.logits.subarray(0, logitRows.length * this.shape.vocabSize);
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

const positionsOf: Readonly<Record<Arm, KvPositions>> = {
  "prefix only": "deferred",
  "a copy a place": "deferred",
  "copies kept": "duplicate",
  relocation: "relocate",
  deferred: "deferred",
};

export async function serve(trace: Trace, backend: Backend, options: ServeOptions): Promise<Served> {
  const { arm, concurrency, warmUp, stepTokens } = options;
  const { requestCount, blockTokens } = trace.options;
  let [next, askedTokens, foundTokens, allFoundTokens] = [0, 0, 0, 0];
  const ttftMs: number[] = [];
  const startMs = performance.now();
  let countedFromMs = startMs;
  const take = (): SubmitMessage => trace.message(next++, arm);
  const limits = { stepTokens, maxRunningRequests: concurrency, maxWaitingRequests: concurrency };
  const engine: Engine = new Engine({
    backend,
    eosTokenIds: [],
    limits: { ...limits, prefillTokensBesideDecodes: stepTokens },
    clock: () => performance.now(),
    positions: positionsOf[arm],
    emit: (message: WorkerMessage) => {
      if (message.type === "failed") throw new Error(message.message);
      if (message.type !== "finished") return;
      const { cachedTokens } = message.usage;
      allFoundTokens += cachedTokens;
      const index = Number(message.requestId);
      if (index >= warmUp) {
        const repeatedTokens = trace.repeatedTokens(index, arm);
        askedTokens += trace.documentTokens - repeatedTokens;
        foundTokens += cachedTokens - repeatedTokens;
        ttftMs.push(message.timings.ttftMs);
      } else countedFromMs = performance.now();
      if (next < requestCount) engine.submit(take());
    },
  });
  while (next < Math.min(concurrency, requestCount)) engine.submit(take());
  let [samples, running, copies] = [0, 0, 0];
  for (let steps = 0; await engine.step(); steps++) {
    if (steps % stepsPerSample !== 0) continue;
    samples += 1;
    running += engine.stats().runningRequests;
    copies += engine.relocation?.copiesPerKey() ?? 1;
  }
  const { movedBlocks = 0, copiedBlocks = 0 } = engine.relocation ?? {};
  return {
    hitRatio: foundTokens / askedTokens,
    ttftMs,
    requestsPerSecond: (1000 * ttftMs.length) / (performance.now() - countedFromMs),
    runningRequests: running / samples,
    copiesPerBlock: copies / samples,
    movedShare: ((movedBlocks + copiedBlocks) * blockTokens) / Math.max(1, allFoundTokens),
  };
}
