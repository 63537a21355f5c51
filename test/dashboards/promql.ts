/** What a PromQL query asks for, held against what a server's /metrics has. Read by Prometheus' own grammar. */
import { parser } from "@prometheus-io/lezer-promql";

type SyntaxNode = ReturnType<typeof parser.parse>["topNode"];

/** Series of a metrics page: for each name its label sets. */
export type Series = ReadonlyMap<string, readonly Readonly<Record<string, string>>[]>;

/** Reads Prometheus' text form. A gauge or counter that is declared and has no series yet is there without labels. */
export function seriesOf(page: string): Series {
  const series = new Map<string, Record<string, string>[]>();
  for (const line of page.split("\n")) {
    const [, declared = ""] = /^# TYPE (\S+) (?:gauge|counter)$/.exec(line) ?? [];
    if (declared !== "") series.set(declared, []);
    if (line === "" || line.startsWith("#")) continue;
    const [, name = "", labels = ""] = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+$/.exec(line) ?? [];
    if (name === "") throw new Error(`not a line of metrics: ${line}`);
    const pairs = [...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key = "", value = ""]) => [key, value]);
    series.getOrInsertComputed(name, () => []).push(Object.fromEntries(pairs));
  }
  return series;
}

/** Labels that Prometheus adds to what it scrapes. */
const scrapeLabels = ["job", "instance"];
/** Prometheus' own series of a scrape. */
const scrapeSeries = ["up"];

interface Selector {
  readonly name: string;
  readonly matchers: readonly { readonly label: string; readonly operator: string; readonly value: string }[];
}

export interface Checked {
  /** What the query asks for that is not there; empty: it can be answered. */
  readonly problems: readonly string[];
  readonly selectors: readonly Selector[];
  /** Labels that its result has, as far as an aggregation says; undefined: those of its series. */
  readonly resultLabels: readonly string[] | undefined;
}

/** @param query with Grafana's variables */
export function checkQuery(query: string, series: Series): Checked {
  const text = query.replaceAll(/\$__(?:rate_interval|range|interval)/g, "5m");
  const textOf = (node: { readonly from: number; readonly to: number }): string => text.slice(node.from, node.to);
  const problems: string[] = [];
  const selectors: Selector[] = [];
  const grouped: string[][] = [];
  parser.parse(text).iterate({
    enter: ({ node }) => {
      if (node.type.isError) problems.push(`no PromQL at ${node.from}: ${textOf(node).slice(0, 40)}`);
      if (node.name === "VectorSelector") selectors.push(selectorOf(node, textOf));
      if (node.name === "GroupingLabels") grouped.push(node.getChildren("LabelName").map(textOf));
      if (node.name === "FunctionCall") problems.push(...quantileProblems(node, textOf));
    },
  });
  if (selectors.length === 0) problems.push("asks for no metric");
  for (const selector of selectors) problems.push(...selectorProblems(selector, series));
  const known = new Set(selectors.flatMap(({ name }) => labelsOf(name, series)));
  for (const label of grouped.flat()) if (!known.has(label)) problems.push(`no series has the label ${label}`);
  return { problems, selectors, resultLabels: grouped[0] };
}

function selectorOf(node: SyntaxNode, textOf: (node: SyntaxNode) => string): Selector {
  const name = node.getChild("Identifier");
  const matchers = node.getChild("LabelMatchers")?.getChildren("UnquotedLabelMatcher") ?? [];
  return {
    name: name === null ? "" : textOf(name),
    matchers: matchers.map((matcher) => {
      const [label, operator, value] = ["LabelName", "MatchOp", "StringLiteral"].map((kind) => matcher.getChild(kind));
      const string = value == null ? '""' : textOf(value);
      return {
        label: label == null ? "" : textOf(label),
        operator: operator == null ? "" : textOf(operator),
        value: string.slice(1, -1),
      };
    }),
  };
}

/** A quantile is computed from buckets, and only where their bounds are kept. */
function quantileProblems(node: SyntaxNode, textOf: (node: SyntaxNode) => string): string[] {
  const text = textOf(node);
  if (!text.startsWith("histogram_quantile")) return [];
  return /\bby \((?:\w+, )*le(?:, \w+)*\)/.test(text) && /_bucket\b/.test(text) ? [] : [`no buckets by le: ${text}`];
}

const labelsOf = (name: string, series: Series): readonly string[] => [
  ...scrapeLabels,
  ...(series.get(name) ?? []).flatMap((labels) => Object.keys(labels)),
];

function selectorProblems({ name, matchers }: Selector, series: Series): string[] {
  if (scrapeSeries.includes(name)) return [];
  const sets = series.get(name);
  if (sets === undefined) return [`no metric ${name}`];
  return matchers.flatMap(({ label, operator, value }) => {
    if (scrapeLabels.includes(label)) return [];
    const values = sets.flatMap((labels) => labels[label] ?? []);
    if (values.length === 0) return [`${name} has no label ${label}`];
    // A variable stands for any of the label's values.
    if (value.startsWith("$")) return [];
    if (operator === "=" && !values.includes(value)) return [`${name} has no ${label}="${value}"`];
    return [];
  });
}
