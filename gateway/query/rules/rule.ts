/** What a rewrite rule is, and what it may know beside the node it looks at. */
import type { Generate, Query, Repeat } from "../ir.ts";

/**
 * Where a node stands. `root`: the whole query. `program`: outside every generate; nobody reads it, its answers are
 * listed in order. `prompt`: inside the input of a generate, which reads it. `effect`: under a monad; run, not read.
 */
export type Place = "root" | "program" | "prompt" | "effect";

export interface RuleContext {
  readonly place: Place;
  /** Whether the engine reuses spans: only then is distribution worth its longer prompt. */
  readonly spans: boolean;
  /** Whether the engine takes a map as one request. */
  readonly bulkMap: boolean;
  /** Arity of judges that name none. undefined: they stay as they are. */
  readonly reduceArity: number | undefined;
  /** Equal for two nodes exactly when they are equal in structure. */
  readonly keyOf: (query: Query) => string;
  /** No sample is drawn anywhere in it: run twice, it gives the same. */
  readonly isGreedy: (query: Query) => boolean;
  /** The first run that is equal to this one in structure: one object for all that are equal. */
  readonly representative: <Run extends Generate | Repeat>(run: Run) => Run;
  /** The run under another form, the same object for the same run; it stands in its place in the whole query. */
  readonly rename: (run: Generate | Repeat) => Generate | Repeat;
}

/**
 * A rule sees one node whose children are rewritten already. It answers with what stands in the node's place, or
 * undefined where it does not fire; never with the node itself. A rule on `generate`, `repeat` or `chat` must not
 * look at the place: the object may stand at several, and is one run.
 */
export interface Rule {
  readonly name: string;
  /** left -> right */
  readonly summary: string;
  readonly kinds: readonly Query["kind"][];
  /** Expansion ends before anything else begins: a zip counts the children of a join as they were written. */
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
