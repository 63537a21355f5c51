/** Background work that runs when it is woken, until nothing is left. One run happens at a time. */
import { DbError } from "../../db/errors.ts";
import { ApiError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { delay } from "../base/pace.ts";

const firstRetryDelayMs = 500;
const maxRetryDelayMs = 30_000;

export class BackgroundLoop {
  readonly #name: string;
  readonly #log: Log;
  readonly #work: (signal: AbortSignal) => Promise<void>;
  readonly #stop = new AbortController();
  #woken = false;
  #running: Promise<void> | undefined;

  /** @param work does all there is to do; when it throws, it is called again a little later */
  constructor(name: string, log: Log, work: (signal: AbortSignal) => Promise<void>) {
    this.#name = name;
    this.#log = log;
    this.#work = work;
  }

  wake(): void {
    this.#woken = true;
    if (this.#stop.signal.aborted) return;
    this.#running ??= this.#run();
  }

  get isIdle(): boolean {
    return this.#running === undefined;
  }

  /** Resolves when nothing is left to do, or after `stop`. */
  async idle(): Promise<void> {
    while (this.#running !== undefined) await this.#running;
  }

  async stop(): Promise<void> {
    this.#stop.abort();
    await this.idle();
  }

  async #run(): Promise<void> {
    const { signal } = this.#stop;
    let retryDelayMs = firstRetryDelayMs;
    while (this.#woken && !signal.aborted) {
      this.#woken = false;
      // The request that woke this loop is answered first.
      await new Promise<void>((resolve) => setImmediate(resolve));
      try {
        await this.#work(signal);
        retryDelayMs = firstRetryDelayMs;
      } catch (error) {
        this.#log("error", `${this.#name} is held up and will be tried again`, { reason: reasonOf(error) });
        this.#woken = true;
        await delay(retryDelayMs, signal);
        retryDelayMs = Math.min(retryDelayMs * 2, maxRetryDelayMs);
      }
    }
    this.#running = undefined;
  }
}

/** Whether the database refuses only for now: it is full or locked, or its disk fails. */
export function isPassing(error: unknown): boolean {
  return error instanceof DbError && (error.code === "full" || error.code === "busy" || error.code === "io");
}

/** The reason for the log. The message is included only for our own errors, since others may quote a tenant's text. */
export function reasonOf(error: unknown): string {
  if (error instanceof DbError || error instanceof ApiError) return `${error.name}: ${error.message}`;
  return error instanceof Error ? error.name : typeof error;
}
