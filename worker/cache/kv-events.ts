/**
 * Blocks that became resident and blocks that went, in order, since the last `take()`. Events carry keys only, no
 * tokens and no salts.
 */
import type { KvEvent } from "../contract/messages.ts";
import type { BlockKey } from "../contract/units.ts";

type Pending =
  | { readonly type: "stored"; blockKeys: BlockKey[]; previousKeys: BlockKey[]; tokenCounts: number[] }
  | { readonly type: "removed"; blockKeys: BlockKey[] };

/** What a cache tells of its blocks. */
export interface KvEvents {
  /** @param previousKey what the block was chained from */
  stored(blockKey: BlockKey, previousKey: BlockKey, tokenCount: number): void;
  /** The last block of this key has gone. */
  removed(blockKey: BlockKey): void;
}

/**
 * Events of one of two caches: a block that the other one has too is neither new to the worker nor gone from it.
 * @param onStored called for every block that is stored here
 */
export function eventsBeside(
  log: KvEvents,
  otherHas: (key: BlockKey) => boolean,
  onStored: (key: BlockKey, previousKey: BlockKey) => void = () => undefined,
): KvEvents {
  return {
    stored(key, previousKey, tokenCount) {
      if (!otherHas(key)) log.stored(key, previousKey, tokenCount);
      onStored(key, previousKey);
    },
    removed(key) {
      if (!otherHas(key)) log.removed(key);
    },
  };
}

export class KvEventLog implements KvEvents {
  #nextSequence = 1;
  #pending: Pending[] = [];

  stored(blockKey: BlockKey, previousKey: BlockKey, tokenCount: number): void {
    const last = this.#pending.at(-1);
    if (last?.type === "stored") {
      last.blockKeys.push(blockKey);
      last.previousKeys.push(previousKey);
      last.tokenCounts.push(tokenCount);
      return;
    }
    const [blockKeys, previousKeys, tokenCounts] = [[blockKey], [previousKey], [tokenCount]];
    this.#pending.push({ type: "stored", blockKeys, previousKeys, tokenCounts });
  }

  removed(blockKey: BlockKey): void {
    const last = this.#pending.at(-1);
    if (last?.type === "removed") last.blockKeys.push(blockKey);
    else this.#pending.push({ type: "removed", blockKeys: [blockKey] });
  }

  /** Changes since the last call, neighbours of one type in one event, numbered without gaps from 1. */
  take(): KvEvent[] {
    if (this.#pending.length === 0) return [];
    const events = this.#pending.map((change) => ({ sequence: this.#nextSequence++, ...change }));
    this.#pending = [];
    return events;
  }
}
