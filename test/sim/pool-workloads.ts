/** Requests over fragments as they come to a pool: skewed in what they ask about, in bursts or evenly. */
import type { Policy, PoolRequest } from "./pool-world.ts";
import { Choices } from "./random.ts";

export interface PoolWorkload {
  readonly seed: number;
  readonly requestCount: number;
  readonly corpusCount: number;
  /** Of each corpus. */
  readonly fragmentCount: number;
  readonly fragmentsPerRequest: number;
  /** The r-th fragment is drawn with a weight of 1/r^s. */
  readonly zipf: number;
  /** Mean time between two requests; 0: all at once. */
  readonly meanGapMs: number;
  /** Requests over the same fragments that come together. */
  readonly burst?: number;
  readonly answerTokens?: number;
}

export function drawRequests(workload: PoolWorkload): PoolRequest[] {
  const { requestCount, corpusCount, fragmentsPerRequest, meanGapMs, burst = 1, answerTokens = 8 } = workload;
  const choices = new Choices(workload.seed);
  const draw = zipfDraw(choices, workload.fragmentCount, workload.zipf);
  const requests: PoolRequest[] = [];
  for (let atMs = 0; requests.length < requestCount; atMs += -Math.log(1 - choices.next()) * meanGapMs) {
    const corpus = choices.int(0, corpusCount - 1);
    const fragments = new Set<number>();
    while (fragments.size < fragmentsPerRequest) fragments.add(draw());
    const shared = { atMs, tenant: corpus, corpus, fragments: [...fragments], questionTokens: 12, answerTokens };
    for (let count = 0; count < burst; count++) requests.push(shared);
  }
  return requests.slice(0, requestCount);
}

function zipfDraw(choices: Choices, count: number, exponent: number): () => number {
  const sums: number[] = [];
  let sum = 0;
  for (let rank = 1; rank <= count; rank++) {
    sum += rank ** -exponent;
    sums.push(sum);
  }
  return () => {
    const at = choices.next() * sum;
    // The first sum that is above the number drawn.
    let [low, high] = [0, count - 1];
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      if (at < (sums[middle] ?? 0)) high = middle;
      else low = middle + 1;
    }
    return low;
  };
}

/** What a router is compared with. */
export const roundRobin: Policy = (workers, _request, index) => workers[index % workers.length]?.id;

export const leastLoaded: Policy = (workers) =>
  workers.toSorted((a, b) => a.inFlight - b.inFlight || a.pendingTokens - b.pendingTokens)[0]?.id;

/** A corpus's requests on one worker, whatever its load. */
export const byCorpus: Policy = (workers, { corpus }) => workers[corpus % workers.length]?.id;
