/** A retrieve's filters: what they mean is the corpus side's; here they become plain JSON of bounded size. */
import { describe, isObject, listOf, refuse, step, stringOf } from "./check.ts";
import type { JsonObject, JsonValue } from "./json.ts";
import { queryLimits as limits } from "./limits.ts";

export function copyFilters(value: unknown, path: string): JsonObject {
  if (!isObject(value)) return refuse(path, `must be an object, not ${describe(value)}`);
  let values = 0;
  const copy = (part: unknown, at: string, depth: number): JsonValue => {
    values += 1;
    if (values > limits.filterValues) refuse(path, `has more than ${limits.filterValues} values`);
    if (depth > limits.filterDepth) refuse(at, `is nested more than ${limits.filterDepth} deep`, "nesting_too_deep");
    if (part === null || typeof part === "boolean") return part;
    if (typeof part === "number" && Number.isFinite(part)) return part + 0;
    if (typeof part === "string") return stringOf(part, at, { min: 0, max: limits.filterChars });
    if (Array.isArray(part)) {
      return listOf(part, at, { min: 0, max: limits.filterValues }).map((entry, i) =>
        copy(entry, `${at}[${i}]`, depth + 1),
      );
    }
    if (!isObject(part)) return refuse(at, `must be JSON, not ${describe(part)}`);
    const entries = Object.keys(part).map((key) => [key, copyField(part, key, at, depth)] as const);
    return Object.fromEntries(entries);
  };
  const copyField = (part: Readonly<Record<string, unknown>>, key: string, at: string, depth: number): JsonValue => {
    const path = at + step(key);
    // As a field it would be a prototype in careless hands.
    if (key === "__proto__") refuse(path, "is no name of a field", "unknown_field");
    stringOf(key, path, { min: 0, max: limits.filterChars });
    return copy(part[key], path, depth + 1);
  };
  return copy(value, path, 1) as JsonObject;
}
