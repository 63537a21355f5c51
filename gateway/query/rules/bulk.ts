/** What the answer of a whole query looks like. */
import type { Generate, Plus, Query } from "../ir.ts";
import { printOptions } from "../print.ts";
import { type Rule, ruleOn } from "./rule.ts";

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
