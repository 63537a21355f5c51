/**
 * Finds blocks by their keys. A released block stays findable until its memory is needed (lazy LRU). Every store and
 * every removal is an event. The key alone decides whose KV is read, so on a hit the tokens are compared as well: a
 * collision costs a recomputation and never shows another tenant's KV.
 */
import type { KvOwner } from "../contract/owners.ts";
import { type KvTier, kvTiers } from "../contract/tiers.ts";
import type { BlockId, BlockKey } from "../contract/units.ts";
import type { BlockPool } from "./block-pool.ts";
import { type Derivation, Derivations } from "./derivations.ts";
import type { KvEvents } from "./kv-events.ts";
import type { OwnerAccount } from "./shares.ts";

/**
 * What one block holds: tokens start..end-1 of `tokenIds`, the first of them at chain position `position`. The chain's
 * position 0 stands at `place` in the positions that its K is rotated by (relocating-cache.ts); 0 where K is never
 * moved.
 */
export interface BlockContent {
  readonly tokenIds: Int32Array;
  readonly start: number;
  readonly end: number;
  readonly position: number;
  readonly place: number;
}

export class PrefixCache {
  protected readonly blockOfKey = new Map<BlockKey, BlockId>();
  protected readonly keyOfBlock: (BlockKey | undefined)[];
  protected readonly tokenIds: Int32Array;
  protected readonly tokenCounts: Int32Array;
  protected readonly positions: Int32Array;
  protected readonly pool: BlockPool;
  protected readonly blockTokens: number;
  readonly #events: KvEvents;
  readonly #derivations = new Derivations();
  readonly #pinnedKeys = new Set<BlockKey>();
  /** For each block an index in kvTiers: where its content was brought from. */
  readonly #tiers: Uint8Array;
  #evicted = 0;

  constructor(pool: BlockPool, blockTokens: number, events: KvEvents) {
    this.pool = pool;
    this.blockTokens = blockTokens;
    this.#events = events;
    this.keyOfBlock = new Array(pool.blockCount).fill(undefined);
    this.tokenIds = new Int32Array(pool.blockCount * blockTokens);
    this.tokenCounts = new Int32Array(pool.blockCount);
    this.positions = new Int32Array(pool.blockCount);
    this.#tiers = new Uint8Array(pool.blockCount);
  }

  /** Cached blocks whose memory was taken for something else, since the start. */
  get evictedBlocks(): number {
    return this.#evicted;
  }

  /** Free blocks whose content can still be found. */
  get cachedFreeCount(): number {
    return this.pool.shares.freeCount;
  }

  /** The key that the block is found under; undefined when it cannot be found. */
  keyOf(blockId: BlockId): BlockKey | undefined {
    return this.keyOfBlock[blockId];
  }

  /** The block that can be found under the key, whatever it holds. */
  blockOf(key: BlockKey): BlockId | undefined {
    return this.blockOfKey.get(key);
  }

  /** What a block that can be found holds. */
  contentOf(blockId: BlockId): BlockContent {
    const first = blockId * this.blockTokens;
    const tokenIds = this.tokenIds.slice(first, first + this.tokenCounts[blockId]);
    return { tokenIds, start: 0, end: tokenIds.length, position: this.positions[blockId], place: 0 };
  }

  /** What the block of a key was computed from; undefined: from nothing but its own chain, or it is not there. */
  derivationOf(key: BlockKey): Derivation | undefined {
    return this.#derivations.of(key);
  }

