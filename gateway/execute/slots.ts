/** How many of one tree do something at the same time; the others wait in order. */
export class Slots {
  #free: number;
  readonly #waiting: (() => void)[] = [];

  constructor(count: number) {
    this.#free = count;
  }

  /** @returns what to call, once, when it is done. Throws the signal's reason when it aborted meanwhile. */
  async enter(signal: AbortSignal): Promise<() => void> {
    signal.throwIfAborted();
    if (this.#free > 0) this.#free -= 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    if (signal.aborted) this.#leave();
    signal.throwIfAborted();
    return () => this.#leave();
  }

  #leave(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#free += 1;
    else next();
  }
}
