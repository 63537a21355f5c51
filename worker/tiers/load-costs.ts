/** What loading and computing take, both measured, and so which of them is sooner. */
import { Cost, TokenCost } from "./load-queue.ts";
import type { Turn } from "./object-file.ts";

export interface LoadCostsOptions {
  /** Whether the processor that opens files computes the steps too, as on a CPU. */
  readonly sharesProcessor: boolean;
  /** How many times as long as alone a load takes now, where the processor is shared; else 1. */
  readonly slowness: () => number;
  readonly nowMs: () => number;
}

/** What a byte is assumed to take until files were read: 200 MB/s. */
const firstByteMs = 1 / 200_000;
/** What is measured first is what the cost of bytes is drawn back to. */
const probeBytes = 64 * 1024 * 1024;

export class LoadCosts {
  readonly tokens: TokenCost;
  readonly #options: LoadCostsOptions;
  /** What a byte that is loaded takes. */
  readonly #byteMs: Cost;

  constructor(options: LoadCostsOptions) {
    this.#options = options;
    this.#byteMs = new Cost(firstByteMs, probeBytes, options.nowMs);
    this.tokens = new TokenCost(options.nowMs);
  }

  /** Of KV that takes so many bytes a token. See TierStats. */
  of(tokenBytes: number): { readonly loadCost?: number } {
    return this.tokens.loadCost(this.#byteMs.each * tokenBytes);
  }

  /** @param waitedMs of these, for turns between steps */
  noteLoad(bytes: number, ms: number, waitedMs: number): void {
    this.#byteMs.note(bytes, this.#options.sharesProcessor ? ms - waitedMs : ms);
  }

  loadMs(bytes: number): number {
    return bytes * this.#byteMs.each * this.#options.slowness();
  }

  computeMs(tokens: number): number {
    return tokens * this.tokens.each;
  }

  /**
   * What stands against the loads of a request's next part: where another processor computes, what that has to compute
   * before; where one does both, what it could compute while it loads what comes before. That part itself is added.
   * @param had blocks of a run that are there
   * @param come blocks of it that are there or come
   */
  blocksAgainst(had: number, come: number, blockCount: number): number {
    return this.#options.sharesProcessor ? come - had : blockCount - come;
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
