/**
 * Attribute filters of the OpenAI API: comparisons, joined by and/or. Each thread that searches loads this; it has
 * nothing to parse, and needs no schema.
 */
import type { Attributes, AttributeValue } from "../../../db/schema.ts";

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

/**
 * Whether a file's attributes match a filter. An absent attribute equals nothing and is neither greater nor less than
 * anything. Only two numbers or two strings can be ordered.
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
