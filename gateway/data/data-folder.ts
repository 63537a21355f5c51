/** The data folder: made, this server's alone, and its database open. */
import { join } from "node:path";
import { DbError } from "../../db/errors.ts";
import { lockFolder } from "../../db/lock.ts";
import { type Db, openDb } from "../../db/open.ts";
import type { Log } from "../base/log.ts";
import { Disk } from "./disk.ts";

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

const defaultIntervalMs = 1_000;

/**
 * Empties the database's write-ahead log. Text that was deleted or overwritten stays in the log until then, so it is
 * emptied a moment after any change, whoever made the change. While another process reads the database, such as a
 * backup, the log cannot be emptied, and this tries again later.
 */
export class LogTruncation {
  readonly #db: Db;
  readonly #log: Log;
  readonly #timer: ReturnType<typeof setInterval>;
  /** What the log that was last emptied held; undefined: what a stopped server left is in it. */
  #changes: number | undefined;
  #isFailing = false;

  /** @param intervalMs between two looks at whether anything was changed */
  constructor(db: Db, log: Log, intervalMs = defaultIntervalMs) {
    this.#db = db;
    this.#log = log;
    this.#timer = setInterval(() => this.#truncate(), intervalMs);
    this.#timer.unref();
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  #truncate(): void {
    try {
      const changes = this.#db.changeCount();
      if (changes === this.#changes) return;
      if (this.#db.truncateLog()) this.#changes = changes;
      this.#isFailing = false;
    } catch (error) {
      if (!(error instanceof DbError)) throw error;
      if (!this.#isFailing) this.#log("warn", "the database's log could not be emptied", { reason: error.message });
      this.#isFailing = true;
    }
  }
}
