/** Long work on the event loop in short turns, so that streams and requests get theirs. */

/** How long one turn may take. */
const turnMs = 8;

export class Pace {
  #turnEnd = performance.now() + turnMs;

  /** Lets others run when this turn is used up. */
  async breathe(): Promise<void> {
    if (performance.now() < this.#turnEnd) return;
    await new Promise<void>((resolve) => setImmediate(resolve));
    this.#turnEnd = performance.now() + turnMs;
  }
}

/** Waits, or until aborted; never throws. */
export function delay(ms: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const finish = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", finish);
      resolve();
    };
    const timer = setTimeout(finish, ms);
    signal.addEventListener("abort", finish, { once: true });
  });
}
