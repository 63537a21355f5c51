import type { Query } from "./ir.ts";
import { type Labels, outlineOf, type Row } from "./outline.ts";

/**
 * The query as a tree of lines, for terminals. Long texts are cut, and so are large trees.
 * @param labels what else to say of a node: its tokens, its key, whether it is cached
 */
export function drawText(query: Query, labels?: Labels): string {
  return outlineOf(query, labels).map(lineOf).join("\n");
}

function lineOf({ continues, text, label }: Row): string {
  const stems = continues.slice(0, -1).map((isOpen) => (isOpen ? "│  " : "   "));
  const branch = continues.length === 0 ? "" : continues.at(-1) ? "├─ " : "└─ ";
  return `${stems.join("")}${branch}${text}${label === undefined ? "" : `  (${label})`}`;
}
