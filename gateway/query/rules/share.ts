/** Equal work is done once: equal sets get equal keys, equal greedy runs become one. */
import type { Query } from "../ir.ts";
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
