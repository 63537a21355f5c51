/** How large a query becomes when its zips are written out: they are its only nodes that multiply. */
import { childrenOf, type Query } from "./ir.ts";

export interface Expansion {
  readonly nodes: number;
  /** UTF-16 units of the messages and fragments. */
  readonly chars: number;
  /** Children that a zip in whose second place the node stands puts its first before. */
  readonly children: number;
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
    };
  }
  const isJoin = query.kind === "seq" || query.kind === "cross" || query.kind === "par" || query.kind === "plus";
  return {
    nodes: parts.reduce((sum, { nodes }) => sum + nodes, 1),
    chars: parts.reduce((sum, { chars }) => sum + chars, ownChars(query)),
    children: isJoin ? query.children.length : 1,
  };
}

function ownChars(query: Query): number {
  if (query.kind === "message") return query.text.length;
  if (query.kind === "fragment") return "text" in query ? query.text.length : 0;
  if (query.kind === "map") return query.inputs.reduce((sum, input) => sum + input.length, 0);
  return 0;
}
