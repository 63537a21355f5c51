/** The data folder: made, this server's alone, and its database open. */
import { join } from "node:path";
import { lockFolder } from "../../db/lock.ts";
import { type Db, openDb } from "../../db/open.ts";
import type { Log } from "../base/log.ts";
import { Disk } from "./disk.ts";
import { LogTruncation } from "./log-truncation.ts";

export interface OpenData {
  readonly db: Db;
  readonly disk: Disk;
  readonly closeData: () => void;
}

const withoutVectors = "searches go by words alone: the extension sqlite-vec cannot be loaded into this SQLite";

/** @throws DbError in one sentence for the operator */
export function openData(dataDir: string, log: Log): OpenData {
  const unlockFolder = lockFolder(dataDir, () =>
    log("warn", "others of this machine could read the data folder: it is for its owner alone now", { dataDir }),
  );
  const disk = new Disk(dataDir, log);
  disk.start();
  const db = openDb(join(dataDir, "spangate.db"));
  db.relief = () => disk.release();
  if (db.vectorsMissing !== undefined) log("warn", withoutVectors, { reason: db.vectorsMissing });
  const truncation = new LogTruncation(db, log);
  const closeData = (): void => {
    truncation.stop();
    disk.stop();
    db.close();
    unlockFolder();
  };
  return { db, disk, closeData };
}
