/** Errors that say what is wrong with a query, and where. */
export type QueryErrorCode =
  | "invalid_json"
  | "invalid_value"
  | "missing_field"
  | "unknown_field"
  | "unsupported_field"
  | "nesting_too_deep";

/** Longest path that is shown, in characters: a path may contain a client's own long key. */
const maxPathChars = 512;

/** The message is written for the client: one sentence that names the path and contains no data of others. */
export class QueryError extends Error {
  override readonly name = "QueryError";
  readonly code: QueryErrorCode;
  /** Path from the root, as in `$.g.input.plus[2].g.max_tokens`. */
  readonly path: string;

  /** @param reason the rest of the message behind the path, without a full stop: "must be a string" */
  constructor(code: QueryErrorCode, path: string, reason: string) {
    const shown = path.length > maxPathChars ? `${path.slice(0, maxPathChars)}…` : path;
    super(`${shown}: ${reason}.`);
    this.code = code;
    this.path = shown;
  }
}
