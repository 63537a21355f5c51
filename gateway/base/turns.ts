/**
 * Turns of requests. Bun hands over all requests that a round of the event loop has read, and whoever sends a thousand
 * at once would hold everybody up until the last of them has run. So requests run for a few milliseconds in each round
 * of the loop. Those that are left wait, and their owners take turns, however many requests each has waiting.
 */
import { RoundRobinQueue } from "./round-robin-queue.ts";

/** How long requests may run in one round before others wait for the next. */
const usualSliceMs = 4;

export class Turns {
  readonly #sliceMs: number;
  readonly #waiting = new RoundRobinQueue<() => void>();
  /** When the first request of this round began, by performance.now(); undefined: none has. */
  #beganMs: number | undefined;

  constructor(sliceMs = usualSliceMs) {
    this.#sliceMs = sliceMs;
  }

  /** @returns resolves when it is the owner's turn; undefined: it is now */
  take(owner: string): Promise<void> | undefined {
    const nowMs = performance.now();
    if (this.#beganMs === undefined) {
      this.#beganMs = nowMs;
      setImmediate(this.#next);
      return undefined;
    }
    if (this.#waiting.size === 0 && nowMs - this.#beganMs < this.#sliceMs) return undefined;
    return new Promise((resolve) => this.#waiting.push(owner, resolve));
  }

  /** What one that waited does at once is over in the next round only, so that one begins in each. */
  readonly #next = (): void => {
    const begin = this.#waiting.take(() => true);
    this.#beganMs = begin === undefined ? undefined : performance.now();
    if (begin === undefined) return;
    setImmediate(this.#next);
    begin();
  };
}
