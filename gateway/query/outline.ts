/** Lists a query as rows of text with their depth, which both drawings show. */
import { childrenOf, type GenerateOptions, type Query } from "./ir.ts";
import { printOptions } from "./print.ts";

export interface Row {
  readonly depth: number;
  /** For each level from the root's children down to this row, whether more siblings follow there. */
  readonly continues: readonly boolean[];
  readonly kind: Query["kind"] | "more";
  /** One line of text without control characters. */
  readonly text: string;
  /** The caller's label for this node. */
  readonly label: string | undefined;
}

export type Labels = (node: Query) => string | undefined;

export const maxRows = 400;
const maxTextChars = 72;

/** The rows of a query, depth first. A run listed before becomes a reference to its number: one object is one run. */
export function outlineOf(query: Query, labels: Labels = () => undefined): readonly Row[] {
  const numbers = numbersOf(query);
  const rows: Row[] = [];
  const drawn = new Set<Query>();
  let isCut = false;
  const add = (node: Query, continues: readonly boolean[]): void => {
    if (rows.length >= maxRows) {
      isCut = true;
      return;
    }
    const number = numbers.get(node);
    const again = number !== undefined && drawn.has(node);
    const title = number === undefined ? titleOf(node) : `${titleOf(node)} #${number}${again ? ", as above" : ""}`;
    rows.push({ depth: continues.length, continues, kind: node.kind, text: title, label: oneLine(labels(node)) });
    drawn.add(node);
    if (again) return;
    const children = childrenOf(node).map(([, child]) => child);
    for (const [index, child] of children.entries()) {
      if (isCut) return;
      add(child, [...continues, index < children.length - 1]);
    }
  };
  add(query, []);
  if (isCut)
    rows.push({
      depth: 0,
      continues: [],
      kind: "more",
      text: `… and more: the first ${maxRows} nodes are shown`,
      label: undefined,
    });
  return rows;
}

/** Numbers for the runs that stand at several places. */
function numbersOf(query: Query): ReadonlyMap<Query, number> {
  const seen = new Set<Query>();
  const numbers = new Map<Query, number>();
  const visit = (node: Query): void => {
    const isRun = node.kind === "generate" || node.kind === "repeat";
    if (seen.has(node)) {
      if (isRun && !numbers.has(node)) numbers.set(node, numbers.size + 1);
      return;
    }
    seen.add(node);
    for (const [, child] of childrenOf(node)) visit(child);
  };
  visit(query);
  return numbers;
}

function titleOf(query: Query): string {
  switch (query.kind) {
    case "message":
      return `${query.role} ${quoted(query.text)}`;
    case "fragment":
      return "id" in query ? `fragment ${oneLine(query.id)}` : `fragment ${quoted(query.text)}`;
    case "generate":
      return `g ${optionsText(query.options)}`;
    case "repeat":
      return `repeat ${query.n}`;
    case "map":
      return `map ${optionsText(query.options)}, inputs: ${query.inputs.length}`;
    case "plus":
      return query.preamble === undefined ? "plus" : "plus, its first child a preamble";
    case "augment":
      return `augment ${quoted(query.doc.name)}`;
    case "retrieve":
      return `retrieve ${oneLine(query.vectorStoreIds.join(" "))}`;
    default:
      return query.kind;
  }
}

/** The options that were set, and the temperature in any case. */
function optionsText(options: GenerateOptions): string {
  const fields = Object.entries(printOptions(options)).filter(([, value]) => value !== "" && value !== 0);
  const temperature = options.temperature === 0 ? [["temperature", 0] as const] : [];
  return cut(
    [...fields, ...temperature].map(([name, value]) => `${name} ${oneLine(JSON.stringify(value))}`).join(", "),
  );
}

/** Escapes a text as JSON does, so that a text of several lines is one line and shows all its characters. */
const quoted = (text: string) => visible(JSON.stringify(cut(text)));

function oneLine(text: string): string;
function oneLine(text: string | undefined): string | undefined;
function oneLine(text: string | undefined): string | undefined {
  return text === undefined ? undefined : visible(cut(text));
}

/** Cuts by code points, so that no half of a surrogate pair is left at the end. */
function cut(text: string): string {
  if (text.length <= maxTextChars) return text;
  return `${[...text.slice(0, 2 * maxTextChars)].slice(0, maxTextChars).join("")}…`;
}

/** Writes control characters, marks of direction, line separators and lone surrogates as their code points. */
function visible(text: string): string {
  return text.replace(/[\p{C}\u2028\u2029]/gu, (char) => `\\u{${(char.codePointAt(0) ?? 0).toString(16)}}`);
}
