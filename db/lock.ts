/**
 * One server a data folder. Two would take up each other's jobs and remove each other's uploads as orphans. The lock
 * is the system's own, so it goes with the process however that ends.
 */
import { Database } from "bun:sqlite";
import { closeSync, openSync } from "node:fs";
import { join } from "node:path";
import { DbError, sqliteCode } from "./errors.ts";

/**
 * @returns how to let go of the folder
 * @throws DbError "busy" when another server has it, "open" when it cannot be locked
 */
export function lockFolder(dataDir: string): () => void {
  const path = join(dataDir, "lock");
  let client: Database | undefined;
  try {
    closeSync(openSync(path, "a", 0o600));
    client = new Database(path);
    // Nothing is ever written, so that a full disk does not keep the server from starting.
    client.run("pragma journal_mode = memory");
    client.run("begin exclusive");
  } catch (error) {
    client?.close();
    const code = sqliteCode(error);
    if (code?.startsWith("SQLITE_BUSY")) {
      throw new DbError("busy", "lockFolder", `another server has the data folder ${dataDir}; set SPANGATE_DATA`);
    }
    const detail = code ?? (error instanceof Error ? error.message : "unknown failure");
    throw new DbError("open", "lockFolder", `cannot lock the data folder ${dataDir}: ${detail}`);
  }
  const held = client;
  return () => held.close();
}
