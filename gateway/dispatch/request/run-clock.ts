/** What a run takes here, from its submission on: its worker cannot know how long it waited for a place there. */
export interface RunTimes {
  /** Until the worker that ran it took it into its batch. */
  readonly queueMs: number;
  /** Until its first token was here; undefined: it gave none. */
  readonly firstTokenMs: number | undefined;
  readonly totalMs: number;
}

export class RunClock {
  readonly #nowMs: () => number;
  readonly #startMs: number;
  #sentMs: number | undefined;
  #firstTokenMs: number | undefined;

  constructor(nowMs: () => number) {
    this.#nowMs = nowMs;
    this.#startMs = nowMs();
  }

  sent(): void {
    this.#sentMs = this.#nowMs() - this.#startMs;
  }

  firstToken(): void {
    this.#firstTokenMs = this.#nowMs() - this.#startMs;
  }

  /** What it gave is void. */
  restarted(): void {
    this.#firstTokenMs = undefined;
  }

  /** @param workerQueueMs how long it waited at the worker */
  ended(workerQueueMs: number): RunTimes {
    const totalMs = this.#nowMs() - this.#startMs;
    const firstTokenMs = this.#firstTokenMs;
    // The worker's clock is another one.
    const queueMs = Math.min(firstTokenMs ?? totalMs, (this.#sentMs ?? totalMs) + workerQueueMs);
    return { queueMs, firstTokenMs, totalMs };
  }
}
