/** What is wrong with a query, and where. */
export type QueryErrorCode =
  | "invalid_json"
  | "invalid_value"
  | "missing_field"
  | "unknown_field"
  | "unsupported_field"
  | "nesting_too_deep";

/** The longest path that is shown: a caller's own key may be very long. */
const maxPathChars = 512;

/** Its message is written for the client: one sentence that names the path, free of what others own. */
export class QueryError extends Error {
  override readonly name = "QueryError";
  readonly code: QueryErrorCode;
  /** From the root, as in `$.g.input.plus[2].g.max_tokens`. */
  readonly path: string;

  /** @param reason what follows the path in the message, without a full stop: "must be a string" */
  constructor(code: QueryErrorCode, path: string, reason: string) {
    const shown = path.length > maxPathChars ? `${path.slice(0, maxPathChars)}…` : path;
    super(`${shown}: ${reason}.`);
    this.code = code;
    this.path = shown;
  }
}
