/** Kinds of nodes that the parser and the rewrite rules treat alike. */
import type { Generate, Ordered, Query, Repeat } from "./ir.ts";

export const orderedKinds = ["seq", "cross", "par"] as const;

export function isOrdered(query: Query): query is Ordered {
  return query.kind === "seq" || query.kind === "cross" || query.kind === "par";
}

/** Whether the node stands in a prompt by its outputs. */
export const isRun = (query: Query): query is Generate | Repeat => query.kind === "generate" || query.kind === "repeat";

export function optionsOf(run: Generate | Repeat): Generate["options"] {
  return run.kind === "generate" ? run.options : run.generate.options;
}

/** Whether the node is a join without children, which adds nothing to a prompt and runs nothing. */
export function isEmpty(query: Query): boolean {
  if (query.kind === "plus") return query.children.length === 0 && query.preamble === undefined;
  return isOrdered(query) && query.children.length === 0;
}

export const nothing: Ordered = { kind: "seq", children: [] };

/** Most judges below the outermost one in a tree that judges `judged` children. */
export function judgeCount(judged: number, arity: number): number {
  const groupCount = Math.ceil(judged / arity);
  return groupCount <= 1 ? 0 : groupCount + judgeCount(groupCount, arity);
}
