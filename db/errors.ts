/**
 * An error holds only what a failed statement may reveal: its name and SQLite's result code. It never holds the
 * parameters, which are key hashes and tenants' text (Drizzle's own error puts them into its message).
 */
export type DbErrorCode = "full" | "busy" | "io" | "constraint" | "corrupt" | "migration" | "open" | "internal";

export class DbError extends Error {
  override readonly name = "DbError";
  readonly code: DbErrorCode;

  /** @param statement name of the statement or transaction that failed */
  constructor(code: DbErrorCode, statement: string, detail: string) {
    super(`${statement}: ${detail}`);
    this.code = code;
  }
}

const codesByPrefix: readonly (readonly [prefix: string, code: DbErrorCode])[] = [
  ["SQLITE_FULL", "full"],
  ["SQLITE_BUSY", "busy"],
  ["SQLITE_LOCKED", "busy"],
  ["SQLITE_IOERR", "io"],
  ["SQLITE_CANTOPEN", "io"],
  ["SQLITE_READONLY", "io"],
  ["SQLITE_CONSTRAINT", "constraint"],
  ["SQLITE_CORRUPT", "corrupt"],
  ["SQLITE_NOTADB", "corrupt"],
];

/** SQLite's result code of a thrown value or of its cause; undefined when it is no SQLite error. */
export function sqliteCode(thrown: unknown): string | undefined {
  for (let error: unknown = thrown; error instanceof Error; error = error.cause) {
    const code = (error as { code?: unknown }).code;
    if (typeof code === "string" && code.startsWith("SQLITE_")) return code;
  }
  return undefined;
}

/**
 * Turns a thrown value into a DbError. An error that does not come from SQLite is a defect of ours; only its class name
 * is kept.
 */
export function toDbError(statement: string, thrown: unknown): DbError {
  if (thrown instanceof DbError) return thrown;
  const code = sqliteCode(thrown);
  if (code === undefined) {
    const kind = thrown instanceof Error ? thrown.constructor.name : typeof thrown;
    return new DbError("internal", statement, `failed with ${kind}`);
  }
  const found = codesByPrefix.find(([prefix]) => code.startsWith(prefix));
  return new DbError(found?.[1] ?? "internal", statement, code);
}
