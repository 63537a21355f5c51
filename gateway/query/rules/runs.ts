/** Rules on runs: equal sets get equal keys, equal greedy runs become one, a whole query of like runs becomes a map. */
import type { Generate, Plus, Query } from "../ir.ts";
import { printOptions } from "../print.ts";
import { type Rule, ruleOn } from "./rule.ts";

/**
 * The chain behind a plus folds its spans' keys in order: with one order for each set, a question asked again over
 * the same fragments is a hit to its end. The order is that of the digests: it needs no meaning, only to be the same.
 * Outside prompts the order is that of the answers, and stays.
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

/** Not when a sample is drawn anywhere inside: equal in structure, two samples are still two. */
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
 * Each a run of its own over one user message, all with the same options. A generate that stands twice is one run
 * shown twice, which a map cannot say.
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

/** None when any child is something else. */
function plainGenerates({ children, preamble }: Plus): readonly Generate[] {
  const generates = children.filter((child) => child.kind === "generate");
  const isPlain = generates.length === children.length && generates.every(({ input }) => userText(input) !== undefined);
  return isPlain && preamble === undefined ? generates : [];
}

const userText = (input: Query) => (input.kind === "message" && input.role === "user" ? input.text : undefined);

export const bulkRules: readonly Rule[] = [plusToMap];
