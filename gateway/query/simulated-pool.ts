/** The pool as the planner sees it: fragments that are resident or not, least recently used out first. */

export interface FragmentUse {
  /** Cache identity: equal keys are one fragment. */
  readonly key: string;
  readonly tokens: number;
}

/** Queries and fragments as small numbers. */
export class FragmentTable {
  /** Tokens of each fragment. */
  readonly tokens: number[] = [];
  /** Fragments of each query, without repetitions. */
  readonly fragmentsOf: (readonly number[])[] = [];
  /** Queries of each fragment, in their own order. */
  readonly queriesOf: number[][] = [];
  readonly #ids = new Map<string, number>();

  static of(queries: readonly (readonly FragmentUse[])[]): FragmentTable {
    const table = new FragmentTable();
    for (const uses of queries) table.add(uses);
    return table;
  }

  /** The next query. */
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

/** Which fragments are resident after the queries so far. All fragments of one query are held at the same time. */
export class SimulatedPool {
  readonly #tokens: readonly number[];
  readonly #capacityTokens: number;
  /** Least recently used first. */
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
