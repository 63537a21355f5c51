/** A query as the server prints it, read as rows of a drawing: a node each, below the one that holds it. */

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

export interface TreeRow {
  /** As errors and plans name the node: `$.g.input.cross[1]`. */
  readonly path: string;
  readonly depth: number;
  /** `g`, `plus`, `user` and so on. */
  readonly kind: string;
  /** What it says beside its kind: its text, or its options. */
  readonly text: string;
}

/** A drawing with more rows is no picture any more. */
const mostRows = 400;
const mostTextChars = 90;

const isObject = (value: Json | undefined): value is { readonly [key: string]: Json } =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** @returns the rows from the root on, and whether there are more */
export function rowsOf(query: Json): { readonly rows: readonly TreeRow[]; readonly isWhole: boolean } {
  const rows: TreeRow[] = [];
  const isWhole = visit(query, "$", 0, rows);
  return { rows, isWhole };
}

/** @returns false when the bound was reached */
function visit(node: Json, path: string, depth: number, rows: TreeRow[]): boolean {
  if (rows.length >= mostRows) return false;
  if (!isObject(node)) return true;
  const kind = Object.keys(node)[0] ?? "";
  const content = node[kind] ?? null;
  rows.push({ path, depth, kind, text: shortened(textOf(kind, content)) });
  return childrenOf(kind, content).every(([step, child]) => visit(child, path + step, depth + 1, rows));
}

/** Fields of a node that hold other nodes, with the step of the path that leads to each. */
function childrenOf(kind: string, content: Json): readonly (readonly [step: string, child: Json])[] {
  const listed = (name: string, list: Json | undefined) =>
    (Array.isArray(list) ? (list as readonly Json[]) : []).map(
      (child, index) => [`.${name}[${index}]`, child] as const,
    );
  if (Array.isArray(content)) return listed(kind, content);
  if (kind === "monad") return [[".monad", content]];
  if (!isObject(content)) return [];
  const held = (name: string): readonly (readonly [string, Json])[] =>
    content[name] === undefined ? [] : [[`.${kind}.${name}`, content[name]]];
  switch (kind) {
    case "g":
      return held("input");
    case "repeat":
      // What is repeated stands beside the number.
      return content.g === undefined ? [] : [[".repeat", { g: content.g }]];
    case "plus":
      return [...held("preamble"), ...listed("plus.children", content.children)];
    case "zip":
      return [...held("first"), ...held("second")];
    case "augment":
      return held("body");
    case "retrieve":
      return isObject(content.query) ? held("query") : [];
    default:
      return [];
  }
}

const nodeFields = new Set(["input", "g", "body", "first", "second", "preamble", "children"]);

function textOf(kind: string, content: Json): string {
  if (typeof content === "string") return `"${content}"`;
  if (!isObject(content)) return "";
  if (kind === "fragment") return String(content.title ?? content.text ?? content.id ?? "");
  const shown = Object.entries(content).filter(
    ([name, value]) =>
      !nodeFields.has(name) &&
      value !== "" &&
      !(name === "max_tokens" && value === 0) &&
      !(name === "query" && isObject(value)),
  );
  return shown
    .map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(", ");
}

function shortened(text: string): string {
  const line = text.replace(/\s+/g, " ");
  const signs = Array.from(line.slice(0, 4 * mostTextChars));
  return signs.length > mostTextChars ? `${signs.slice(0, mostTextChars - 1).join("")}…` : line;
}

/** What a plan says of one place of the query. */
export interface Held {
  readonly tokens: number;
  readonly cached: number;
  readonly isKnown: boolean;
}

export interface ExplainedPlan {
  readonly place: string;
  readonly samples: number;
  readonly prompt_tokens: number;
  readonly runs: readonly {
    readonly span_id: string | null;
    readonly tokens: number;
    readonly cached_tokens: number;
    readonly known: boolean;
  }[];
}

/** Prompts of generates and spans, by the path of the node that they are. */
export function heldByPath(plans: readonly ExplainedPlan[]): ReadonlyMap<string, Held> {
  const held = new Map<string, Held>();
  for (const { place, prompt_tokens: tokens, runs } of plans) {
    const cached = runs.reduce((sum, run) => sum + run.cached_tokens, 0);
    held.set(place, { tokens, cached, isKnown: runs.every(({ known }) => known) });
  }
  for (const { runs } of plans) {
    for (const { span_id: id, tokens, cached_tokens: cached, known } of runs) {
      if (id !== null && !held.has(id)) held.set(id, { tokens, cached, isKnown: known });
    }
  }
  return held;
}
