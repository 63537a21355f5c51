/**
 * Blocks that became resident and blocks that went, in order, since the last `take()`. Events carry keys only, no
 * tokens and no salts.
 */
import type { KvEvent } from "../contract/messages.ts";
import type { WorkerTier } from "../contract/tiers.ts";
import type { BlockKey } from "../contract/units.ts";

type Pending = { readonly tier?: WorkerTier } & (
  | { readonly type: "stored"; blockKeys: BlockKey[]; previousKeys: BlockKey[]; tokenCounts: number[] }
  | { readonly type: "removed"; blockKeys: BlockKey[] }
);

/** What a cache tells of its blocks. */
export interface KvEvents {
  /** @param previousKey what the block was chained from */
  stored(blockKey: BlockKey, previousKey: BlockKey, tokenCount: number): void;
  /** The last block of this key has gone. */
  removed(blockKey: BlockKey): void;
}

export class KvEventLog implements KvEvents {
  /** Takes the events of the cache in the host's memory. */
  readonly host: KvEvents = {
    stored: (blockKey, previousKey, tokenCount) => this.#stored("host", blockKey, previousKey, tokenCount),
    removed: (blockKey) => this.#removed("host", blockKey),
  };
  #nextSequence = 1;
  #pending: Pending[] = [];

  stored(blockKey: BlockKey, previousKey: BlockKey, tokenCount: number): void {
    this.#stored(undefined, blockKey, previousKey, tokenCount);
  }

  removed(blockKey: BlockKey): void {
    this.#removed(undefined, blockKey);
  }

  /** Changes since the last call, neighbours of one type and tier in one event, numbered without gaps from 1. */
  take(): KvEvent[] {
    if (this.#pending.length === 0) return [];
    const events = this.#pending.map((change) => ({ sequence: this.#nextSequence++, ...change }));
    this.#pending = [];
    return events;
  }

  #stored(tier: WorkerTier | undefined, blockKey: BlockKey, previousKey: BlockKey, tokenCount: number): void {
    const last = this.#pending.at(-1);
    if (last?.type === "stored" && last.tier === tier) {
      last.blockKeys.push(blockKey);
      last.previousKeys.push(previousKey);
      last.tokenCounts.push(tokenCount);
      return;
    }
    const [blockKeys, previousKeys, tokenCounts] = [[blockKey], [previousKey], [tokenCount]];
    this.#pending.push({ type: "stored", ...(tier && { tier }), blockKeys, previousKeys, tokenCounts });
  }

  #removed(tier: WorkerTier | undefined, blockKey: BlockKey): void {
    const last = this.#pending.at(-1);
    if (last?.type === "removed" && last.tier === tier) last.blockKeys.push(blockKey);
    else this.#pending.push({ type: "removed", ...(tier && { tier }), blockKeys: [blockKey] });
  }
}
