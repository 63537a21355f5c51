import { QueryError } from "./errors.ts";
import type { Query } from "./ir.ts";

/** @param value JSON, parsed. @throws QueryError */
export function parseQuery(value: unknown): Query {
  throw new QueryError("invalid_value", "$", `cannot be read: ${typeof value}`);
}

/** @throws QueryError */
export function parseQueryText(text: string, format: "json" | "yaml"): Query {
  return parseQuery(format === "json" ? JSON.parse(text) : Bun.YAML.parse(text));
}
