/**
 * Files that are loaded although no request waits for them. At a start those that were used last, while a quarter of the
 * pool is empty. Later those whose fragments a search or a query has named, so that a question may soon want them:
 * tenants in turn, into blocks that are neither in use nor kept for other tenants, in a small part of the pool. What of
 * these nobody uses soon is forgotten again.
 */
import type { BlockPool } from "../cache/block-pool.ts";
import type { PrefixCache } from "../cache/prefix-cache.ts";
import type { KvObject } from "../contract/kv-object.ts";
import type { KvOwner } from "../contract/owners.ts";
import type { BlockId, BlockKey } from "../contract/units.ts";
import { LoadQueue, type QueuedLoad } from "./load-queue.ts";

export interface UnaskedOptions {
  readonly pool: BlockPool;
  readonly cache: PrefixCache;
  /** Blocks promised to running requests and not taken yet. */
  readonly reservedBlocks: () => number;
  readonly onChange: () => void;
  readonly nowMs: () => number;
}

/** The part of the pool up to which a start loads what no request asks for. */
const warmPart = 3 / 4;
/** The most of the pool that blocks take which were named and are not used yet. */
const namedPart = 1 / 16;
/** Files that were named and wait to be loaded. */
const mostNamed = 512;
/** How long a name counts, in milliseconds, and how long what was loaded for it is kept without being used. */
const namedMs = 10_000;

interface Named extends QueuedLoad {
  readonly object: KvObject;
  readonly untilMs: number;
}

/** A block that was loaded for a name: when it was released, and until when it waits to be used. */
interface Unused {
  readonly blockId: BlockId;
  readonly freedAtMs: number;
  readonly untilMs: number;
}

export class Unasked {
  readonly #options: UnaskedOptions;
  /** Ids of objects to load at the start, the one used last first. */
  readonly #warm: string[] = [];
  readonly #named = new LoadQueue<Named>();
  #namedCount = 0;
  /** Objects that are being loaded because they were named. */
  readonly #loading = new Set<string>();
  readonly #unused = new Map<BlockKey, Unused>();

  constructor(options: UnaskedOptions) {
    this.#options = options;
  }

  warm(id: string): void {
    this.#warm.push(id);
  }

  /** Says that a question may soon want the object. */
  name(object: KvObject): void {
    if (this.#namedCount >= mostNamed) return;
    this.#namedCount += 1;
    this.#named.add({ object, owner: object.owner, bytes: 0, untilMs: this.#options.nowMs() + namedMs });
  }

  /** @param wanted the object of this id, unless it is there or gone */
  next(wanted: (id: string) => KvObject | undefined): KvObject | undefined {
    for (let named = this.#named.take(); named !== undefined; named = this.#named.take()) {
      this.#namedCount -= 1;
      const object = this.#options.nowMs() < named.untilMs ? wanted(named.object.id) : undefined;
      if (object === undefined || !(this.#hasEmptyPart() || this.#mayReplace(object.owner))) continue;
      this.#loading.add(object.id);
      return object;
    }
    while (this.#hasEmptyPart()) {
      const id = this.#warm.shift();
      if (id === undefined) return undefined;
      const object = wanted(id);
      if (object !== undefined) return object;
    }
    return undefined;
  }

  /** Whether a block may be taken for the object. */
  mayTake({ id, owner }: KvObject): boolean {
    return this.#hasEmptyPart() || (this.#loading.has(id) && this.#mayReplace(owner));
  }

  /** A block of the object was stored and released. */
  brought({ id }: KvObject, key: BlockKey, blockId: BlockId): void {
    if (!this.#loading.has(id)) return;
    const { pool, nowMs } = this.#options;
    this.#unused.delete(key);
    this.#unused.set(key, { blockId, freedAtMs: pool.shares.freedAtMs(blockId), untilMs: nowMs() + namedMs });
  }

  /** Nothing more comes of its load. */
  end({ id }: KvObject): void {
    if (this.#loading.delete(id)) setTimeout(() => this.forgetUnused(), namedMs + 1).unref();
  }

  /** Forgets what was loaded for names long enough ago and was not used. */
  forgetUnused(): void {
    const { pool, cache, nowMs, onChange } = this.#options;
    for (const [key, { blockId, freedAtMs, untilMs }] of this.#unused) {
      // Those that were loaded first come first.
      if (nowMs() < untilMs) break;
      this.#unused.delete(key);
      if (cache.blockOf(key) !== blockId || pool.isLive(blockId)) continue;
      // A request that uses the block releases it later than its load did.
      if (pool.shares.freedAtMs(blockId) === freedAtMs) cache.forget(blockId);
    }
    onChange();
  }

  #hasEmptyPart(): boolean {
    const { pool, cache, reservedBlocks } = this.#options;
    const empty = pool.availableCount - cache.cachedFreeCount;
    return empty > reservedBlocks() && pool.blockCount - empty < warmPart * pool.blockCount;
  }

  /** Whether a block that nobody uses may make room: no other tenant's floor, and nothing that was promised. */
  #mayReplace({ number }: KvOwner): boolean {
    const { pool, reservedBlocks } = this.#options;
    const free = pool.availableCount - pool.shares.protectedFrom(number);
    return free > reservedBlocks() && this.#unused.size < namedPart * pool.blockCount;
  }
}
