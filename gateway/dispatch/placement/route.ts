/**
 * Which worker runs a request. Pure and deterministic: the cheapest, where cost is what the request waits for there
 * and what it adds to the others' waits, both in prompt tokens to compute.
 */
export interface Candidate {
  readonly id: string;
  /** Prompt tokens of this request that it holds. */
  readonly cachedTokens: number;
  /** Prompt tokens of this request that it does not hold, and that requests it has are about to compute. */
  readonly upcomingTokens: number;
  /** Prompt tokens of other requests that it has still to compute. */
  readonly pendingTokens: number;
  /** Requests it has. */
  readonly inFlight: number;
}

/** A running request slows a prefill down about as much as this many more prompt tokens would. */
const tokensPerRunningRequest = 32;
/** Tokens that are computed here though another worker has them are so many times waited for by later requests. */
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
    const { id, pendingTokens, inFlight } = candidate;
    const computed = missingTokens(candidate, promptTokens);
    // All that run there wait while it computes.
    const cost = computed * (laterWaits + inFlight) + pendingTokens + inFlight * tokensPerRunningRequest;
    const entry = { id, cost, rank: rankOf(affinity, id) };
    if (chosen === undefined || entry.cost < chosen.cost || (entry.cost === chosen.cost && entry.rank < chosen.rank)) {
      chosen = entry;
    }
  }
  return chosen?.id;
}

/** Prompt tokens that the worker would compute for this request alone. */
export function missingTokens({ cachedTokens, upcomingTokens }: Candidate, promptTokens: number): number {
  return Math.max(0, promptTokens - cachedTokens - upcomingTokens);
}

/**
 * A name's order of preference among workers: rendezvous hashing, so that one that goes moves only its own names. It is
 * of the name alone and has no secret, so that the same requests go the same way in every process; whom a name prefers
 * says nothing of another name.
 */
export function rankOf(name: string, workerId: string): string {
  return new Bun.CryptoHasher("sha256").update(`${name}\0${workerId}`).digest("hex");
}
