/** Computes how large a query becomes when all of it is written as joins of messages, fragments and generates. */
import { childrenOf, type Query } from "./ir.ts";
import { queryLimits as limits } from "./limits.ts";
import { isOrdered } from "./nodes.ts";

export interface Expansion {
  readonly nodes: number;
  /** UTF-16 units of all messages and fragments. */
  readonly chars: number;
  /** How often a zip with this node as its second part writes its first part. */
  readonly children: number;
  /** Most children that this node adds to a plus around it, once nested pluses are merged. */
  readonly members: number;
}

/** @param known expansions of nodes that were seen before */
export function expansionOf(query: Query, known: Map<Query, Expansion>): Expansion {
  const parts = (): Expansion[] => childrenOf(query).map(([, child]) => expansionOf(child, known));
  return known.getOrInsertComputed(query, () => expand(query, parts()));
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

/** Number of children of a node that becomes a plus: for a search, the most that it may find. */
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
  // An ordered join of one child becomes that child.
  return isBarePlus || (isOrdered(query) && parts.length === 1)
    ? parts.reduce((sum, part) => sum + part.members, 0)
    : 1;
}

/** Most children that a judge with this input can have to judge. */
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
