/** Time limit of work that is done in slices. */
import { OverBounds } from "./decode.ts";

/** How long a file's own work took, without the turns of others between its slices. */
export class WorkClock {
  readonly #maxMs: number;
  #spentMs = 0;
  #sinceMs = performance.now();

  constructor(maxMs: number) {
    this.#maxMs = maxMs;
  }

  goOn(): void {
    this.#sinceMs = performance.now();
  }

  rest(): void {
    this.#spentMs += performance.now() - this.#sinceMs;
  }

  /** @throws OverBounds */
  check(): void {
    if (this.#spentMs + performance.now() - this.#sinceMs <= this.#maxMs) return;
    throw new OverBounds(`It took longer than ${this.#maxMs / 1000} s to split and to store.`);
  }
}
