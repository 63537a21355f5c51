/** The KV pool as the planner models it: whole fragments are resident, and the least recently used goes first. */

export interface FragmentUse {
  /** Identity in the cache: equal keys are the same fragment. */
  readonly key: string;
  readonly tokens: number;
}

/** Numbers queries and fragments from 0, and knows which query has which fragments. */
export class FragmentTable {
  /** Number of tokens of each fragment. */
  readonly tokens: number[] = [];
  /** The fragments of each query, each once. */
  readonly fragmentsOf: (readonly number[])[] = [];
  /** The queries of each fragment, in the order in which they were added. */
  readonly queriesOf: number[][] = [];
  readonly #ids = new Map<string, number>();

  static of(queries: readonly (readonly FragmentUse[])[]): FragmentTable {
    const table = new FragmentTable();
    for (const uses of queries) table.add(uses);
    return table;
  }

  /** Adds the next query. */
  add(uses: readonly FragmentUse[]): void {
    const fragments = new Set(uses.map((use) => this.#idOf(use)));
    for (const fragment of fragments) this.queriesOf[fragment]?.push(this.fragmentsOf.length);
    this.fragmentsOf.push([...fragments]);
  }

  tokensOf(fragments: readonly number[]): number {
    return fragments.reduce((sum, fragment) => sum + (this.tokens[fragment] ?? 0), 0);
  }

  #idOf({ key, tokens }: FragmentUse): number {
    const known = this.#ids.get(key);
    if (known !== undefined) return known;
    const id = this.#ids.size;
    this.#ids.set(key, id);
    this.tokens.push(tokens);
    this.queriesOf.push([]);
    return id;
  }
}

/** Knows which fragments are resident after the queries so far. All fragments of a query are held at the same time. */
export class SimulatedPool {
  readonly #tokens: readonly number[];
  readonly #capacityTokens: number;
  /** The resident fragments, least recently used first. */
  readonly #resident = new Set<number>();
  #usedTokens = 0;

  constructor(tokens: readonly number[], capacityTokens: number) {
    this.#tokens = tokens;
    this.#capacityTokens = capacityTokens;
  }

  use(fragments: readonly number[]): { readonly missTokens: number; readonly evicted: readonly number[] } {
    let missed = 0;
    for (const fragment of fragments) {
      if (!this.#resident.delete(fragment)) missed += this.#tokens[fragment] ?? 0;
      this.#resident.add(fragment);
    }
    this.#usedTokens += missed;
    const evicted: number[] = [];
    for (const fragment of this.#resident) {
      if (this.#usedTokens <= this.#capacityTokens) break;
      this.#resident.delete(fragment);
      this.#usedTokens -= this.#tokens[fragment] ?? 0;
      evicted.push(fragment);
    }
    return { missTokens: missed, evicted };
  }
}
