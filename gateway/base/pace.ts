/** Long work on the event loop in short turns, so that streams and requests get theirs. */

/** How long one turn may take. */
const turnMs = 4;
/** Turns that are held are asked for again after so long. */
const holdMs = 5;

/**
 * Who waits for a turn, in order. One has it each time around the event loop: of many pieces of work at the same time,
 * each with turns of its own, all together would hold the loop as many times as long.
 */
class YieldQueue {
  readonly #waiting: (() => void)[] = [];
  #isRunning = false;
  /** Asked before each turn: whether it has to wait. */
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

const turns = new YieldQueue();

/** Nobody has a turn while this says so. @param isHeld cheap: asked before each turn */
export function holdTurns(isHeld: () => boolean): void {
  turns.isHeld = isHeld;
}

/** Resolves when requests, streams and those who waited before have had their turn. */
export const nextTurn = (): Promise<void> => turns.next();

export class Pace {
  #turnEnd = performance.now() + turnMs;

  /** Lets others run when this turn is used up. @returns whether they did */
  async breathe(): Promise<boolean> {
    if (performance.now() < this.#turnEnd) return false;
    await nextTurn();
    this.#turnEnd = performance.now() + turnMs;
    return true;
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
