/**
 * Chooses the cheapest worker for a request: pure and deterministic. The cost is what the request waits for on the worker
 * plus what it adds to the waits of others there, both in prompt tokens to compute.
 */
export interface Candidate {
  readonly id: string;
  /** Prompt tokens of this request that the worker holds. */
  readonly cachedTokens: number;
  /** Prompt tokens that it does not hold and need not compute, because it can load them from files. */
  readonly fileTokens: number;
  /** What loading takes of those that it holds below its pool or in files, in prompt tokens that it computes meanwhile. */
  readonly loadCost: number;
  /** Prompt tokens of this request that the worker does not hold, but that requests on it are about to compute. */
  readonly upcomingTokens: number;
  /** Prompt tokens of other requests that the worker has still to compute. */
  readonly pendingTokens: number;
  /** Requests on the worker. */
  readonly inFlight: number;
}

/** A running request slows a prefill down about as much as this many more prompt tokens would. */
const tokensPerRunningRequest = 32;
/** Weight of tokens that would be computed here although another worker holds them. */
const laterWaits = 4;

/**
 * @param affinity callers with the same string prefer the same worker where the cost is equal
 * @returns undefined when there is no candidate
 */
export function chooseWorker(
  candidates: readonly Candidate[],
  promptTokens: number,
  affinity: string,
): string | undefined {
  let chosen: { id: string; cost: number; rank: string } | undefined;
  for (const candidate of candidates) {
    const { id, pendingTokens, inFlight, fileTokens, loadCost } = candidate;
    const computed = Math.max(0, missingTokens(candidate, promptTokens) - fileTokens);
    // All requests that run there wait while the prompt is computed. Who loads waits alone, and nothing is computed twice.
    const waits = pendingTokens + inFlight * tokensPerRunningRequest + loadCost;
    const cost = computed * (laterWaits + inFlight) + waits;
    const entry = { id, cost, rank: rankOf(affinity, id) };
    if (chosen === undefined || entry.cost < chosen.cost || (entry.cost === chosen.cost && entry.rank < chosen.rank)) {
      chosen = entry;
    }
  }
  return chosen?.id;
}

/** Prompt tokens that the worker would compute for this request alone, or load from files. */
export function missingTokens(
  { cachedTokens, upcomingTokens }: Pick<Candidate, "cachedTokens" | "upcomingTokens">,
  promptTokens: number,
): number {
  return Math.max(0, promptTokens - cachedTokens - upcomingTokens);
}

/**
 * How much a name prefers a worker, by rendezvous hashing: when a worker goes away, only the names that preferred it move.
 * The hash takes no secret, so that requests go the same way in every process; the preference of one name tells nothing
 * about another.
 */
export function rankOf(name: string, workerId: string): string {
  return new Bun.CryptoHasher("sha256").update(`${name}\0${workerId}`).digest("hex");
}
