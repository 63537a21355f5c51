/** The data folder: made, this server's alone, and its database open. */
import { join } from "node:path";
import { lockFolder } from "../db/lock.ts";
import { type Db, openDb } from "../db/open.ts";
import type { Log } from "./log.ts";

export interface OpenData {
  readonly db: Db;
  readonly closeData: () => void;
}

const withoutVectors = "searches go by words alone: the extension sqlite-vec cannot be loaded into this SQLite";

/** @throws DbError in one sentence for the operator */
export function openData(dataDir: string, log: Log): OpenData {
  const unlockFolder = lockFolder(dataDir);
  const db = openDb(join(dataDir, "spangate.db"));
  if (db.vectorsMissing !== undefined) log("warn", withoutVectors, { reason: db.vectorsMissing });
  const closeData = (): void => {
    db.close();
    unlockFolder();
  };
  return { db, closeData };
}
