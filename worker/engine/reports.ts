/** Counts and times of runs and requests, for the reports that the gateway gets. */
import type { RequestTimings } from "../contract/messages.ts";
import type { KvTier } from "../contract/tiers.ts";

/** Counts a run's prompt tokens as found or computed, each once: computing again after a preemption is not counted. */
export class RunUsage {
  /** Prompt tokens that were found, and those that were computed and are kept under a key. */
  cachedTokens = 0;
  cacheWriteTokens = 0;
  /** The farthest tier that found tokens are of. */
  tier: KvTier = "device";
  readonly #promptTokens: number;
  /** Tokens before `reached` are counted as found or computed; tokens before `kept` are counted as kept. */
  #reached = 0;
  #kept = 0;

  constructor(promptTokens: number) {
    this.#promptTokens = promptTokens;
  }

  /** Tokens before `end` were found in the cache. @returns how many of them are counted now for the first time */
  found(end: number): number {
    this.#kept = Math.max(this.#kept, end);
    const fresh = this.#reach(end);
    this.cachedTokens += fresh;
    return fresh;
  }

  /** Tokens before `end` are computed, or were found before. */
  computed(end: number): void {
    this.#reach(end);
  }

  /** The block of tokens start .. end - 1 is complete. @param stored whether it is found under its key from now on */
  keep(start: number, end: number, stored: boolean): void {
    const written = Math.min(end, this.#promptTokens) - Math.max(start, this.#kept);
    if (stored && written > 0) this.cacheWriteTokens += written;
    this.#kept = Math.max(this.#kept, end);
  }

  #reach(end: number): number {
    const fresh = Math.max(0, Math.min(end, this.#promptTokens) - this.#reached);
    this.#reached += fresh;
    return fresh;
  }
}

/** When a request came to its stages, each for the first time; milliseconds on the engine's clock. */
export class RequestTimes {
  readonly #arrivedAtMs: number;
  #admittedAtMs: number | undefined;
  #prefilledAtMs: number | undefined;
  #firstTokenAtMs: number | undefined;

  constructor(arrivedAtMs: number) {
    this.#arrivedAtMs = arrivedAtMs;
  }

  /** @returns whether this is the first admission. */
  markAdmitted(nowMs: number): boolean {
    if (this.#admittedAtMs !== undefined) return false;
    this.#admittedAtMs = nowMs;
    return true;
  }

  markPrefilled(nowMs: number): void {
    this.#prefilledAtMs ??= nowMs;
  }

  /** A token was drawn: the prompt is computed too. */
  markToken(nowMs: number): void {
    this.markPrefilled(nowMs);
    this.#firstTokenAtMs ??= nowMs;
  }

  /** A stage that was not reached took until now (the request ended in it) or 0 ms (it never began). */
  timings(nowMs: number): RequestTimings {
    const admittedAtMs = this.#admittedAtMs;
    const queueMs = (admittedAtMs ?? nowMs) - this.#arrivedAtMs;
    const prefillMs = admittedAtMs === undefined ? 0 : (this.#prefilledAtMs ?? nowMs) - admittedAtMs;
    const ttftMs = this.#firstTokenAtMs === undefined ? 0 : this.#firstTokenAtMs - this.#arrivedAtMs;
    return { queueMs, prefillMs, ttftMs };
  }
}
