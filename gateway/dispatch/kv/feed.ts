/**
 * Tells followers which blocks the workers hold, as it changes. The changes of all workers are numbered, and the newest
 * are kept for followers that reconnect. A follower that is new, or was away for longer than the kept changes reach, is
 * told everything that is held instead. So a slow follower needs no memory here, and what a follower was told is right.
 */
import { randomBytes } from "node:crypto";
import type { KvEvent } from "../../../worker/contract/messages.ts";
import type { KvTier } from "../../../worker/contract/tiers.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import { unlessAborted } from "../../base/hold.ts";
import type { Residency } from "./residency.ts";

export type KvChange =
  | {
      readonly type: "stored";
      readonly worker: string;
      readonly tier: KvTier;
      readonly blockKeys: readonly BlockKey[];
      /** Tokens in each of the blocks. */
      readonly tokenCounts: readonly number[];
    }
  | {
      readonly type: "removed";
      readonly worker: string;
      readonly tier: KvTier;
      readonly blockKeys: readonly BlockKey[];
    }
  /** This worker holds nothing now; null: no worker holds anything. */
  | { readonly type: "cleared"; readonly worker: string | null };

/** Ends an account of everything that is held. */
export interface KvCurrent {
  readonly type: "current";
}

export interface FedChange {
  /** The id to go on from later. undefined within an account of everything that is held: that begins anew if it is cut off. */
  readonly id: string | undefined;
  readonly change: KvChange | KvCurrent;
}

export interface KvFeedOptions {
  readonly residency: Pick<Residency, "all">;
  /** Most keys in all the changes that are kept. */
  readonly maxKeys: number;
  /** Most keys in one change. */
  readonly keysPerChange: number;
}

export class KvFeed {
  readonly #options: KvFeedOptions;
  /** Part of every id: numbers from another process's feed mean nothing here. */
  readonly #name = randomBytes(8).toString("hex");
  /** The newest changes; the first of them has the number #first. */
  #changes: KvChange[] = [];
  #first = 1;
  #keyCount = 0;
  /** What followers wait for that have been told all; undefined: nobody waits. */
  #more: PromiseWithResolvers<void> | undefined;

  constructor(options: KvFeedOptions) {
    this.#options = options;
  }

  /** To be called once the residency has applied these events of a worker. */
  apply(worker: string, events: readonly KvEvent[]): void {
    for (const event of events) {
      const { type, blockKeys, tier = "device" } = event;
      if (type === "removed") this.#addParts({ type, worker, tier, blockKeys });
      else this.#addParts({ type, worker, tier, blockKeys, tokenCounts: event.tokenCounts });
    }
  }

  /** To be called when the worker has ended: its blocks are gone. */
  lost(worker: string): void {
    this.#add({ type: "cleared", worker });
  }

  /** @param lastId the last id that the follower has seen; undefined or an id that is no longer known: it is told everything */
  async *follow(lastId: string | undefined, signal: AbortSignal): AsyncGenerator<FedChange> {
    let next = this.#after(lastId);
    while (!signal.aborted) {
      if (next === undefined || next < this.#first) {
        next = this.#next;
        // The list is taken at once; changes that happen while it is told follow after it.
        for (const change of this.#held()) {
          if (signal.aborted) return;
          yield { id: undefined, change };
        }
        yield { id: this.#idOf(next - 1), change: { type: "current" } };
        continue;
      }
      const change = this.#changes[next - this.#first];
      if (change === undefined) {
        this.#more ??= Promise.withResolvers();
        await unlessAborted(this.#more.promise, signal);
        continue;
      }
      yield { id: this.#idOf(next), change };
      next += 1;
    }
  }

  get #next(): number {
    return this.#first + this.#changes.length;
  }

  #idOf(number: number): string {
    return `${this.#name}-${number}`;
  }

  #after(lastId: string | undefined): number | undefined {
    const [, name, digits] = /^([0-9a-f]{16})-(\d{1,15})$/.exec(lastId ?? "") ?? [];
    const next = Number(digits) + 1;
    return name === this.#name && next >= this.#first && next <= this.#next ? next : undefined;
  }

  #addParts(change: Exclude<KvChange, { readonly type: "cleared" }>): void {
    for (const part of parts(change, this.#options.keysPerChange)) this.#add(part);
  }

  #add(change: KvChange): void {
    this.#changes.push(change);
    this.#keyCount += keysIn(change);
    if (this.#keyCount > this.#options.maxKeys) this.#forgetOldest();
    this.#more?.resolve();
    this.#more = undefined;
  }

  /** Drops old changes down to half the bound, so that the list is not moved for each change. */
  #forgetOldest(): void {
    let gone = 0;
    for (; this.#keyCount > this.#options.maxKeys / 2 && gone < this.#changes.length; gone++) {
      const oldest = this.#changes[gone];
      if (oldest !== undefined) this.#keyCount -= keysIn(oldest);
    }
    this.#changes = this.#changes.slice(gone);
    this.#first += gone;
  }

  #held(): readonly KvChange[] {
    const { residency, keysPerChange } = this.#options;
    const stored = residency
      .all()
      .flatMap(({ workerId: worker, ...blocks }) => parts({ type: "stored", worker, ...blocks }, keysPerChange));
    return [{ type: "cleared", worker: null }, ...stored];
  }
}

/** The keys of a change; a change without keys counts as one, so that the list of changes is bounded too. */
const keysIn = (change: KvChange): number => (change.type === "cleared" ? 1 : change.blockKeys.length);

function parts(change: Exclude<KvChange, { readonly type: "cleared" }>, keysPerChange: number): readonly KvChange[] {
  const count = Math.ceil(change.blockKeys.length / keysPerChange);
  if (count === 1) return [change];
  return Array.from({ length: count }, (_, index) => {
    const [from, to] = [index * keysPerChange, (index + 1) * keysPerChange];
    const blockKeys = change.blockKeys.slice(from, to);
    return change.type === "removed"
      ? { ...change, blockKeys }
      : { ...change, blockKeys, tokenCounts: change.tokenCounts.slice(from, to) };
  });
}
