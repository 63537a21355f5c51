/**
 * What the workers hold, told to followers as it changes. Changes of all workers are numbered, and the newest are kept
 * for whoever comes back; who comes for the first time, or was away for longer, is told all that is held instead. So a
 * follower that is slow costs nothing, and one that has read on is never wrong.
 */
import { randomBytes } from "node:crypto";
import type { KvEvent } from "../../../worker/contract/messages.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import type { Residency } from "./residency.ts";

export type KvChange =
  | {
      readonly type: "stored";
      readonly worker: string;
      readonly blockKeys: readonly BlockKey[];
      /** Tokens that each of the blocks holds. */
      readonly tokenCounts: readonly number[];
    }
  | { readonly type: "removed"; readonly worker: string; readonly blockKeys: readonly BlockKey[] }
  /** The worker holds nothing; null: none of them does. */
  | { readonly type: "cleared"; readonly worker: string | null };

/** What came until here is all that is held. */
export interface KvCurrent {
  readonly type: "current";
}

export interface FedChange {
  /** Where to go on after it; undefined within an account of all that is held, which is told again from its beginning. */
  readonly id: string | undefined;
  readonly change: KvChange | KvCurrent;
}

export interface KvFeedOptions {
  readonly residency: Pick<Residency, "all">;
  /** Keys in the changes that are kept. */
  readonly maxKeys: number;
  /** Keys of one change. */
  readonly keysPerChange: number;
}

export class KvFeed {
  readonly #options: KvFeedOptions;
  /** Numbers of another process's feed mean nothing here. */
  readonly #name = randomBytes(8).toString("hex");
  /** The newest; the first of them has the number #first. */
  #changes: KvChange[] = [];
  #first = 1;
  #keyCount = 0;
  #more = Promise.withResolvers<void>();

  constructor(options: KvFeedOptions) {
    this.#options = options;
  }

  /** Called when the residency knows it. */
  apply(worker: string, events: readonly KvEvent[]): void {
    for (const event of events) {
      if (event.type === "removed") this.#addParts({ type: "removed", worker, blockKeys: event.blockKeys });
      else {
        const { blockKeys, tokenCounts } = event;
        this.#addParts({ type: "stored", worker, blockKeys, tokenCounts });
      }
    }
  }

  /** The worker's memory is gone. */
  lost(worker: string): void {
    this.#add({ type: "cleared", worker });
  }

  /** @param lastId the last id that the follower has seen; undefined, or one that is not known any more: none */
  async *follow(lastId: string | undefined, signal: AbortSignal): AsyncGenerator<FedChange> {
    let next = this.#after(lastId);
    while (!signal.aborted) {
      if (next === undefined || next < this.#first) {
        next = this.#next;
        // Taken at once: what changes while it is told comes after it.
        for (const change of this.#held()) {
          if (signal.aborted) return;
          yield { id: undefined, change };
        }
        yield { id: this.#idOf(next - 1), change: { type: "current" } };
        continue;
      }
      const change = this.#changes[next - this.#first];
      if (change === undefined) {
        await this.#anyMore(signal);
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
    this.#more.resolve();
    this.#more = Promise.withResolvers();
  }

  /** Down to half, so that the list is not moved for each change. */
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
      .flatMap(({ workerId, ...blocks }) => parts({ type: "stored", worker: workerId, ...blocks }, keysPerChange));
    return [{ type: "cleared", worker: null }, ...stored];
  }

  async #anyMore(signal: AbortSignal): Promise<void> {
    const left = Promise.withResolvers<void>();
    const leave = (): void => left.resolve();
    signal.addEventListener("abort", leave, { once: true });
    await Promise.race([this.#more.promise, left.promise]);
    signal.removeEventListener("abort", leave);
  }
}

/** A change without keys counts as one, so that the list of changes has a bound of its own. */
const keysIn = (change: KvChange): number => (change.type === "cleared" ? 1 : change.blockKeys.length);

function parts(change: Exclude<KvChange, { readonly type: "cleared" }>, keysPerChange: number): readonly KvChange[] {
  const count = Math.ceil(change.blockKeys.length / keysPerChange);
  return Array.from({ length: count }, (_, index) => {
    const [from, to] = [index * keysPerChange, (index + 1) * keysPerChange];
    const blockKeys = change.blockKeys.slice(from, to);
    return change.type === "removed"
      ? { ...change, blockKeys }
      : { ...change, blockKeys, tokenCounts: change.tokenCounts.slice(from, to) };
  });
}
