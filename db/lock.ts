/**
 * One server a data folder. Two would take up each other's jobs and remove each other's uploads as orphans. The lock
 * is the system's own, so it goes with the process however that ends.
 */
import { Database } from "bun:sqlite";
import { closeSync, mkdirSync, openSync } from "node:fs";
import { join } from "node:path";
import { DbError, sqliteCode } from "./errors.ts";

/**
 * Makes the folder where there is none, for its owner alone.
 * @returns how to let go of the folder
 * @throws DbError "busy" when another server has it, "open" when it cannot be made or locked
 */
export function lockFolder(dataDir: string): () => void {
  makeFolder(dataDir);
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
    const reason = code ?? (error as { code?: unknown }).code ?? "unknown failure";
    throw new DbError("open", "lockFolder", `cannot lock the data folder ${dataDir} (${reason}); set SPANGATE_DATA`);
  }
  const held = client;
  return () => held.close();
}

function makeFolder(dataDir: string): void {
  try {
    mkdirSync(dataDir, { recursive: true, mode: 0o700 });
  } catch (error) {
    const reason = (error as { code?: unknown }).code ?? "unknown failure";
    throw new DbError("open", "lockFolder", `cannot make the data folder ${dataDir} (${reason}); set SPANGATE_DATA`);
  }
}
