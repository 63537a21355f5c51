/**
 * Remembers where each generate stood in the query as the caller wrote it. Rules reorder and copy, so a place in the
 * rewritten query says little to the caller. The path is a property of the options under a symbol: a rule that makes a
 * generate from another one takes its options along, and nothing prints or compares symbols.
 */
import { childrenOf, type Generate, type GenerateOptions, type Query } from "../query/ir.ts";
import { mapChildren } from "../query/transform.ts";

const origin: unique symbol = Symbol("origin");

type Marked = GenerateOptions & { readonly [origin]?: string };

/** The same query with every generate marked. Nodes that are shared stay shared. */
export function markOrigins(root: Query): Query {
  const marked = new Map<Query, Query>();
  const mark = (query: Query, path: string): Query => {
    const known = marked.get(query);
    if (known !== undefined) return known;
    const steps = childrenOf(query);
    const whole = mapChildren(query, (child, index) => mark(child, path + (steps[index]?.[0] ?? "")));
    const result = whole.kind === "generate" ? { ...whole, options: { ...whole.options, [origin]: path } } : whole;
    marked.set(query, result);
    return result;
  };
  return mark(root, "$");
}

/** The path in the caller's query. undefined: a rule made this generate. */
export const originOf = ({ options }: Generate): string | undefined => (options as Marked)[origin];
