/** Opens the data folder: makes it, locks it for this server alone, and opens its database. */
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

/** Milliseconds that searches are held up at first, and at most, when one that runs does not end. */
const [firstPauseMs, mostPauseMs] = [250, 16_000];
/** After a pause there is none for so many times its length. */
const restsOfPause = 10;

/**
 * Empties the database's write-ahead log. Deleted or overwritten text stays in the log until it is emptied, so that
 * happens shortly after any change. While another process reads the database, such as a backup, the log cannot be
 * emptied, and the next interval tries again. Searches read it too, and are held up for it.
 */
export class LogTruncation {
  readonly #db: Db;
  readonly #log: Log;
  readonly #timer: ReturnType<typeof setInterval>;
  /**
   * The database's change count when the log was last emptied; undefined: the log may hold changes of a stopped server.
   */
  #changes: number | undefined;
  /** How long the next pause of searches may last, and from when on. */
  #pauseMs = firstPauseMs;
  #nextPauseMs = 0;
  #isFailing = false;
  #isTrying = false;
  #isStopped = false;

  /** @param intervalMs milliseconds between two checks for changes */
  constructor(db: Db, log: Log, intervalMs = defaultIntervalMs) {
    this.#db = db;
    this.#log = log;
    this.#timer = setInterval(() => void this.#truncate(), intervalMs);
    this.#timer.unref();
  }

  stop(): void {
    this.#isStopped = true;
    clearInterval(this.#timer);
  }

  async #truncate(): Promise<void> {
    if (this.#isTrying) return;
    this.#isTrying = true;
    try {
      const changes = this.#db.changeCount();
      if (changes === this.#changes) return;
      if (this.#db.truncateLog()) this.#changes = changes;
      else {
        if (performance.now() < this.#nextPauseMs) return;
        const beganMs = performance.now();
        using paused = await this.#db.pauseReaders(this.#pauseMs);
        // Searches of all tenants wait for a pause, so one that others' searches make long is rare.
        this.#nextPauseMs = performance.now() + restsOfPause * (performance.now() - beganMs);
        this.#pauseMs = paused === undefined ? Math.min(2 * this.#pauseMs, mostPauseMs) : firstPauseMs;
        if (paused !== undefined && !this.#isStopped && this.#db.truncateLog()) this.#changes = changes;
      }
      this.#isFailing = false;
    } catch (error) {
      if (!(error instanceof DbError)) throw error;
      if (!this.#isFailing) this.#log("warn", "the database's log could not be emptied", { reason: error.message });
      this.#isFailing = true;
    } finally {
      this.#isTrying = false;
    }
  }
}
