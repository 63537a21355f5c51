/**
 * Memory of the host beside a GPU, as a second prefix cache over blocks of its own. What the pool stores is copied down
 * beside the steps, so that evicting it costs nothing later; what a request lacks and this memory has comes up again
 * (host-loads.ts). A copy up never removes the block below, and both caches go by the same keys, owners, pins and
 * derivations: what evicts a block above evicts it here.
 */
import type { BlockMover } from "../backend/backend.ts";
import { BlockPool } from "../cache/block-pool.ts";
import { type Derivation, DerivationTwins } from "../cache/derivations.ts";
import type { KvEvents } from "../cache/kv-events.ts";
import { type BlockContent, PrefixCache } from "../cache/prefix-cache.ts";
import type { TierStats } from "../contract/messages.ts";
import type { BlockId, BlockKey } from "../contract/units.ts";
import { HostLoads, type HostLoadsOptions } from "./host-loads.ts";

export interface HostTierOptions extends Omit<HostLoadsOptions, "hostCache" | "bringDown" | "used"> {
  readonly blockTokens: number;
  /** Takes what comes to the host's memory and what goes from there. */
  readonly events: KvEvents;
  readonly clock: () => number;
}

/** A block on its way down. */
interface Store {
  readonly key: BlockKey;
  readonly previousKey: BlockKey;
  readonly content: BlockContent;
  readonly derivation: Derivation | undefined;
  /** Number of the tenant that it is counted for. */
  readonly owner: number;
  readonly slot: BlockId;
  /** Whether the block was evicted meanwhile. */
  isOver: boolean;
}

const nextRound = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

export class HostTier {
  readonly pool: BlockPool;
  readonly cache: PrefixCache;
  readonly loads: HostLoads;
  readonly #options: HostTierOptions;
  /** What each block here is chained from. */
  readonly #previousKeys = new Map<BlockKey, BlockKey>();
  /** Blocks to copy down, with the keys that they were chained from; the one stored first is the first. */
  readonly #waiting = new Map<BlockKey, BlockKey>();
  readonly #stores = new Set<Store>();
  readonly #written = { bytes: 0, ms: 0 };
  #copies = 0;
  #isBeginning = false;
  /** Slots to overwrite with zeros. Each has a reference of its own until then. */
  readonly #wiping: BlockId[] = [];
  #isWiping = false;
  readonly #derivations = new DerivationTwins();
  readonly #whenSettled: (() => void)[] = [];

