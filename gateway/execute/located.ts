/** Adds to an error the path of the node that it comes from. */
import { ApiError } from "../base/errors.ts";

/** The error with the node's path as its param. An error that names a place in the query already stays as it is. */
export function atPath(thrown: unknown, path: string): unknown {
  if (!(thrown instanceof ApiError)) return thrown;
  const { code, message, param, retryAfterS } = thrown;
  if (param?.startsWith("$") === true) return thrown;
  return new ApiError(code, { message: `${path}: ${message}`, param: path, retryAfterS, cause: thrown.cause });
}
