/** How attribute filters may look that come from outside. */
import { z } from "zod";
import { corpusLimits } from "../base/limits.ts";
import type { AttributeFilter } from "./attribute-filter.ts";

const key = z.string().min(1).max(corpusLimits.maxMetadataKeyChars);
const text = z.string().max(corpusLimits.maxMetadataValueChars);

const singleComparison = z.strictObject({
  type: z.enum(["eq", "ne", "gt", "gte", "lt", "lte"]),
  key,
  value: z.union([text, z.number(), z.boolean()]),
});
const setComparison = z.strictObject({
  type: z.enum(["in", "nin"]),
  key,
  value: z.array(z.union([text, z.number()])).max(corpusLimits.maxFilterValues),
});

const unknownType = "must be eq, ne, gt, gte, lt, lte, in, nin, and or or";

/** The schema of filters up to a depth. It names each level, so that no filter can exhaust the parser's stack. */
function filterSchema(depth: number): z.ZodType<AttributeFilter> {
  if (depth === 1) return z.discriminatedUnion("type", [singleComparison, setComparison], unknownType);
  const filters = z
    .array(filterSchema(depth - 1))
    .min(1)
    .max(corpusLimits.maxFilterNodes);
  const compound = z.strictObject({ type: z.enum(["and", "or"]), filters });
  return z.discriminatedUnion("type", [singleComparison, setComparison, compound], unknownType);
}

/** A filter's depth, its number of comparisons and its number of values are checked before the values themselves. */
export const attributeFilterSchema: z.ZodType<AttributeFilter> = z.preprocess((filter, context) => {
  const fault = new FilterSize().faultOf(filter, [], 1);
  if (fault === undefined) return filter;
  context.addIssue({ code: "custom", input: filter, ...fault });
  return z.NEVER;
}, filterSchema(corpusLimits.maxFilterDepth));

interface SizeFault {
  readonly path: (string | number)[];
  readonly message: string;
}

/** Measures a filter and stops at the bounds. The schema checks what the filter's parts are. */
class FilterSize {
  #parts = 0;
  #values = 0;

  faultOf(part: unknown, path: readonly (string | number)[], depth: number): SizeFault | undefined {
    const { maxFilterNodes, maxFilterDepth, maxFilterValues, maxFilterValuesInAll } = corpusLimits;
    this.#parts += 1;
    if (this.#parts > maxFilterNodes) return { path: [], message: `a filter can have at most ${maxFilterNodes} parts` };
    if (typeof part !== "object" || part === null) return undefined;
    if (depth > maxFilterDepth) return { path: [...path], message: `nested more than ${maxFilterDepth} deep` };
    const { value, filters } = part as { readonly value?: unknown; readonly filters?: unknown };
    if (Array.isArray(value)) {
      this.#values += value.length;
      const most = (count: string) => ({ path: [...path, "value"], message: `a filter can have at most ${count}` });
      if (value.length > maxFilterValues) return most(`${maxFilterValues} values in a list`);
      if (this.#values > maxFilterValuesInAll) return most(`${maxFilterValuesInAll} values in all its lists`);
    }
    if (!Array.isArray(filters)) return undefined;
    for (const [index, inner] of filters.entries()) {
      const fault = this.faultOf(inner, [...path, "filters", index], depth + 1);
      if (fault !== undefined) return fault;
    }
    return undefined;
  }
}