  constructor(options: HostTierOptions) {
    const { blocks, blockTokens, events, clock } = options;
    this.#options = options;
    this.pool = new BlockPool(blocks.slots.length, clock);
    this.cache = new PrefixCache(this.pool, blockTokens, this.#chained(events));
    const bringDown = (key: BlockKey, previousKey: BlockKey): void => this.deviceStored(key, previousKey);
    const used = (keys: readonly BlockKey[]): void => this.#used(keys);
    this.loads = new HostLoads({ ...options, hostCache: this.cache, bringDown, used });
  }

  stats(): TierStats {
    const { bytes: readBytes, ms: readMs, outcomes } = this.loads.counts;
    const { bytes: writtenBytes, ms: writeMs } = this.#written;
    return { tier: "host", readBytes, readMs, writtenBytes, writeMs, ...this.loads.loadCost, loads: { ...outcomes } };
  }

  /** Moves packed blocks between slots and other memory. */
  get mover(): BlockMover {
    const { format, slots } = this.#options.blocks;
    return {
      format,
      pack: (slot, _tokenCount, out) => out.set(slots[slot]),
      unpack: (slot, packed) => slots[slot].set(packed),
    };
  }

  /** The device stored a block. */
  deviceStored(key: BlockKey, previousKey: BlockKey): void {
    if (this.cache.has(key)) return;
    // More blocks than fit here would evict each other.
    if (this.#waiting.size >= this.pool.blockCount) return;
    this.#waiting.set(key, previousKey);
    if (this.#isBeginning) return;
    this.#isBeginning = true;
    setImmediate(() => {
      this.#isBeginning = false;
      this.#copyDown();
    });
  }

  /** Evicts as PrefixCache.evict does, also what is on its way; what the slots held is overwritten. */
  evict(keys: readonly BlockKey[], owner?: number): void {
    const gone = new Set(keys);
    for (const store of this.#stores) {
      const isMeant = gone.has(store.key) || store.derivation?.sources.some((source) => gone.has(source)) === true;
      if (isMeant && (owner === undefined || store.owner === owner)) store.isOver = true;
    }
    const slots = this.cache.blocksFrom(keys);
    this.cache.evict(keys, owner);
    for (const slot of slots) if (this.cache.keyOf(slot) === undefined) this.#wipe(slot);
    this.loads.dropGone();
  }

  /** Resolves when everything that waits is copied down. */
  async settled(): Promise<void> {
    if (this.#waiting.size + this.#stores.size === 0) return;
    await new Promise<void>((resolve) => this.#whenSettled.push(resolve));
  }

  #chained(events: KvEvents): KvEvents {
    return {
      stored: (key, previousKey, tokenCount) => {
        this.#previousKeys.set(key, previousKey);
        events.stored(key, previousKey, tokenCount);
      },
      removed: (key) => {
        this.#previousKeys.delete(key);
        events.removed(key);
      },
    };
  }

  /**
   * Notes blocks as used, in the order of their chains, with all blocks that they are chained from. A chain without its
   * beginning is of no use, so it is released from its tail.
   */
  #used(keys: readonly BlockKey[]): void {
    const met = new Set<BlockKey>();
    for (const tail of keys.toReversed()) {
      if (met.has(tail)) continue;
      for (let key: BlockKey | undefined = tail; key !== undefined; key = this.#previousKeys.get(key)) {
        const slot = this.cache.blockOf(key);
        if (slot === undefined) break;
        met.add(key);
        this.cache.retain(slot);
        this.cache.release(slot);
      }
    }
  }

  #copyDown(): void {
    const { blocks, isDecoding } = this.#options;
    const { copiesAtOnce, blocksPerCopy } = isDecoding() ? blocks.paceBesideDecodes : blocks.pace;
    while (this.#waiting.size > 0 && this.#copies < copiesAtOnce) {
      const stores = this.#takeStores(blocksPerCopy);
      if (stores.length > 0) void this.#copy(stores);
    }
    if (this.#waiting.size + this.#stores.size === 0) for (const resolve of this.#whenSettled.splice(0)) resolve();
  }

  #takeStores(count: number): Store[] {
    const { cache, pool } = this.#options;
    const stores: Store[] = [];
    for (const [key, previousKey] of this.#waiting) {
      if (stores.length === count) break;
      this.#waiting.delete(key);
      const blockId = cache.blockOf(key);
      if (blockId === undefined || this.cache.has(key)) continue;
      const owner = pool.shares.ownerOf(blockId)?.number ?? 0;
      const slot = this.cache.allocate({ number: owner });
      if (slot === undefined) continue;
      const content = cache.contentOf(blockId);
      const derivation = this.#derivations.of(cache.derivationOf(key));
      stores.push({ key, previousKey, content, derivation, owner, slot, isOver: false });
    }
    return stores;
  }

  async #copy(stores: readonly Store[]): Promise<void> {
    const { blocks, cache, onChange } = this.#options;
    this.#copies += 1;
    for (const store of stores) this.#stores.add(store);
    const filled = stores.map(({ key, content }) => {
      const blockId = cache.blockOf(key);
      if (blockId === undefined) throw new Error("a block that is copied down has gone");
      return { blockId, tokenCount: content.end };
    });
    const slots = stores.map(({ slot }) => slot);
    const beganMs = performance.now();
    await blocks.store(filled, slots);
    this.#written.bytes += slots.length * blocks.format.bytes;
    this.#written.ms += performance.now() - beganMs;
    this.#copies -= 1;
    for (const store of stores) {
      const { slot, key, previousKey, content, derivation, isOver } = store;
      this.#stores.delete(store);
      if (isOver) this.#wipe(slot);
      else this.cache.store(slot, key, previousKey, content, derivation);
      this.cache.release(slot);
    }
    this.#used(stores.map(({ key }) => key));
    onChange();
    this.#copyDown();
  }

  /** Overwrites a slot that cannot be found any more, once nothing reads it. */
  #wipe(slot: BlockId): void {
    this.pool.retain(slot);
    this.#wiping.push(slot);
    if (!this.#isWiping) void this.#wipeAll();
  }

  async #wipeAll(): Promise<void> {
    this.#isWiping = true;
    for (let slot = this.#wiping.shift(); slot !== undefined; slot = this.#wiping.shift()) {
      // One slot takes a fraction of a millisecond, and steps are not kept waiting.
      await nextRound();
      if (this.pool.referenceCount(slot) > 1) this.#wiping.push(slot);
      else {
        this.#options.blocks.slots[slot].fill(0);
        this.pool.release(slot, false);
      }
    }
    this.#isWiping = false;
  }
}
