/** Limits how many parts of one tree do something at the same time. The others wait in order. */
import { type Hold, holdUntil } from "../base/hold.ts";

export class Slots {
  #free: number;
  readonly #waiting: (() => void)[] = [];

  constructor(count: number) {
    this.#free = count;
  }

  /** Waits for a slot. @returns the hold on it, to be ended once. @throws the signal's reason */
  async enter(signal: AbortSignal): Promise<Hold> {
    signal.throwIfAborted();
    if (this.#free > 0) this.#free -= 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    if (signal.aborted) this.#leave();
    signal.throwIfAborted();
    return holdUntil(() => this.#leave());
  }

  #leave(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#free += 1;
    else next();
  }
}
