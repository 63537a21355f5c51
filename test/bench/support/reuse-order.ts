/** Workloads of queries over shared fragments, the paper's order of them, and how near uses of a fragment are. */
import type { FragmentUse } from "../../../gateway/query/planner.ts";

type Queries = readonly (readonly FragmentUse[])[];

/** Numbers from 0 up to 1, the same for the same seed (mulberry32). */
export function randomNumbers(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
}

export interface Workload {
  readonly queryCount: number;
  /** Different fragments of each query. */
  readonly fragmentsPerQuery: number;
  readonly fragmentCount: number;
  /** The r-th fragment is drawn with a weight of 1/r^s; 0: all alike. */
  readonly zipf: number;
  readonly seed: number;
}

/** Fragment numbers of each query. */
export function drawQueries(workload: Workload): number[][] {
  const { queryCount, fragmentsPerQuery, fragmentCount, zipf, seed } = workload;
  const random = randomNumbers(seed);
  const weights = Array.from({ length: fragmentCount }, (_, rank) => (rank + 1) ** -zipf);
  const totalWeight = weights.reduce((sum, weight) => sum + weight, 0);
  const draw = (): number => {
    let rest = random() * totalWeight;
    const found = weights.findIndex((weight) => {
      rest -= weight;
      return rest < 0;
    });
    return found < 0 ? fragmentCount - 1 : found;
  };
  return Array.from({ length: queryCount }, () => {
    const drawn = new Set<number>();
    while (drawn.size < fragmentsPerQuery) drawn.add(draw());
    return [...drawn];
  });
}

/** Next is the query that shares most tokens with the one before; the first that is left when none shares any. */
export function paperOrder(queries: Queries): number[] {
  const left = new Set(queries.keys());
  const order: number[] = [];
  while (left.size > 0) {
    const last = new Set(queries[order.at(-1) ?? -1]?.map(({ key }) => key));
    let best = -1;
    let bestTokens = -1;
    for (const query of left) {
      const shared = (queries[query] ?? []).reduce((sum, { key, tokens }) => sum + (last.has(key) ? tokens : 0), 0);
      if (shared <= bestTokens) continue;
      best = query;
      bestTokens = shared;
    }
    left.delete(best);
    order.push(best);
  }
  return order;
}

/**
 * Reuse distances in tokens, one for each repeated use: what other fragments were used since the last use. A pool that
 * drops the least recently used finds a fragment when this is less than it holds.
 */
export function reuseDistances(queries: Queries, order: readonly number[]): number[] {
  /** Most recently used last. */
  const stack = new Map<string, number>();
  const distances: number[] = [];
  for (const query of order) {
    for (const { key, tokens } of queries[query] ?? []) {
      if (stack.has(key)) {
        const keys = [...stack.keys()];
        const later = keys.slice(keys.indexOf(key) + 1);
        distances.push(later.reduce((sum, other) => sum + (stack.get(other) ?? 0), 0));
      }
      stack.delete(key);
      stack.set(key, tokens);
    }
  }
  return distances;
}
