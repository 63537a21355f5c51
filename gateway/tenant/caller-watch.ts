/**
 * Tells what goes on for long, as streams do, that its caller does not count any more: the key was revoked or has
 * expired, its tenant was disabled or deleted, or the session has ended. Whatever made it so, it is found by looking.
 */
import type { ApiError } from "../base/errors.ts";
import { type Hold, holdUntil } from "../base/hold.ts";
import { Pace } from "../base/pace.ts";

export interface Caller {
  /** What stands for the caller: callers with the same one are looked at together. */
  readonly id: string;
  /** Why the caller does not count any more; undefined: it does. */
  readonly refusal: () => ApiError | undefined;
}

interface Watched {
  readonly caller: Caller;
  readonly listeners: Set<{ readonly onRefused: (error: ApiError) => void }>;
}

/** How often callers are looked at, in milliseconds. */
const usualLookMs = 1_000;

export class CallerWatch {
  readonly #lookMs: number;
  readonly #watched = new Map<string, Watched>();
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(lookMs = usualLookMs) {
    this.#lookMs = lookMs;
  }

  /** Calls `onRefused` once, soon after the caller does not count any more, unless the hold has ended. */
  watch(caller: Caller, onRefused: (error: ApiError) => void): Hold {
    const watched = this.#watched.getOrInsertComputed(caller.id, () => ({ caller, listeners: new Set() }));
    const listener = { onRefused };
    watched.listeners.add(listener);
    this.#lookLater();
    return holdUntil(() => {
      watched.listeners.delete(listener);
      if (watched.listeners.size === 0 && this.#watched.get(caller.id) === watched) this.#watched.delete(caller.id);
    });
  }

  #lookLater(): void {
    if (this.#timer !== undefined || this.#watched.size === 0) return;
    this.#timer = setTimeout(() => void this.#look(), this.#lookMs);
    this.#timer.unref();
  }

  async #look(): Promise<void> {
    const pace = new Pace();
    for (const [id, watched] of [...this.#watched]) {
      await pace.breathe();
      const error = refusalOf(watched.caller);
      if (error === undefined) continue;
      // Whoever begins while the others are told is looked at anew.
      this.#watched.delete(id);
      for (const { onRefused } of watched.listeners) {
        onRefused(error);
        await pace.breathe();
      }
    }
    this.#timer = undefined;
    this.#lookLater();
  }
}

/** While the database cannot be read, nobody is refused. */
function refusalOf({ refusal }: Caller): ApiError | undefined {
  try {
    return refusal();
  } catch {
    return undefined;
  }
}
