/** Attribute filters as the OpenAI API has them: comparisons, joined by and/or. */
import { z } from "zod";
import type { Attributes, AttributeValue } from "../../db/schema.ts";
import { corpusLimits } from "./limits.ts";

export interface ComparisonFilter {
  readonly type: "eq" | "ne" | "gt" | "gte" | "lt" | "lte" | "in" | "nin";
  readonly key: string;
  readonly value: AttributeValue | readonly (string | number)[];
}

export interface CompoundFilter {
  readonly type: "and" | "or";
  readonly filters: readonly AttributeFilter[];
}

export type AttributeFilter = ComparisonFilter | CompoundFilter;

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

/** Levels are spelled out, so that a filter of any depth cannot exhaust the parser's stack. */
function filterSchema(depth: number): z.ZodType<AttributeFilter> {
  if (depth === 1) return z.discriminatedUnion("type", [singleComparison, setComparison], unknownType);
  const compound = z.strictObject({
    type: z.enum(["and", "or"]),
    filters: z
      .array(filterSchema(depth - 1))
      .min(1)
      .max(corpusLimits.maxFilterNodes),
  });
  return z.discriminatedUnion("type", [singleComparison, setComparison, compound], unknownType);
}

/** Bounded in depth and in the number of comparisons. */
export const attributeFilterSchema = filterSchema(corpusLimits.maxFilterDepth).refine(
  (filter) => nodeCount(filter) <= corpusLimits.maxFilterNodes,
  { message: `a filter can have at most ${corpusLimits.maxFilterNodes} parts` },
);

function nodeCount(filter: AttributeFilter): number {
  return "filters" in filter ? filter.filters.reduce((sum, inner) => sum + nodeCount(inner), 1) : 1;
}

/**
 * Whether a file's attributes pass. An attribute that is absent equals nothing and orders with nothing; order
 * is between numbers or between strings only.
 */
export function passesFilter(filter: AttributeFilter, attributes: Attributes): boolean {
  if ("filters" in filter) {
    const passes = (inner: AttributeFilter) => passesFilter(inner, attributes);
    return filter.type === "and" ? filter.filters.every(passes) : filter.filters.some(passes);
  }
  const actual = Object.hasOwn(attributes, filter.key) ? attributes[filter.key] : undefined;
  const { value } = filter;
  switch (filter.type) {
    case "eq":
      return actual === value;
    case "ne":
      return actual !== value;
    case "in":
      return Array.isArray(value) && value.some((one) => one === actual);
    case "nin":
      return Array.isArray(value) && value.every((one) => one !== actual);
    case "gt":
    case "gte":
    case "lt":
    case "lte":
      return passesOrder(filter.type, actual, value);
  }
}

function passesOrder(type: "gt" | "gte" | "lt" | "lte", actual: unknown, value: unknown): boolean {
  const comparable =
    (typeof actual === "number" && typeof value === "number") ||
    (typeof actual === "string" && typeof value === "string");
  if (!comparable) return false;
  if (actual === value) return type === "gte" || type === "lte";
  return actual > value === (type === "gt" || type === "gte");
}
