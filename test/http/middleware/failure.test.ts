/** A log line of a failure tells what the database said, and nothing that a tenant wrote. */
import { expect, test } from "bun:test";
import { DbError } from "../../../db/errors.ts";
import { ApiError } from "../../../gateway/base/errors.ts";
import type { LogFields } from "../../../gateway/base/log.ts";
import { logFailure } from "../../../gateway/http/middleware/every-request.ts";

function logged(cause: unknown): LogFields | undefined {
  const lines: (LogFields | undefined)[] = [];
  logFailure((_level, _message, fields) => void lines.push(fields), new ApiError("internal", { cause }), "req_1");
  return lines[0];
}

test("the statement and SQLite's code", () => {
  expect(logged(new DbError("corrupt", "listFiles", "SQLITE_CORRUPT"))).toMatchObject({
    kind: "DbError",
    reason: "listFiles: SQLITE_CORRUPT",
  });
});

test("no other error's message", () => {
  const fields = logged(new TypeError("canary"));
  expect(fields).toMatchObject({ kind: "TypeError", reason: undefined });
  expect(JSON.stringify(fields)).not.toContain("canary");
});