  /** Where a block that is found was brought from; "device": it was computed here. */
  tierOf(blockId: BlockId): KvTier {
    return kvTiers[this.#tiers[blockId]];
  }

  /** A block that was stored now was brought from a tier. */
  noteTier(blockId: BlockId, tier: KvTier): void {
    this.#tiers[blockId] = kvTiers.indexOf(tier);
  }

  /** How many keys resident blocks were computed from, for checks; 0 without such blocks. */
  get sourceCount(): number {
    return this.#derivations.sourceCount;
  }

  /** How many derivations are remembered, for checks. */
  get derivationCount(): number {
    return this.#derivations.count;
  }

  /** All keys and blocks that can be found, in no order. */
  resident(): IterableIterator<[BlockKey, BlockId]> {
    return this.blockOfKey.entries();
  }

  /** Whether a block can be found under the key, whatever it holds. */
  has(key: BlockKey): boolean {
    return this.blockOfKey.has(key);
  }

  /** The block that holds exactly this content under this key. */
  find(key: BlockKey, content: BlockContent): BlockId | undefined {
    const blockId = this.blockOfKey.get(key);
    return blockId !== undefined && this.holds(blockId, content) ? blockId : undefined;
  }

  /** A block for new content, with one reference; what it held is forgotten. undefined: all are live. */
  allocate(owner?: KvOwner): BlockId | undefined {
    const blockId = this.pool.take(owner);
    if (blockId === undefined) return undefined;
    if (this.unlink(blockId)) this.#evicted += 1;
    this.#dropSurplus(this.pool.shares.ownerOf(blockId));
    return blockId;
  }

  /** One more reference to a block that was found. */
  retain(blockId: BlockId): void {
    this.pool.retain(blockId);
  }

  /** Asks for a block in use to be kept for a time after its last use. @param retention index in retentionTimesMs */
  prolong(blockId: BlockId, retention: number): void {
    this.pool.shares.prolong(blockId, retention);
  }

  /** @throws Error when it was released more often than retained */
  release(blockId: BlockId): void {
    const owner = this.pool.shares.ownerOf(blockId);
    this.pool.release(blockId, this.keyOfBlock[blockId] !== undefined);
    this.#dropSurplus(owner);
  }

  /**
   * Makes a live, fully computed block findable. false: the key is taken, the block stays private.
   * @param previousKey what `key` was chained from
   * @param derivation what the block was computed from
   */
  store(
    blockId: BlockId,
    key: BlockKey,
    previousKey: BlockKey,
    content: BlockContent,
    derivation?: Derivation,
  ): boolean {
    if (this.blockOfKey.has(key)) return false;
    this.link(blockId, key, content);
    this.blockOfKey.set(key, blockId);
    this.#events.stored(key, previousKey, content.end - content.start);
    if (derivation !== undefined) this.#derivations.add(key, derivation);
    return true;
  }

  /**
   * Forgets these keys at once, and what was computed from them; those not resident are passed over.
   * @param owner number of the owner whose blocks are meant; undefined: everybody's
   */
  evict(keys: readonly BlockKey[], owner?: number): void {
    for (const key of keys) {
      if (owner === undefined) this.#pinnedKeys.delete(key);
      for (const gone of [key, ...this.#derivations.from(key)]) {
        const [blockId] = this.blocksOf(gone);
        if (blockId === undefined) continue;
        if (owner === undefined || this.pool.shares.ownerOf(blockId)?.number === owner) this.forget(blockId);
      }
    }
  }

  /** The blocks of these keys and of what was computed from them. */
  blocksFrom(keys: readonly BlockKey[]): BlockId[] {
    return keys.flatMap((key) => [key, ...this.#derivations.from(key)].flatMap((from) => this.blocksOf(from)));
  }

  /** Forgets what a block holds, in every block that holds it: it cannot be found any more. */
  forget(blockId: BlockId): void {
    this.drop(blockId);
  }

  /** Pins keys: their blocks, present and future, are evicted last among their owner's. Or unpins them. */
  pin(keys: readonly BlockKey[], pinned: boolean): void {
    for (const key of keys) {
      // Pinning more keys than there are blocks has no effect and takes memory.
      if (pinned && this.#pinnedKeys.size < this.pool.blockCount) this.#pinnedKeys.add(key);
      if (!pinned) this.#pinnedKeys.delete(key);
      for (const blockId of this.blocksOf(key)) this.pool.shares.pin(blockId, this.#pinnedKeys.has(key));
    }
  }

  /** All blocks of a key. */
  protected blocksOf(key: BlockKey): readonly BlockId[] {
    const blockId = this.blockOfKey.get(key);
    return blockId === undefined ? [] : [blockId];
  }

  protected link(blockId: BlockId, key: BlockKey, { tokenIds, start, end, position }: BlockContent): void {
    if (this.keyOfBlock[blockId] !== undefined) throw new Error(`block ${blockId} has a key already`);
    if (!this.pool.isLive(blockId)) throw new Error(`block ${blockId} is free, so it holds nothing to be found`);
    this.keyOfBlock[blockId] = key;
    for (let i = start; i < end; i++) this.tokenIds[blockId * this.blockTokens + i - start] = tokenIds[i];
    this.tokenCounts[blockId] = end - start;
    this.positions[blockId] = position;
    this.#tiers[blockId] = 0;
    if (this.#pinnedKeys.has(key)) this.pool.shares.pin(blockId, true);
  }

  /**
   * Forgets what this block alone holds; others of its key stay findable. A free block is used next, a live one is
   * freed when released.
   */
  protected drop(blockId: BlockId): void {
    if (this.unlink(blockId)) this.pool.demote(blockId);
  }

  protected unlink(blockId: BlockId): boolean {
    const key = this.keyOfBlock[blockId];
    if (key === undefined) return false;
    this.blockOfKey.delete(key);
    this.keyOfBlock[blockId] = undefined;
    this.#events.removed(key);
    this.#derivations.remove(key);
    return true;
  }

  protected holds(blockId: BlockId, { tokenIds, start, end, position }: BlockContent): boolean {
    if (this.tokenCounts[blockId] !== end - start || this.positions[blockId] !== position) return false;
    const base = blockId * this.blockTokens - start;
    for (let i = start; i < end; i++) if (this.tokenIds[base + i] !== tokenIds[i]) return false;
    return true;
  }

  /** Forgets what an owner keeps beyond its quota, the oldest first; blocks in use stay. */
  #dropSurplus(owner: OwnerAccount | undefined): void {
    if (owner === undefined || !owner.isOverQuota) return;
    for (let blockId = this.pool.shares.surplusOf(owner); blockId !== undefined; ) {
      this.drop(blockId);
      this.#evicted += 1;
      blockId = this.pool.shares.surplusOf(owner);
    }
  }
}
