/**
 * Which worker runs a request. Pure and deterministic: cost is what the worker would still have to compute
 * before this request's first token, its own prompt tokens not cached there plus those queued before it.
 */
export interface Candidate {
  readonly id: string;
  /** Prompt tokens of this request that it holds. */
  readonly cachedTokens: number;
  /** Prompt tokens of other requests that it has still to compute. */
  readonly pendingTokens: number;
  /** Requests it has. */
  readonly inFlight: number;
}

/** A running request slows a prefill down about as much as this many more prompt tokens would. */
const tokensPerRunningRequest = 32;

/**
 * @param affinity callers with the same string prefer the same worker where the cost is equal
 * @returns undefined when there is no candidate
 */
export function chooseWorker(
  candidates: readonly Candidate[],
  promptTokens: number,
  affinity: string,
): string | undefined {
  const cost = (candidate: Candidate): number =>
    Math.max(0, promptTokens - candidate.cachedTokens) +
    candidate.pendingTokens +
    candidate.inFlight * tokensPerRunningRequest;
  return best(candidates, affinity, cost)?.id;
}

/** The worker that a name always falls on while it is there (rendezvous hashing), whatever its load. */
export function workerByName(candidates: readonly Candidate[], name: string): string | undefined {
  return best(candidates, name, () => 0)?.id;
}

function best(
  candidates: readonly Candidate[],
  affinity: string,
  cost: (candidate: Candidate) => number,
): Candidate | undefined {
  let chosen: { candidate: Candidate; cost: number; rank: bigint } | undefined;
  for (const candidate of candidates) {
    const entry = { candidate, cost: cost(candidate), rank: Bun.hash.wyhash(`${affinity}\0${candidate.id}`) };
    if (chosen === undefined || entry.cost < chosen.cost || (entry.cost === chosen.cost && entry.rank < chosen.rank)) {
      chosen = entry;
    }
  }
  return chosen?.candidate;
}
