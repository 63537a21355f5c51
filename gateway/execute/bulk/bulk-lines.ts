/** Reads the body of a bulk request: JSON lines, one query each. An error in one line becomes that line's result. */

import { ApiError, toApiError } from "../../base/errors.ts";
import { yieldToOthers } from "../../base/pace.ts";
import { limits } from "../../config.ts";
import { QueryError } from "../../query/errors.ts";
import type { Query } from "../../query/ir.ts";
import { readJsonText } from "../../query/json-text.ts";
import { parseQuery } from "../../query/parse.ts";

export interface BulkLine {
  /** The client's id for this query, else the line's number, counted from 1. */
  readonly id: string;
  /** The query's place among the queries, counted from 0. */
  readonly index: number;
  /** Parses the query again at each call, since ten thousand trees take many times the memory of their text. */
  readonly query: (() => Query) | ApiError;
}

/** Milliseconds of parsing after which other requests may run. */
const sliceMs = 5;

/**
 * Reads all lines but blank ones.
 * @throws ApiError when the whole body is no bulk request: it has no line, too many lines, or an id twice
 */
export async function readBulkLines(text: string): Promise<readonly BulkLine[]> {
  const lines: BulkLine[] = [];
  const lineOfId = new Map<string, number>();
  let sliceEndMs = performance.now() + sliceMs;
  for (const [lineNumber, line] of linesOf(text)) {
    if (performance.now() >= sliceEndMs) {
      await yieldToOthers();
      sliceEndMs = performance.now() + sliceMs;
    }
    if (line.trim() === "") continue;
    if (lines.length === limits.bulkLines) {
      throw new ApiError("invalid_request", { message: `The body may have at most ${limits.bulkLines} queries.` });
    }
    const { id, query } = readLine(line, String(lineNumber));
    const earlier = lineOfId.get(id);
    if (earlier !== undefined) throw repeatedId(lineNumber, id, earlier);
    lineOfId.set(id, lineNumber);
    lines.push({ id, index: lines.length, query });
  }
  if (lines.length === 0) throw new ApiError("invalid_request", { message: "The body has no line with a query." });
  return lines;
}

/** Lines with their numbers, one at a time, so that a body of line breaks does not make a list of millions. */
function* linesOf(text: string): Generator<readonly [lineNumber: number, line: string]> {
  let start = 0;
  for (let lineNumber = 1; start <= text.length; lineNumber++) {
    const found = text.indexOf("\n", start);
    const end = found < 0 ? text.length : found;
    yield [lineNumber, text.slice(start, end)];
    start = end + 1;
  }
}

function repeatedId(lineNumber: number, id: string, earlier: number): ApiError {
  return new ApiError("invalid_value", {
    message: `Line ${lineNumber}: the id ${JSON.stringify(id)} is that of line ${earlier} already.`,
    param: `[${lineNumber}].id`,
  });
}

function readLine(line: string, lineNumber: string): Pick<BulkLine, "id" | "query"> {
  let id = lineNumber;
  try {
    const value = readJsonText(line);
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      throw new ApiError("invalid_value", { message: 'A line must be an object such as {"query": {"g": {…}}}.' });
    }
    const fields: Readonly<Record<string, unknown>> = { ...value };
    id = idOf(fields.id) ?? lineNumber;
    const unknown = Object.keys(fields).find((name) => name !== "id" && name !== "query");
    if (unknown !== undefined) throw new ApiError("unknown_field", fieldError(unknown, "is not known"));
    if (fields.query === undefined) throw new ApiError("missing_field", fieldError("query", "is missing"));
    parseQuery(fields.query);
    return { id, query: () => parseQuery((readJsonText(line) as { readonly query: unknown }).query) };
  } catch (error) {
    return { id, query: lineError(error) };
  }
}

function idOf(value: unknown): string | undefined {
  if (value === undefined) return undefined;
  const isId = typeof value === "string" && value !== "" && value.length <= limits.bulkIdChars;
  if (isId) return value;
  const rule = `must be a string of 1 to ${limits.bulkIdChars} characters`;
  throw new ApiError("invalid_value", fieldError("id", rule));
}

const fieldError = (field: string, what: string) => ({
  message: `'${field.slice(0, 64)}' ${what}.`,
  param: field.slice(0, 64),
});

function lineError(error: unknown): ApiError {
  if (!(error instanceof QueryError)) return toApiError(error);
  return new ApiError(error.code, { message: error.message, param: error.path });
}
