/**
 * Locks a data folder for one server. Two servers would run each other's jobs and remove each other's uploads as
 * orphans. The lock is the operating system's, so it ends with the process, however the process ends.
 */
import { Database } from "bun:sqlite";
import { chmodSync, closeSync, existsSync, mkdirSync, openSync, statSync } from "node:fs";
import { join } from "node:path";
import { DbError, sqliteCode } from "./errors.ts";

/**
 * Locks the folder. A missing folder is made, readable by its owner only. A folder that others may read is closed to
 * them, with everything in it.
 * @param onTightened called when the folder was open to others
 * @returns a function that unlocks the folder
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
    // Nothing is ever written to this database, so a full disk does not keep the server from starting.
    client.run("pragma journal_mode = memory");
    client.run("begin exclusive");
  } catch (error) {
    client?.close();
    const code = sqliteCode(error);
    if (code?.startsWith("SQLITE_BUSY")) {
      throw new DbError("busy", "data folder", `another server has ${dataDir}; name another folder with SPANGATE_DATA`);
    }
    const reason = code ?? (error as { code?: unknown }).code ?? "unknown failure";
    throw new DbError(
      "open",
      "data folder",
      `${dataDir} cannot be locked (${reason}); name another with SPANGATE_DATA`,
    );
  }
  const held = client;
  return () => held.close();
}

function makeFolder(dataDir: string): void {
  try {
    mkdirSync(dataDir, { recursive: true, mode: 0o700 });
  } catch (error) {
    const reason = (error as { code?: unknown }).code ?? "unknown failure";
    throw new DbError("open", "data folder", `${dataDir} cannot be made (${reason}); name another with SPANGATE_DATA`);
  }
}

/** The files that a server keeps in its folder. Other files there are not ours to change. */
const ownNames = [
  "spangate.db",
  "spangate.db-wal",
  "spangate.db-shm",
  "secret",
  "lock",
  "ballast",
  "files",
  "parts",
  "kv",
  "dev-access.json",
];
/** The mode bits for the group and others, and the bit that lets others write. */
const [sharedBits, othersWriteBit] = [0o077, 0o002];

/** @returns whether anything was open to others */
function tighten(dataDir: string): boolean {
  const paths = [dataDir, ...ownNames.map((name) => join(dataDir, name)).filter((path) => existsSync(path))];
  const open = paths.filter((path) => (statSync(path).mode & sharedBits) !== 0);
  for (const path of open) {
    const { mode } = statSync(path);
    const wish = "give this server's user a folder of its own, with mode 0700";
    const refuse = (reason: string): never => {
      throw new DbError("open", "data folder", `${path} is open to others (${reason}): ${wish}`);
    };
    // In a folder such as /tmp nobody knows who made what lies in it.
    if ((mode & othersWriteBit) !== 0) refuse("everybody may write to it");
    try {
      chmodSync(path, mode & 0o700);
    } catch (error) {
      refuse(String((error as { code?: unknown }).code ?? "unknown failure"));
    }
  }
  return open.length > 0;
}
