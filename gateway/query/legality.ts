/**
 * The laws for a query between the rewriting passes, as one table. Only a mistake of this server breaks a law: the
 * parser refuses wrong queries of clients first, with errors of its own (errors.ts).
 */
import { childrenOf, type GenerateOptions, type Query } from "./ir.ts";

/**
 * `resolved`: before and during expansion. `expanded`: before and during improvement. `rewritten`: the form that
 * lowering and execution take.
 */
export type Stage = (typeof stages)[number];

const stages = ["resolved", "expanded", "rewritten"] as const;

/** Deepest nesting. Rewriting nests deeper than a client may; this bounds all functions that walk a query. */
const maxDepth = 1_024;

interface Law {
  readonly name: string;
  readonly summary: string;
  /** The law holds from this stage on. */
  readonly from: Stage;
  readonly holds: (query: Query, isInPrompt: boolean) => boolean;
}

const laws: readonly Law[] = [
  {
    name: "retrieval-resolved",
    summary: "retrieve and augment became retrieved",
    from: "resolved",
    holds: ({ kind }) => kind !== "retrieve" && kind !== "augment",
  },
  {
    name: "retrieved-texts",
    summary: "what was retrieved are fragments and messages",
    from: "resolved",
    holds: (query) =>
      query.kind !== "retrieved" || query.fragments.every(({ kind }) => kind === "fragment" || kind === "message"),
  },
  {
    name: "option-ranges",
    summary: "a generate's numbers are within their ranges",
    from: "resolved",
    holds: (query) => (query.kind !== "generate" && query.kind !== "map") || areInRange(query.options),
  },
  {
    name: "repeat-count",
    summary: "a repeat has at least one sample",
    from: "resolved",
    holds: (query) => query.kind !== "repeat" || (Number.isSafeInteger(query.n) && query.n >= 1),
  },
  {
    name: "joins-and-generates-only",
    summary: "no chat, zip, retrieved or repeat of one is left",
    from: "expanded",
    holds: (query) => !["chat", "zip", "retrieved"].includes(query.kind) && !(query.kind === "repeat" && query.n === 1),
  },
  {
    name: "map-outside-prompts",
    summary: "a map is no part of a prompt",
    from: "expanded",
    holds: ({ kind }, isInPrompt) => kind !== "map" || !isInPrompt,
  },
  {
    name: "flat-prompts",
    summary: "an ordered join in a prompt has no ordered join as a child",
    from: "rewritten",
    holds: (query, isInPrompt) => !isInPrompt || !isOrdered(query) || !childrenOf(query).some(([, q]) => isOrdered(q)),
  },
  {
    name: "no-empty-children",
    summary: "no join without children stands in a join",
    from: "rewritten",
    holds: (query) =>
      !isJoin(query) || !childrenOf(query).some(([, child]) => isJoin(child) && !childrenOf(child).length),
  },
];

const isOrdered = ({ kind }: Query) => kind === "seq" || kind === "cross" || kind === "par";
const isJoin = (query: Query) => isOrdered(query) || query.kind === "plus";

function areInRange({ maxTokens, temperature, recomputeRatio = 0, reduce }: GenerateOptions): boolean {
  const isArity = reduce === undefined || (Number.isSafeInteger(reduce.arity) && reduce.arity >= 2);
  const isRatio = recomputeRatio >= 0 && recomputeRatio <= 1;
  return (
    Number.isSafeInteger(maxTokens) &&
    maxTokens >= 0 &&
    temperature >= 0 &&
    temperature < Infinity &&
    isArity &&
    isRatio
  );
}

export class IllegalQueryError extends Error {
  override readonly name = "IllegalQueryError";
  readonly law: string;
  readonly path: string;

  constructor(law: string, summary: string, path: string) {
    super(`${path} breaks ${law}: ${summary}`);
    this.law = law;
    this.path = path;
  }
}

/**
 * Checks all laws, in time linear in the number of distinct nodes.
 * @throws IllegalQueryError
 */
export function checkLegal(query: Query, stage: Stage): void {
  new Checker(laws.filter(({ from }) => stages.indexOf(from) <= stages.indexOf(stage))).check(query, false);
}

class Checker {
  readonly #laws: readonly Law[];
  readonly #checked = { true: new Set<Query>(), false: new Set<Query>() };
  /** The nodes from the root to the one that is checked now. */
  readonly #open: { readonly query: Query; readonly index: number }[] = [];
  readonly #isOpen = new Set<Query>();

  constructor(wanted: readonly Law[]) {
    this.#laws = wanted;
  }

  check(query: Query, isInPrompt: boolean): void {
    const checked = this.#checked[`${isInPrompt}`];
    if (checked.has(query)) return;
    if (this.#isOpen.has(query)) throw this.#error("acyclic", "no node contains itself");
    if (this.#open.length >= maxDepth) throw this.#error("depth", `at most ${maxDepth} nodes stand within each other`);
    for (const law of this.#laws) if (!law.holds(query, isInPrompt)) throw this.#error(law.name, law.summary);
    this.#isOpen.add(query);
    const isPromptInside = query.kind === "generate" || query.kind === "chat" || (isInPrompt && query.kind !== "monad");
    for (const [index, [, child]] of childrenOf(query).entries()) {
      this.#open.push({ query, index });
      this.check(child, isPromptInside);
      this.#open.pop();
    }
    this.#isOpen.delete(query);
    checked.add(query);
  }

  #error(law: string, summary: string): IllegalQueryError {
    const steps = this.#open.map(({ query, index }) => childrenOf(query)[index]?.[0] ?? "");
    return new IllegalQueryError(law, summary, `$${steps.join("")}`);
  }
}
