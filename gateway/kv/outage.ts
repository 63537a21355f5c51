/**
 * The times in which a bucket does not do one kind of work. An object that fails rests by itself; when another fails too,
 * and none succeeded between them, the bucket itself is taken to fail, and all rest. Rests double while it goes on.
 */
import type { Log } from "../base/log.ts";

export interface OutageOptions {
  /** What the bucket does not do, and what becomes of it: a sentence. */
  readonly sentence: string;
  readonly address: string;
  readonly log: Log;
  readonly nowMs: () => number;
}

interface Rest {
  readonly ms: number;
  readonly untilMs: number;
}

/** How long a rest is at first, and at most. */
export const firstRestMs = 1_000;
const mostRestMs = 60_000;
/** Objects whose rests are remembered; of more the one that failed first is tried again. */
const mostResting = 1_000;
const none: Rest = { ms: 0, untilMs: Number.NEGATIVE_INFINITY };

export class Outage {
  readonly #options: OutageOptions;
  readonly #resting = new Map<string, Rest>();
  /** Objects that failed since one succeeded. */
  readonly #inRow = new Set<string>();
  #all = none;
  /** What was said last, and is so still. */
  #reason: string | undefined;

  constructor(options: OutageOptions) {
    this.#options = options;
  }

  /** How long nothing is asked of the bucket. */
  get leftMs(): number {
    return Math.max(0, this.#all.untilMs - this.#options.nowMs());
  }

  /** Whether this object is not asked for now. */
  rests(id: string): boolean {
    return (this.#resting.get(id) ?? none).untilMs > this.#options.nowMs();
  }

  /** Objects that are not asked for now, and how long until the first of them may be; 0: there is none. */
  resting(): { readonly ids: readonly string[]; readonly nextMs: number } {
    const nowMs = this.#options.nowMs();
    const all = [...this.#resting].filter(([, { untilMs }]) => untilMs > nowMs);
    const nextMs = all.reduce((least, [, { untilMs }]) => Math.min(least, untilMs - nowMs), mostRestMs);
    return { ids: all.map(([id]) => id), nextMs: all.length === 0 ? 0 : nextMs };
  }

  /** @param id of the object that failed; undefined: what failed concerns all */
  failed(reason: string, id?: string): void {
    const { sentence, address, log } = this.#options;
    if (id !== undefined) {
      const rest = this.#longer(this.#resting.get(id));
      this.#resting.delete(id);
      this.#resting.set(id, rest);
      for (const first of this.#resting.keys()) {
        if (this.#resting.size <= mostResting) break;
        this.#resting.delete(first);
      }
      if (this.#inRow.size < 2) this.#inRow.add(id);
    }
    // What was asked before the last failure tells nothing more.
    const concernsAll = id === undefined || this.#inRow.size > 1;
    if (concernsAll && this.leftMs === 0) this.#all = this.#longer(this.#all);
    if (reason === this.#reason) return;
    this.#reason = reason;
    log("warn", sentence, { bucket: address, reason });
  }

  succeeded(id?: string): void {
    const { address, log, nowMs } = this.#options;
    if (id !== undefined) this.#resting.delete(id);
    this.#inRow.clear();
    this.#all = { ...this.#all, ms: 0 };
    if (this.#reason === undefined) return;
    // Nobody has asked for these again since they might.
    for (const [other, { untilMs }] of this.#resting) {
      if (untilMs + mostRestMs < nowMs()) this.#resting.delete(other);
    }
    if (this.#resting.size > 0) return;
    this.#reason = undefined;
    log("info", "the bucket of KV answers again", { bucket: address });
  }

  #longer({ ms }: Rest = none): Rest {
    const longer = Math.min(mostRestMs, Math.max(firstRestMs, 2 * ms));
    return { ms: longer, untilMs: this.#options.nowMs() + longer };
  }
}
