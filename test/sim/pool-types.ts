/** What a simulated pool is asked, how it is made and what comes of it. */
import type { WorkerRecord } from "../../gateway/dispatch/workers/registry.ts";

export interface PoolRequest {
  readonly atMs: number;
  readonly tenant: number;
  readonly corpus: number;
  readonly fragments: readonly number[];
  readonly questionTokens: number;
  readonly answerTokens: number;
}

/** Which worker takes a request; undefined: the router decides. */
export type Policy = (workers: readonly WorkerRecord[], request: PoolRequest, index: number) => string | undefined;

export interface PoolOptions {
  readonly workerCount: number;
  readonly fragmentTokens: number;
  /** Blocks of each worker. */
  readonly blockCount: number;
  readonly policy?: Policy;
  /** Requests that the dispatcher lets each worker have; undefined: all. */
  readonly maxRunningPerWorker?: number;
}

/** What one request met. */
export interface PoolAnswer {
  readonly tenant: number;
  readonly ttftMs: number;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly completionTokens: number;
}

export interface PoolReport {
  readonly computedTokens: number;
  readonly hitShare: number;
  readonly ttftMs: readonly number[];
  readonly makespanMs: number;
  /** Time of the busiest worker over the mean: 1 is perfect balance. */
  readonly imbalance: number;
  readonly failures: number;
}
