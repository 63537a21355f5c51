/**
 * Decides in which order to run queries that share fragments, when the KV pool holds only some of these at a time.
 *
 * The order is made by running the queries against a simulated pool (least recently used leaves first). Next is the
 * query with the lowest cost: what it would have to compute, less what it would finish off. A fragment that is wanted
 * by `left` more queries, this one included, weighs
 *
 *   missing:   tokens · (1 - 1/left)    it has to be computed once in any case: this query's share of that is free
 *   resident: -2 · tokens / left        its last uses first, so that it need not come back
 *
 * Against the greedy order of the span-query paper (most overlap with the query before) this computes about half as
 * many tokens on Zipf workloads; `bench bulk` has the figures.
 */
import { FragmentTable, type FragmentUse, SimulatedPool } from "./simulated-pool.ts";

export { FragmentTable, type FragmentUse };

export interface PlannedOrder {
  /** Indices of the queries, each once, in the order to run them. */
  readonly order: readonly number[];
  /** "ingestion": the order in which the queries came, since the planner's own order would not compute fewer tokens. */
  readonly kind: "planned" | "ingestion";
}

/** How many queries are compared for each next place. More would find slightly less to compute, but take longer. */
const candidateCount = 256;
const residentWeight = 2;
const rarityClassCount = 192;
const none: Set<number> = new Set();

/**
 * Finds an order in steps of well under a millisecond, so that other work runs between them.
 * @param table the queries, with the fragments in each one's prompt
 * @param capacityTokens capacity of the pool, counted as in FragmentUse
 */
export function* planningSteps(table: FragmentTable, capacityTokens: number): Generator<void, PlannedOrder> {
  const ingestion = table.fragmentsOf.map((_, index) => index);
  const planner = new Planner(table, capacityTokens);
  yield* planner.prepare();
  const planned = yield* planner.run();
  const plannedMisses = yield* missTokens(table, planned, capacityTokens);
  const isBetter = plannedMisses < (yield* missTokens(table, ingestion, capacityTokens));
  return isBetter ? { order: planned, kind: "planned" } : { order: ingestion, kind: "ingestion" };
}

/** Tokens computed in a simulated pool of `capacityTokens` when queries run in this order. Yields after each query. */
export function* missTokens(
  table: FragmentTable,
  order: readonly number[],
  capacityTokens: number,
): Generator<void, number> {
  const pool = new SimulatedPool(table.tokens, capacityTokens);
  let missed = 0;
  for (const query of order) {
    missed += pool.use(table.fragmentsOf[query] ?? []).missTokens;
    yield;
  }
  return missed;
}

class Planner {
  readonly #table: FragmentTable;
  readonly #pool: SimulatedPool;
  /** For each fragment, the queries with it that have no place in the order yet. */
  readonly #waiting: Set<number>[] = [];
  /** Resident fragments that more queries need, by rarity class. */
  readonly #residents = Array.from({ length: rarityClassCount }, () => new Set<number>());
  /** Each fragment's part of the cost of a query that has it. */
  readonly #costs: Float64Array;
  /** For each query, the number of the last search that has looked at it. */
  readonly #lookedAt: Int32Array;

  constructor(table: FragmentTable, capacityTokens: number) {
    this.#table = table;
    this.#pool = new SimulatedPool(table.tokens, capacityTokens);
    this.#costs = new Float64Array(table.tokens.length);
    this.#lookedAt = new Int32Array(table.fragmentsOf.length).fill(-1);
  }

  /** Sets up the costs. It must finish before `run`. */
  *prepare(): Generator<void, void> {
    for (const [fragment, queries] of this.#table.queriesOf.entries()) {
      // A query's own fragments, of which there are as many as queries, draw no other query near.
      this.#waiting.push(queries.length > 1 ? new Set(queries) : none);
      const tokens = this.#table.tokens[fragment] ?? 0;
      this.#costs[fragment] = tokens - tokens / queries.length;
      yield;
    }
  }

  *run(): Generator<void, number[]> {
    const costs: number[] = [];
    for (const query of this.#table.fragmentsOf.keys()) {
      costs.push(this.#cost(query));
      yield;
    }
    // The queries in the order of their costs for an empty pool, so those with the rarest fragments come first.
    const starts = new Set(costs.map((_, query) => query).sort((a, b) => (costs[a] ?? 0) - (costs[b] ?? 0) || a - b));
    const order: number[] = [];
    for (const start of starts) {
      // The start is the fallback of each search until it is the cheapest query itself.
      while (starts.has(start)) {
        const query = this.#cheapest(start, order.length);
        starts.delete(query);
        order.push(query);
        this.#take(query);
        yield;
      }
    }
    return order;
  }

  /** The cheapest of a start and of the queries that use the rarest resident fragments. */
  #cheapest(start: number, search: number): number {
    let best = start;
    let bestCost = this.#cost(start);
    let looked = 0;
    for (const fragments of this.#residents) {
      for (const fragment of fragments) {
        for (const query of this.#waiting[fragment] ?? []) {
          if (looked >= candidateCount) return best;
          if (this.#lookedAt[query] === search) continue;
          this.#lookedAt[query] = search;
          looked += 1;
          const cost = this.#cost(query);
          if (cost > bestCost || (cost === bestCost && query >= best)) continue;
          best = query;
          bestCost = cost;
        }
      }
    }
    return best;
  }

  #cost(query: number): number {
    let cost = 0;
    for (const fragment of this.#table.fragmentsOf[query] ?? []) cost += this.#costs[fragment] ?? 0;
    return cost;
  }

  #take(query: number): void {
    const fragments = this.#table.fragmentsOf[query] ?? [];
    for (const fragment of fragments) {
      this.#residents[rarityClass(this.#left(fragment))]?.delete(fragment);
      this.#waiting[fragment]?.delete(query);
      const left = this.#left(fragment);
      if (left > 0) this.#residents[rarityClass(left)]?.add(fragment);
      this.#costs[fragment] = (-residentWeight * (this.#table.tokens[fragment] ?? 0)) / left;
    }
    for (const fragment of this.#pool.use(fragments).evicted) {
      const left = this.#left(fragment);
      this.#residents[rarityClass(left)]?.delete(fragment);
      const tokens = this.#table.tokens[fragment] ?? 0;
      this.#costs[fragment] = tokens - tokens / left;
    }
  }

  #left(fragment: number): number {
    return this.#waiting[fragment]?.size ?? 0;
  }
}

/** The class of a fragment with `left` uses to come: one for each number up to 63, then eight for each doubling. */
function rarityClass(left: number): number {
  return left < 64 ? left : Math.min(64 + Math.floor(8 * Math.log2(left / 64)), rarityClassCount - 1);
}
