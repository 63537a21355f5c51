/** How large a query becomes when it is written out as joins of messages, fragments and generates. */
import { childrenOf, type Query } from "./ir.ts";
import { queryLimits as limits } from "./limits.ts";
import { isOrdered } from "./nodes.ts";

export interface Expansion {
  readonly nodes: number;
  /** UTF-16 units of the messages and fragments. */
  readonly chars: number;
  /** Children that a zip in whose second place the node stands puts its first before. */
  readonly children: number;
  /** Children that a plus may have of it at most, once pluses in pluses are one. */
  readonly members: number;
}

/** @param known expansions of nodes seen before */
export function expansionOf(query: Query, known: Map<Query, Expansion>): Expansion {
  const found = known.get(query);
  if (found !== undefined) return found;
  const expansion = expand(
    query,
    childrenOf(query).map(([, child]) => expansionOf(child, known)),
  );
  known.set(query, expansion);
  return expansion;
}

function expand(query: Query, parts: readonly Expansion[]): Expansion {
  if (query.kind === "zip") {
    const [first, second] = parts;
    if (first === undefined || second === undefined) throw new Error("a zip has two children");
    return {
      nodes: second.nodes + second.children * first.nodes,
      chars: second.chars + second.children * first.chars,
      children: 2 * second.children,
      members: second.members + second.children * first.members,
    };
  }
  const own = ownChildren(query);
  return {
    nodes: parts.reduce((sum, { nodes }) => sum + nodes, 1 + (own ?? 0)),
    chars: parts.reduce((sum, { chars }) => sum + chars, ownChars(query)),
    children: own ?? (isOrdered(query) || query.kind === "plus" ? query.children.length : 1),
    members: own ?? membersOf(query, parts),
  };
}

/** Of a node that becomes a plus; of a search as many as it may find. */
function ownChildren(query: Query): number | undefined {
  switch (query.kind) {
    case "map":
      return query.inputs.length;
    case "retrieve":
      return query.maxResults;
    case "augment":
      return limits.retrievedFragments;
    case "retrieved":
      return query.fragments.length;
    default:
      return undefined;
  }
}

function membersOf(query: Query, parts: readonly Expansion[]): number {
  const isBarePlus = query.kind === "plus" && query.preamble === undefined;
  // An ordered join of one is its child.
  return isBarePlus || (isOrdered(query) && parts.length === 1)
    ? parts.reduce((sum, part) => sum + part.members, 0)
    : 1;
}

/** Children that a judge with this input judges at most. */
export function judgedCount(input: Query, known: Map<Query, Expansion>): number {
  if (!isOrdered(input)) return expansionOf(input, known).members;
  return Math.max(0, ...input.children.map((child) => judgedCount(child, known)));
}

function ownChars(query: Query): number {
  if (query.kind === "message") return query.text.length;
  if (query.kind === "fragment") return "text" in query ? query.text.length : 0;
  if (query.kind === "map") return query.inputs.reduce((sum, input) => sum + input.length, 0);
  return 0;
}
