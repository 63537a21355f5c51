/**
 * One server a data folder. Two would take up each other's jobs and remove each other's uploads as orphans. The lock
 * is the system's own, so it goes with the process however that ends.
 */
import { Database } from "bun:sqlite";
import { chmodSync, closeSync, existsSync, mkdirSync, openSync, statSync } from "node:fs";
import { join } from "node:path";
import { DbError, sqliteCode } from "./errors.ts";

/**
 * Makes the folder where there is none, for its owner alone. One that others may look into is closed to them, with all
 * that is in it.
 * @param onTightened called when it was open to others
 * @returns how to let go of the folder
 * @throws DbError "busy" when another server has it, "open" when it cannot be made, closed to others or locked
 */
export function lockFolder(dataDir: string, onTightened: () => void = () => undefined): () => void {
  makeFolder(dataDir);
  if (tighten(dataDir)) onTightened();
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

/** What a server keeps in its folder. Whatever else lies there is not ours to change. */
const ownNames = ["spangate.db", "spangate.db-wal", "spangate.db-shm", "secret", "lock", "ballast", "files", "parts"];
/** Bits of a mode that are the group's and others', and the one that lets others write. */
const [sharedBits, othersWriteBit] = [0o077, 0o002];

/** @returns whether anything was open to others */
function tighten(dataDir: string): boolean {
  const paths = [dataDir, ...ownNames.map((name) => join(dataDir, name)).filter((path) => existsSync(path))];
  const open = paths.filter((path) => (statSync(path).mode & sharedBits) !== 0);
  for (const path of open) {
    const { mode } = statSync(path);
    const wish = "give this server's user a folder of its own, with mode 0700";
    const refuse = (reason: string): never => {
      throw new DbError("open", "lockFolder", `${path} is open to others (${reason}): ${wish}`);
    };
    // Such as /tmp: who made what lies in it is not known.
    if ((mode & othersWriteBit) !== 0) refuse("everybody may write to it");
    try {
      chmodSync(path, mode & 0o700);
    } catch (error) {
      refuse(String((error as { code?: unknown }).code ?? "unknown failure"));
    }
  }
  return open.length > 0;
}
