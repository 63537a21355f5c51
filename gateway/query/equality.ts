/** What one rewriting knows about equal nodes. Nodes are immutable, so what was found for one stays true. */
import { childrenOf, type Generate, type Query, type Repeat } from "./ir.ts";
import { canonicalKey } from "./print.ts";

export class Equality {
  readonly #keys = new Map<Query, string>();
  readonly #greedy = new Map<Query, boolean>();
  readonly #first = new Map<string, Generate | Repeat>();

  /** Equal exactly for nodes that are equal in structure. */
  readonly keyOf = (query: Query): string => canonicalKey(query, this.#keys);

  /** Whether it draws no sample anywhere: run twice, it gives the same. */
  readonly isGreedy = (query: Query): boolean => {
    const known = this.#greedy.get(query);
    if (known !== undefined) return known;
    const isGreedy = drawsNone(query) && childrenOf(query).every(([, child]) => this.isGreedy(child));
    this.#greedy.set(query, isGreedy);
    return isGreedy;
  };

  readonly representative = <Run extends Generate | Repeat>(run: Run): Run => {
    // A key tells generates from repeats.
    const first = this.#first.get(this.keyOf(run)) as Run | undefined;
    if (first !== undefined) return first;
    this.#first.set(this.keyOf(run), run);
    return run;
  };
}

/** Chats are written out as generates before anything is compared. */
function drawsNone(query: Query): boolean {
  return (query.kind !== "generate" && query.kind !== "map") || query.options.temperature === 0;
}
