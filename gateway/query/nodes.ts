/** Kinds of nodes that the parser and the rewrite rules treat alike. */
import type { Generate, Ordered, Query, Repeat } from "./ir.ts";

export const orderedKinds = ["seq", "cross", "par"] as const;

export function isOrdered(query: Query): query is Ordered {
  return query.kind === "seq" || query.kind === "cross" || query.kind === "par";
}

/** Stands in a prompt by its outputs. */
export function isRun(query: Query): query is Generate | Repeat {
  return query.kind === "generate" || query.kind === "repeat";
}

export function optionsOf(run: Generate | Repeat): Generate["options"] {
  return run.kind === "generate" ? run.options : run.generate.options;
}

/** A join without children: it puts nothing anywhere and runs nothing. */
export function isEmpty(query: Query): boolean {
  if (query.kind === "plus") return query.children.length === 0 && query.preamble === undefined;
  return isOrdered(query) && query.children.length === 0;
}

export const nothing: Ordered = { kind: "seq", children: [] };

/** Judges below the outermost one, at most. */
export function judgeCount(judged: number, arity: number): number {
  const groupCount = Math.ceil(judged / arity);
  return groupCount <= 1 ? 0 : groupCount + judgeCount(groupCount, arity);
}
