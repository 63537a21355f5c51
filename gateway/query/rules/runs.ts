/** Rules on runs: equal sets get equal keys, equal greedy runs become one, a query of similar runs becomes a map. */
import type { Generate, Plus, Query } from "../ir.ts";
import { printOptions } from "../print.ts";
import { type Rule, ruleOn } from "./rule.ts";

/**
 * The chain behind a plus folds the keys of its spans in order. With one order for each set, a question that is asked
 * again over the same fragments is found in the cache to its end. The nodes are ordered by their digests; the order has
 * no meaning, it only has to be the same each time. Outside prompts the order is that of the answers, so it stays.
 */
const canonicalOrder = ruleOn(
  ["plus"],
  "canonical-order",
  "plus[b, a] -> plus[a, b], inside a prompt",
  (plus, { place, keyOf }) => {
    if (place !== "prompt" || plus.children.length < 2) return undefined;
    const keys = new Map(plus.children.map((child) => [child, keyOf(child)]));
    const keyAt = (child: Query) => keys.get(child) ?? "";
    const isSorted = plus.children.every((child, index) => {
      const previous = plus.children[index - 1];
      return previous === undefined || keyAt(previous) <= keyAt(child);
    });
    if (isSorted) return undefined;
    const order = (a: Query, b: Query) => (keyAt(a) < keyAt(b) ? -1 : keyAt(a) > keyAt(b) ? 1 : 0);
    return { ...plus, children: plus.children.toSorted(order) };
  },
);

/** Runs that draw a sample anywhere inside are not merged: two samples are two, even where the runs are equal. */
const mergeGreedy = ruleOn(
  ["generate", "repeat"],
  "merge-greedy",
  "g(x), g(x) -> one object, at temperature 0",
  (run, { isGreedy, representative }) => {
    if (!isGreedy(run)) return undefined;
    const first = representative(run);
    return first === run ? undefined : first;
  },
);

export const shareRules: readonly Rule[] = [canonicalOrder, mergeGreedy];

/**
 * Every child must be a run of its own over one user message, with the same options as the others. A generate that
 * stands twice is one run that is shown twice, which a map cannot express.
 */
const plusToMap = ruleOn(
  ["plus"],
  "plus-to-map",
  "plus[g(user s)…] -> map[s…], as the whole query",
  (plus, { place, bulkMap }) => {
    if (place !== "root" || !bulkMap) return undefined;
    const generates = plainGenerates(plus);
    const [first] = generates;
    if (first === undefined || new Set(generates).size < Math.max(2, plus.children.length)) return undefined;
    const wanted = JSON.stringify(printOptions(first.options));
    if (generates.some(({ options }) => JSON.stringify(printOptions(options)) !== wanted)) return undefined;
    return { kind: "map", options: first.options, inputs: generates.map(({ input }) => userText(input) ?? "") };
  },
);

/** The children of a plus, if all are generates of this form; else none. */
function plainGenerates({ children, preamble }: Plus): readonly Generate[] {
  const generates = children.filter((child) => child.kind === "generate");
  const isPlain = generates.length === children.length && generates.every(({ input }) => userText(input) !== undefined);
  return isPlain && preamble === undefined ? generates : [];
}

const userText = (input: Query) => (input.kind === "message" && input.role === "user" ? input.text : undefined);

export const bulkRules: readonly Rule[] = [plusToMap];
