/** Long work on the event loop is done in short slices, so that streams and requests are served between them. */

import { type Hold, holdUntil } from "./hold.ts";

/** How long one slice of work may take. */
const sliceMs = 4;
/** Background work rests so many times as long as its slice took, and for so many milliseconds at most. */
const [restsPerSlice, mostRestMs] = [2, 20];
/** How long, in milliseconds, held work waits before `isHeld` is asked again. */
const holdMs = 5;
/** The same of work that nobody waits for, with the longest that it waits at once. */
const [roomPollMs, mostRoomMs] = [20, 1_000];

/**
 * Pieces of long work that wait to go on, in order. Only one goes on in each round of the event loop: if many did,
 * their slices together would block the loop.
 */
class YieldQueue {
  readonly #waiting: (() => void)[] = [];
  #isRunning = false;
  /** Asked before each slice; true makes all long work wait. */
  isHeld: () => boolean = () => false;
  /** Whether the process has grown so far that work nobody waits for has to stop for a while. */
  isTight: () => boolean = () => false;

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

/**
 * Turns of work that no request waits for, one after the other. While requests are in progress it rests after each slice
 * for twice as long as the slice took, so that all of it together has at most a third of the event loop, and leaves the
 * core to the workers meanwhile.
 */
class BackgroundTurns {
  isServing: () => boolean = () => false;
  /** Resolves when the rest behind the turn that was asked for last is over. */
  #rested = Promise.resolve();
  /** Resolves when the last of those that hold all turns lets go. */
  #held: { readonly promise: Promise<void>; readonly resolve: () => void } | undefined;
  #holds = 0;

  next(): Promise<void> {
    const turn = this.#rested.then(() => this.#turn());
    this.#rested = turn.then(() => this.#rest());
    return turn;
  }

  hold(mostMs: number): Hold {
    this.#held ??= Promise.withResolvers<void>();
    this.#holds += 1;
    let isOver = false;
    const end = (): void => {
      clearTimeout(timer);
      if (isOver) return;
      isOver = true;
      this.#holds -= 1;
      if (this.#holds > 0) return;
      this.#held?.resolve();
      this.#held = undefined;
    };
    const timer = setTimeout(end, mostMs);
    return holdUntil(end);
  }

  async #turn(): Promise<void> {
    do {
      await this.#held?.promise;
      await longWork.next();
    } while (this.#held !== undefined);
  }

  /** Begins before the slice does, and looks how long it took when it has run. */
  async #rest(): Promise<void> {
    const beginMs = performance.now();
    await new Promise<void>((resolve) => setImmediate(resolve));
    if (this.isServing()) await Bun.sleep(Math.min((performance.now() - beginMs) * restsPerSlice, mostRestMs));
  }
}

const longWork = new YieldQueue();
const backgroundWork = new BackgroundTurns();

/**
 * Makes all long work wait while `isHeld` returns true, and what nobody waits for while `isTight` does.
 * @param isHeld has to be cheap: it is asked before each slice
 */
export function holdLongWork(isHeld: () => boolean, isTight: () => boolean): void {
  longWork.isHeld = isHeld;
  longWork.isTight = isTight;
}

/** Makes background work rest between its slices while `isServing` returns true. @param isServing has to be cheap */
export function restWhile(isServing: () => boolean): void {
  backgroundWork.isServing = isServing;
}

/**
 * Lets no slice of background work begin until the hold ends.
 * @param mostMs milliseconds after which it ends by itself
 */
export const holdBackgroundWork = (mostMs: number): Hold => backgroundWork.hold(mostMs);

/** Resolves when there is memory for work that nobody waits for, after a second at the latest. Never rejects. */
export async function memoryRoom(signal: AbortSignal): Promise<void> {
  for (let waitedMs = 0; waitedMs < mostRoomMs && longWork.isTight() && !signal.aborted; waitedMs += roomPollMs) {
    await delay(roomPollMs, signal);
  }
}

/** Resolves when requests, streams and the long work that waited before have run. */
export const yieldToOthers = (): Promise<void> => longWork.next();

/** The same of work that no request waits for. It goes on at a third of its speed while requests are in progress. */
export const yieldToRequests = (): Promise<void> => backgroundWork.next();

/** Splits one piece of long work into slices. */
export class Pace {
  readonly #next: () => Promise<void>;
  #sliceEndMs = performance.now() + sliceMs;

  /** @param next ends a slice: `yieldToRequests` for work that no request waits for */
  constructor(next = yieldToOthers) {
    this.#next = next;
  }

  /** Lets other work run when this slice has lasted long enough. @returns whether other work ran */
  async breathe(): Promise<boolean> {
    if (performance.now() < this.#sliceEndMs) return false;
    await this.#next();
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
