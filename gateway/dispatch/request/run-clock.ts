/**
 * The times of a run, from its submission on. They are measured here because a worker does not know how long the run
 * waited before it arrived there.
 */
export interface RunTimes {
  /** Milliseconds until the worker that ran it took it into its batch. */
  readonly queueMs: number;
  /** Milliseconds until its first token arrived here; undefined: there was none. */
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

  /** Call when the tokens so far are void. */
  restarted(): void {
    this.#firstTokenMs = undefined;
  }

  /** @param workerQueueMs milliseconds that the run waited at the worker */
  ended(workerQueueMs: number): RunTimes {
    const totalMs = this.#nowMs() - this.#startMs;
    const firstTokenMs = this.#firstTokenMs;
    // The worker's clock differs from this one, so its waiting time is limited to the times measured here.
    const queueMs = Math.min(firstTokenMs ?? totalMs, (this.#sentMs ?? totalMs) + workerQueueMs);
    return { queueMs, firstTokenMs, totalMs };
  }
}
