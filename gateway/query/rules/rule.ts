/** Defines rewrite rules, and what a rule may know beside the node that it is applied to. */
import type { Generate, Query, Repeat } from "../ir.ts";

/**
 * Where a node stands. `root`: it is the whole query. `program`: it is outside every generate, so no model reads it,
 * and its answers are listed in order. `prompt`: it is inside the input of a generate, which reads it. `effect`: it is
 * under a monad, so it is run but not read.
 */
export type Place = "root" | "program" | "prompt" | "effect";

export interface RuleContext {
  readonly place: Place;
  /** Whether the engine reuses spans. Only then is distribution worth its longer prompt. */
  readonly spans: boolean;
  /** Whether the engine can run a map as one request. */
  readonly bulkMap: boolean;
  /** Arity of judges that give none. undefined: such judges stay as they are. */
  readonly reduceArity: number | undefined;
  /** The same key exactly for nodes that are equal in structure. */
  readonly keyOf: (query: Query) => string;
  /** Whether no sample is drawn inside the node, so that running it twice gives the same output. */
  readonly isGreedy: (query: Query) => boolean;
  /** The first run that is equal in structure to this one: one object for all equal runs. */
  readonly representative: <Run extends Generate | Repeat>(run: Run) => Run;
  /** The run in the form that exposes only its output. Each run has one such object, which replaces it everywhere. */
  readonly rename: (run: Generate | Repeat) => Generate | Repeat;
}

/**
 * A rule gets one node whose children are rewritten already. It returns the node to put in its place, or undefined
 * where it does not apply; it never returns the node itself. A rule on `generate`, `repeat` or `chat` must not depend
 * on the place: the object may stand at several, and is one run.
 */
export interface Rule {
  readonly name: string;
  /** The rule as "left -> right". */
  readonly summary: string;
  readonly kinds: readonly Query["kind"][];
  /** Expansion ends before improvement begins, since a zip counts the children of a join as the client wrote them. */
  readonly phase: "expand" | "improve";
  readonly apply: (query: Query, context: RuleContext) => Query | undefined;
}

type NodeOf<Kind extends Query["kind"], Node = Query> = Node extends { kind: infer Own }
  ? [Own & Kind] extends [never]
    ? never
    : Node
  : never;

export function ruleOn<Kind extends Query["kind"]>(
  kinds: readonly Kind[],
  name: string,
  summary: string,
  apply: (node: NodeOf<Kind>, context: RuleContext) => Query | undefined,
): Rule {
  const wanted: ReadonlySet<string> = new Set(kinds);
  const isWanted = (query: Query): query is NodeOf<Kind> & Query => wanted.has(query.kind);
  return {
    name,
    summary,
    kinds,
    phase: "improve",
    apply: (query, context) => (isWanted(query) ? apply(query, context) : undefined),
  };
}
