/**
 * Rebuilds trees. A node that does not change keeps its object: shared nodes stay shared (ir.ts), and a comparison of
 * objects shows whether anything changed.
 */
import type { Generate, Query } from "./ir.ts";

/** The node with mapped children, in the order of `childrenOf`; the node itself when all children are unchanged. */
export function mapChildren(query: Query, map: (child: Query, index: number) => Query): Query {
  switch (query.kind) {
    case "message":
    case "fragment":
    case "map":
      return query;
    case "seq":
    case "cross":
    case "par":
    case "chat": {
      const children = mapList(query.children, map, 0);
      return children === query.children ? query : { ...query, children };
    }
    case "plus": {
      const preamble = query.preamble === undefined ? undefined : map(query.preamble, 0);
      const children = mapList(query.children, map, preamble === undefined ? 0 : 1);
      if (children === query.children && preamble === query.preamble) return query;
      return preamble === undefined ? { ...query, children } : { ...query, children, preamble };
    }
    case "monad": {
      const child = map(query.child, 0);
      return child === query.child ? query : { ...query, child };
    }
    case "generate": {
      const input = map(query.input, 0);
      return input === query.input ? query : { ...query, input };
    }
    case "repeat": {
      const generate = generateOnly(map(query.generate, 0));
      return generate === query.generate ? query : { ...query, generate };
    }
    case "zip": {
      const first = map(query.first, 0);
      const second = map(query.second, 1);
      return first === query.first && second === query.second ? query : { ...query, first, second };
    }
    case "augment": {
      const body = map(query.body, 0);
      return body === query.body ? query : { ...query, body };
    }
    case "retrieve": {
      if (typeof query.query === "string") return query;
      const searched = map(query.query, 0);
      return searched === query.query ? query : { ...query, query: searched };
    }
    case "retrieved": {
      const fragments = mapList(query.fragments, map, 0);
      return fragments === query.fragments ? query : { ...query, fragments };
    }
  }
}

function mapList(
  list: readonly Query[],
  map: (child: Query, index: number) => Query,
  firstIndex: number,
): readonly Query[] {
  let mapped: Query[] | undefined;
  for (const [index, child] of list.entries()) {
    const next = map(child, firstIndex + index);
    if (next !== child) mapped ??= list.slice(0, index);
    mapped?.push(next);
  }
  return mapped ?? list;
}

function generateOnly(query: Query): Generate {
  if (query.kind !== "generate") throw new Error(`a repeat holds a generate, not a ${query.kind}`);
  return query;
}
