/**
 * Background work that is done when it is woken, and by itself when the next of its objects is due. When that is stands
 * in the database, so a start goes on where a stopped server was.
 */
import type { Db } from "../../db/open.ts";
import type { Log } from "../base/log.ts";
import { BackgroundLoop } from "./background-loop.ts";

/** The longest time in milliseconds that a timer takes. */
const maxTimerMs = 2 ** 31 - 1;
/** The pause in milliseconds before an object is looked at again that is due and still in use. */
const minTimerMs = 50;

export interface DueLoopOptions {
  /** The name that the log shows. */
  readonly name: string;
  readonly log: Log;
  readonly db: Pick<Db, "relieve">;
  readonly nowMs: () => number;
  /** Does all there is to do by now. @returns when the next object is due, by `nowMs`; undefined: none will be */
  readonly work: (signal: AbortSignal) => Promise<number | undefined>;
}

export class DueLoop {
  readonly #options: DueLoopOptions;
  readonly #loop: BackgroundLoop;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(options: DueLoopOptions) {
    this.#options = options;
    this.#loop = new BackgroundLoop(options.name, options.log, (signal) => this.#run(signal));
  }

  /** Call at the start, and when something may be due earlier than was known. */
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

  async #run(signal: AbortSignal): Promise<void> {
    const { db, nowMs, work } = this.#options;
    try {
      const next = await work(signal);
      clearTimeout(this.#timer);
      if (next === undefined || signal.aborted) return;
      const waitMs = Math.min(maxTimerMs, Math.max(minTimerMs, next - nowMs()));
      this.#timer = setTimeout(() => this.wake(), waitMs);
      this.#timer.unref();
    } catch (error) {
      // A full disk may have room that is kept for this; the work is tried again in any case.
      db.relieve(error);
      throw error;
    }
  }
}
