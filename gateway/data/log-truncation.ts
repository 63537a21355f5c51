/**
 * Text that was deleted or overwritten stays in the database's log until that is emptied. It is, a moment after any
 * change, whoever made it; while another process reads the database, such as a backup, it is tried again.
 */
import { DbError } from "../../db/errors.ts";
import type { Db } from "../../db/open.ts";
import type { Log } from "../base/log.ts";

const defaultIntervalMs = 1_000;

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
