/** Reads the body of a bulk request: JSON lines, one query each. An error in one line becomes that line's result. */

import { ApiError, toApiError } from "../../base/errors.ts";
import { memoryRoom, Pace } from "../../base/pace.ts";
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
  readonly query: Query | ApiError;
}

/** The queries of a body. Each is read when it is asked for: ten thousand trees take many times the memory of their text. */
export class BulkLines {
  readonly #lines: string[] = [];
  /** Each query's line number in the body. */
  readonly #lineNumbers: number[] = [];

  get length(): number {
    return this.#lines.length;
  }

  add(line: string, lineNumber: number): void {
    this.#lines.push(line);
    this.#lineNumbers.push(lineNumber);
  }

  /** @throws RangeError when there is no such query */
  at(index: number): BulkLine {
    const line = this.#lines[index];
    if (line === undefined) throw new RangeError(`no query ${index}`);
    return { index, ...readLine(line, String(this.#lineNumbers[index])) };
  }
}

/**
 * Finds the lines with a query: all but blank ones. What is wrong with one of them is found when it is read.
 * @param pieces of the body's text, cut anywhere: a body has 16 MiB, which are not copied into one text
 * @throws ApiError when the whole body is no bulk request: it has no line, too many lines, or an id twice
 */
export async function findBulkLines(pieces: readonly string[], signal: AbortSignal): Promise<BulkLines> {
  const lines = new BulkLines();
  const lineOfId = new Map<string, number>();
  const pace = new Pace();
  let lineNumber = 0;
  for (const line of linesOf(pieces)) {
    if (await pace.breathe()) await memoryRoom(signal);
    if (signal.aborted) throw signal.reason;
    lineNumber += 1;
    if (line.trim() === "") continue;
    if (lines.length === limits.bulkLines) {
      throw new ApiError("invalid_request", { message: `The body may have at most ${limits.bulkLines} queries.` });
    }
    const id = idOfLine(line, String(lineNumber));
    const earlier = lineOfId.get(id);
    if (earlier !== undefined) throw repeatedId(lineNumber, id, earlier);
    lineOfId.set(id, lineNumber);
    lines.add(line, lineNumber);
  }
  if (lines.length === 0) throw new ApiError("invalid_request", { message: "The body has no line with a query." });
  return lines;
}

/** The text between line breaks. A line within a piece shares its memory. */
function* linesOf(pieces: readonly string[]): Generator<string> {
  let parts: string[] = [];
  for (const piece of pieces) {
    let start = 0;
    for (let end = piece.indexOf("\n"); end >= 0; end = piece.indexOf("\n", start)) {
      parts.push(piece.slice(start, end));
      yield parts.join("");
      parts = [];
      start = end + 1;
    }
    parts.push(piece.slice(start));
  }
  yield parts.join("");
}

function repeatedId(lineNumber: number, id: string, earlier: number): ApiError {
  return new ApiError("invalid_value", {
    message: `Line ${lineNumber}: the id ${JSON.stringify(id)} is that of line ${earlier} already.`,
    param: `[${lineNumber}].id`,
  });
}

/** The id by which the line's result is asked for, also when the line is wrong. */
function idOfLine(line: string, lineNumber: string): string {
  try {
    return idOf(fieldsOf(line).id) ?? lineNumber;
  } catch {
    return lineNumber;
  }
}

function readLine(line: string, lineNumber: string): Pick<BulkLine, "id" | "query"> {
  let id = lineNumber;
  try {
    const fields = fieldsOf(line);
    id = idOf(fields.id) ?? lineNumber;
    const unknown = Object.keys(fields).find((name) => name !== "id" && name !== "query");
    if (unknown !== undefined) throw new ApiError("unknown_field", fieldError(unknown, "is not known"));
    if (fields.query === undefined) throw new ApiError("missing_field", fieldError("query", "is missing"));
    return { id, query: parseQuery(fields.query) };
  } catch (error) {
    return { id, query: lineError(error) };
  }
}

function fieldsOf(line: string): Readonly<Record<string, unknown>> {
  const value = readJsonText(line);
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return { ...value };
  throw new ApiError("invalid_value", { message: 'A line must be an object such as {"query": {"g": {…}}}.' });
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
