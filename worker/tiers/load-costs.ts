/** What loading and computing take, both measured, and so which of them is sooner. */
import { Cost, TokenCost } from "./load-queue.ts";
import type { Turn } from "./object-file.ts";

export interface LoadCostsOptions {
  /** How many times as long as alone a load takes now. */
  readonly slowness: () => number;
  readonly nowMs: () => number;
}

/**
 * What a byte is assumed to take until files were read: 200 MB/s. Where computing is as fast as that no file would ever be
 * read, so the first bytes are assumed to take no time.
 */
const [firstByteMs, triedBytes] = [1 / 200_000, 16 * 1024 * 1024];
/** The first so many bytes give the time of a byte that later averages are drawn back to (`Cost`). */
const probeBytes = 64 * 1024 * 1024;

export class LoadCosts {
  readonly tokens: TokenCost;
  readonly #slowness: () => number;
  /** Milliseconds to load a byte. */
  readonly #byteMs: Cost;

  constructor(options: LoadCostsOptions) {
    this.#slowness = options.slowness;
    this.#byteMs = new Cost(firstByteMs, probeBytes, options.nowMs);
    this.tokens = new TokenCost(options.nowMs);
  }

  /** What loading costs for KV of so many bytes a token; TierStats says in which unit. */
  of(tokenBytes: number): { readonly loadCost?: number } {
    return this.tokens.loadCost(this.#byteMs.each * tokenBytes);
  }

  /** @param waitedMs how many of the milliseconds were spent waiting for turns between steps */
  noteLoad(bytes: number, ms: number, waitedMs: number): void {
    this.#byteMs.note(bytes, ms - waitedMs);
  }

  loadMs(bytes: number): number {
    if (!this.#byteMs.isMeasured && bytes <= triedBytes) return 0;
    return bytes * this.#byteMs.each * this.#slowness();
  }

  computeMs(tokens: number): number {
    return tokens * this.tokens.each;
  }
}

/** How long a piece of work waited for its turns. */
export class TurnWaits {
  ms = 0;
  readonly #nowMs: () => number;

  constructor(nowMs: () => number) {
    this.#nowMs = nowMs;
  }

  counting(turn: Turn): Turn {
    return (bytes) => {
      const beganMs = this.#nowMs();
      return turn(bytes)?.then(() => {
        this.ms += this.#nowMs() - beganMs;
      });
    };
  }
}

interface Asked {
  readonly bytes: number;
  readonly atMs: number;
}

/** The first so many fetches and bytes give the times that later averages are drawn back to (`Cost`). */
const [probeFetches, probeFetchedBytes] = [8, 16 * 1024 * 1024];

/**
 * What fetches from a bucket take: one that begins when no other is under way waits for the bucket's answer; those that
 * are under way together follow each other at the rate of the line.
 */
export class FetchCosts {
  readonly #nowMs: () => number;
  readonly #asked = new Map<string, Asked>();
  readonly #firstMs: Cost;
  readonly #byteMs: Cost;
  #bytes = 0;
  #arrivedMs = Number.NEGATIVE_INFINITY;

  constructor(nowMs: () => number) {
    this.#nowMs = nowMs;
    // Until it is known, everything is fetched.
    this.#firstMs = new Cost(0, probeFetches, nowMs);
    this.#byteMs = new Cost(0, probeFetchedBytes, nowMs);
  }

  /** Milliseconds until objects of so many bytes each are here, if they are asked for now. */
  fetchMs(bytes: readonly number[]): number {
    const behind = this.#asked.size > 0 ? bytes : bytes.slice(1);
    return this.#firstMs.each + behind.reduce((sum, each) => sum + each, this.#bytes) * this.#byteMs.each;
  }

  asked(id: string, bytes: number): void {
    if (this.#asked.has(id)) return;
    this.#asked.set(id, { bytes, atMs: this.#nowMs() });
    this.#bytes += bytes;
  }

  arrived(id: string): void {
    const asked = this.#end(id);
    if (asked === undefined) return;
    const nowMs = this.#nowMs();
    if (this.#arrivedMs > asked.atMs) this.#byteMs.note(asked.bytes, nowMs - this.#arrivedMs);
    else this.#firstMs.note(1, nowMs - asked.atMs);
    this.#arrivedMs = nowMs;
  }

  /** It does not come. */
  gone(id: string): void {
    this.#end(id);
  }

  #end(id: string): Asked | undefined {
    const asked = this.#asked.get(id);
    this.#asked.delete(id);
    this.#bytes -= asked?.bytes ?? 0;
    return asked;
  }
}
