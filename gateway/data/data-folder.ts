/** Opens the data folder: makes it, locks it for this server alone, and opens its database. */
import { join } from "node:path";
import { DbError } from "../../db/errors.ts";
import { lockFolder } from "../../db/lock.ts";
import { type copyLog, type Db, openDb } from "../../db/open.ts";
import { programPath } from "../../places/places.ts";
import { messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { holdBackgroundWork } from "../base/pace.ts";
import { ThreadPool } from "../threads/pool.ts";
import { Disk } from "./disk.ts";

export interface OpenData {
  readonly db: Db;
  readonly disk: Disk;
  /** It is closed when this returns, unless the log is being copied at that moment. */
  readonly closeData: () => Promise<void>;
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
  const threads = new ThreadPool<LogTasks>(threadOptions);
  const copyLog = () => threads.run("copyLog", db.client.filename, copyRun);
  const truncation = new LogTruncation({ db, log, copyLog });
  db.emptyLog = () => truncation.empty();
  const close = (): void => {
    void threads.stop();
    disk.stop();
    db.close();
    unlockFolder();
  };
  const closeData = async (): Promise<void> => {
    const copied = truncation.stop();
    if (copied !== undefined) await copied;
    close();
  };
  return { db, disk, closeData };
}

/** What log-thread.ts serves. */
type LogTasks = { readonly copyLog: typeof copyLog };

const threadOptions = {
  ...{ program: programPath("log-thread"), maxThreads: 1, waitingPerTenant: 1, waiting: 1 },
  ...{ maxHeapBytes: 32 * 2 ** 20, idleMs: 30_000 },
};
/** It is done for nobody. A disk that syncs no file within a minute holds up more than this. */
const copyRun = { tenantId: "", maxMs: 60_000 };

/** Short, so that the log stays small: emptying it, and syncing it before a change is acknowledged, take longer the larger it is. */
const defaultIntervalMs = 200;
/** The most milliseconds that background work waits while what it wrote last is copied. */
const mostHoldMs = 1_000;
/** How often in a row the log is left as it is because something was written while it was copied. */
const mostDelays = 4;

/** Milliseconds that searches are held up at first, and at most, when one that runs does not end. */
const [firstPauseMs, mostPauseMs] = [250, 16_000];
/** After a pause there is none for so many times its length. */
const restsOfPause = 10;

export interface LogTruncationDeps {
  readonly db: Db;
  readonly log: Log;
  /** Copies the log into the database in another thread. */
  readonly copyLog: () => Promise<void>;
  /** Milliseconds between two checks for changes. */
  readonly intervalMs?: number;
}

/**
 * Empties the database's write-ahead log. Deleted or overwritten text stays in the log until it is emptied, so that
 * happens shortly after any change. While another process reads the database, such as a backup, the log cannot be
 * emptied, and the next interval tries again. Searches read it too, and are held up for it.
 *
 * A thread copies the log first. Copying syncs two files, which takes as long as the disk does with all that others have
 * written, up to some hundred milliseconds; where nothing was written meanwhile, the event loop syncs nothing. Ingestion
 * and the like write all the time, so they wait while the thread copies the little that they wrote during its first copy.
 */
export class LogTruncation {
  readonly #db: Db;
  readonly #log: Log;
  readonly #copyLog: () => Promise<void>;
  readonly #timer: ReturnType<typeof setInterval>;
  /**
   * The database's change count when the log was last emptied; undefined: the log may hold changes of a stopped server.
   */
  #changes: number | undefined;
  /** How long the next pause of searches may last, and from when on. */
  #pauseMs = firstPauseMs;
  #nextPauseMs = 0;
  #isFailing = false;
  /** The attempt that is being made. */
  #attempt: Promise<void> | undefined;
  #isStopped = false;
  /** How often in a row something was written while the log was copied. */
  #delays = 0;

  constructor({ db, log, copyLog, intervalMs = defaultIntervalMs }: LogTruncationDeps) {
    this.#db = db;
    this.#log = log;
    this.#copyLog = copyLog;
    this.#timer = setInterval(() => this.#try(), intervalMs);
    this.#timer.unref();
  }

  /** Does not wait for the next interval. Resolves when it was tried. */
  async empty(): Promise<void> {
    await this.#attempt;
    this.#try();
    await this.#attempt;
  }

  /** @returns when the attempt that is being made has ended; undefined: there is none */
  stop(): Promise<void> | undefined {
    this.#isStopped = true;
    clearInterval(this.#timer);
    return this.#attempt;
  }

  #try(): void {
    if (this.#attempt !== undefined || this.#db.changeCount() === this.#changes) return;
    this.#attempt = this.#truncate().finally(() => {
      this.#attempt = undefined;
    });
  }

  async #truncate(): Promise<void> {
    try {
      const changes = await this.#copied();
      if (changes === undefined) return;
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
    }
  }

  /** @returns the change count now that the log is copied; undefined: it is better emptied some other time */
  async #copied(): Promise<number | undefined> {
    let isWhole = await this.#copyAll();
    if (!isWhole && !this.#isStopped) {
      using _hold = holdBackgroundWork(mostHoldMs);
      isWhole = await this.#copyAll();
    }
    if (this.#isStopped) return undefined;
    this.#delays = isWhole || this.#delays === mostDelays ? 0 : this.#delays + 1;
    if (this.#delays > 0) return undefined;
    return this.#db.changeCount();
  }

  /** @returns whether nothing was written while the log was copied */
  async #copyAll(): Promise<boolean> {
    const before = this.#db.changeCount();
    // Without the thread all is done on the event loop.
    await this.#copyLog().catch((error: unknown) => {
      if (!this.#isStopped) this.#log("warn", "the database's log could not be copied", { reason: messageOf(error) });
    });
    return !this.#isStopped && this.#db.changeCount() === before;
  }
}
