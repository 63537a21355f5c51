/** Log lines about requests that failed. */
import { DbError } from "../../../db/errors.ts";
import type { ApiError } from "../../base/errors.ts";
import { type Log, placeOf } from "../../base/log.ts";

/** What went wrong inside, for the operator: the kind of error and where, not its message, which may hold a tenant's text. */
export function logFailure(log: Log, error: ApiError, requestId: string): void {
  const { cause } = error;
  const kind = cause instanceof Error ? cause.name : undefined;
  log(error.code === "internal" ? "error" : "warn", "request failed", {
    requestId,
    code: error.code,
    kind,
    // Names a statement and a code, never a value.
    reason: cause instanceof DbError ? cause.message : undefined,
    at: placeOf(cause),
  });
}
