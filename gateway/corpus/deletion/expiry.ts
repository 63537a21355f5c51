/**
 * Ends files and corpora whose time has come. When that is stands in the database, so a start goes on where a stopped
 * server was. What has ended is deleted as if somebody had asked for it: the sweep removes text, index, bytes and KV.
 */
import { nextCorpusEnd } from "../../../db/corpora.ts";
import { nextFileEnd } from "../../../db/files.ts";
import type { Db } from "../../../db/open.ts";
import { BackgroundLoop } from "../../background/background-loop.ts";
import type { Log } from "../../base/log.ts";
import { yieldToOthers } from "../../base/pace.ts";
import type { CorpusService } from "../base/corpora.ts";
import type { FileService } from "../files/files.ts";

/** Objects that are ended before other work has its turn: each takes a transaction. */
const endedPerPiece = 8;
/** The longest time in milliseconds that a timer takes. */
const maxTimerMs = 2 ** 31 - 1;

export interface ExpiryDeps {
  readonly db: Db;
  readonly files: Pick<FileService, "expireDue">;
  readonly corpora: Pick<CorpusService, "expireDue">;
  readonly log: Log;
}

export class Expiry {
  readonly #deps: ExpiryDeps;
  readonly #loop: BackgroundLoop;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(deps: ExpiryDeps) {
    this.#deps = deps;
    this.#loop = new BackgroundLoop("expiry", deps.log, (signal) =>
      this.#endDue(signal).catch((error: unknown) => {
        deps.db.relieve(error);
        throw error;
      }),
    );
  }

  /** Call at the start, and when something was given an end. */
  wake(): void {
    this.#loop.wake();
  }

  idle(): Promise<void> {
    return this.#loop.idle();
  }

  async stop(): Promise<void> {
    await this.#loop.stop();
    clearTimeout(this.#timer);
  }

  async #endDue(signal: AbortSignal): Promise<void> {
    const { db, files, corpora } = this.#deps;
    while (!signal.aborted && files.expireDue(endedPerPiece) + corpora.expireDue(endedPerPiece) > 0) {
      await yieldToOthers();
    }
    clearTimeout(this.#timer);
    const next = Math.min(nextFileEnd(db) ?? Number.POSITIVE_INFINITY, nextCorpusEnd(db) ?? Number.POSITIVE_INFINITY);
    if (next === Number.POSITIVE_INFINITY || signal.aborted) return;
    this.#timer = setTimeout(() => this.#loop.wake(), Math.min(maxTimerMs, Math.max(1, next - Date.now())));
    this.#timer.unref();
  }
}
