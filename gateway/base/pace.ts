/** Long work on the event loop is done in short slices, so that streams and requests are served between them. */

/** How long one slice of work may take. */
const sliceMs = 4;
/** How long, in milliseconds, held work waits before `isHeld` is asked again. */
const holdMs = 5;

/**
 * Pieces of long work that wait to go on, in order. Only one goes on in each round of the event loop: if many did,
 * their slices together would block the loop.
 */
class YieldQueue {
  readonly #waiting: (() => void)[] = [];
  #isRunning = false;
  /** Asked before each slice; true makes all long work wait. */
  isHeld: () => boolean = () => false;

  next(): Promise<void> {
    return new Promise((resolve) => {
      this.#waiting.push(resolve);
      if (!this.#isRunning) setImmediate(this.#run);
      this.#isRunning = true;
    });
  }

  readonly #run = (): void => {
    if (this.isHeld()) {
      setTimeout(this.#run, holdMs);
      return;
    }
    this.#waiting.shift()?.();
    this.#isRunning = this.#waiting.length > 0;
    if (this.#isRunning) setImmediate(this.#run);
  };
}

const longWork = new YieldQueue();

/**
 * Makes all long work wait while `isHeld` returns true.
 * @param isHeld has to be cheap: it is asked before each slice
 */
export function holdLongWork(isHeld: () => boolean): void {
  longWork.isHeld = isHeld;
}

/** Resolves when requests, streams and the long work that waited before have run. */
export const yieldToOthers = (): Promise<void> => longWork.next();

/** Splits one piece of long work into slices. */
export class Pace {
  #sliceEndMs = performance.now() + sliceMs;

  /** Lets other work run when this slice has lasted long enough. @returns whether other work ran */
  async breathe(): Promise<boolean> {
    if (performance.now() < this.#sliceEndMs) return false;
    await yieldToOthers();
    this.#sliceEndMs = performance.now() + sliceMs;
    return true;
  }
}

/** Resolves after the time, or as soon as the signal aborts. Never rejects. */
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
