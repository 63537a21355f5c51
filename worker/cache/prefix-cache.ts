/**
 * blockKey -> block, over the pool. A released block stays findable until its memory is needed (lazy LRU);
 * every store and every removal is an event. A key decides alone whose KV it is, so on a hit the tokens are
 * compared all the same: a collision costs a recomputation, never another tenant's KV.
 */
import type { BlockId, BlockKey } from "../contract/units.ts";
import type { BlockPool } from "./block-pool.ts";
import { type Derivation, Derivations } from "./derivations.ts";
import type { KvEventLog } from "./kv-events.ts";

/**
 * What one block holds: tokens start..end-1 of `tokenIds`, the first of them at chain position `position`. The chain's
 * position 0 stands at `place` in the positions that its K is turned by (relocating-cache.ts); 0 where K is never moved.
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
  private readonly events: KvEventLog;
  private readonly derivations = new Derivations();
  private evicted = 0;
  private freeWithKey = 0;

  constructor(pool: BlockPool, blockTokens: number, events: KvEventLog) {
    this.pool = pool;
    this.blockTokens = blockTokens;
    this.events = events;
    this.keyOfBlock = new Array(pool.blockCount).fill(undefined);
    this.tokenIds = new Int32Array(pool.blockCount * blockTokens);
    this.tokenCounts = new Int32Array(pool.blockCount);
    this.positions = new Int32Array(pool.blockCount);
  }

  /** Cached blocks whose memory was taken for something else, since the start. */
  get evictedBlocks(): number {
    return this.evicted;
  }

  /** Free blocks whose content can still be found. */
  get cachedFreeCount(): number {
    return this.freeWithKey;
  }

  keyOf(blockId: BlockId): BlockKey | undefined {
    return this.keyOfBlock[blockId];
  }

  /** Keys that resident blocks were computed from, for checks: none without such blocks. */
  get sourceCount(): number {
    return this.derivations.sourceCount;
  }

  resident(): IterableIterator<[BlockKey, BlockId]> {
    return this.blockOfKey.entries();
  }

  /** The block that holds exactly this content under this key. */
  find(key: BlockKey, content: BlockContent): BlockId | undefined {
    const blockId = this.blockOfKey.get(key);
    return blockId !== undefined && this.holds(blockId, content) ? blockId : undefined;
  }

  /** A block for new content, with one reference; what it held is forgotten. undefined: all are live. */
  allocate(): BlockId | undefined {
    const blockId = this.pool.take();
    if (blockId === undefined || !this.unlink(blockId)) return blockId;
    this.evicted += 1;
    this.freeWithKey -= 1;
    return blockId;
  }

  retain(blockId: BlockId): void {
    const hasKey = this.keyOfBlock[blockId] !== undefined;
    if (hasKey && !this.pool.isLive(blockId)) this.freeWithKey -= 1;
    this.pool.retain(blockId);
  }

  release(blockId: BlockId): void {
    const hasKey = this.keyOfBlock[blockId] !== undefined;
    this.pool.release(blockId, hasKey);
    if (hasKey && !this.pool.isLive(blockId)) this.freeWithKey += 1;
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
    this.events.stored(key, previousKey, content.end - content.start);
    if (derivation !== undefined) this.derivations.add(key, derivation);
    return true;
  }

  /** Forgets these keys at once, and what was computed from them; those not resident are passed over. */
  evict(keys: readonly BlockKey[]): void {
    for (const key of keys) {
      for (const gone of [key, ...this.derivations.from(key)]) {
        const blockId = this.blockOfKey.get(gone);
        if (blockId !== undefined) this.forget(blockId);
      }
    }
  }

  /** Forgets what a block holds: a free block is used next, a live one is freed when released. */
  forget(blockId: BlockId): void {
    if (!this.unlink(blockId) || this.pool.isLive(blockId)) return;
    this.freeWithKey -= 1;
    this.pool.demote(blockId);
  }

  protected link(blockId: BlockId, key: BlockKey, { tokenIds, start, end, position }: BlockContent): void {
    if (this.keyOfBlock[blockId] !== undefined) throw new Error(`block ${blockId} has a key already`);
    if (!this.pool.isLive(blockId)) throw new Error(`block ${blockId} is free, so it holds nothing to be found`);
    this.keyOfBlock[blockId] = key;
    for (let i = start; i < end; i++) this.tokenIds[blockId * this.blockTokens + i - start] = tokenIds[i];
    this.tokenCounts[blockId] = end - start;
    this.positions[blockId] = position;
  }

  protected unlink(blockId: BlockId): boolean {
    const key = this.keyOfBlock[blockId];
    if (key === undefined) return false;
    this.blockOfKey.delete(key);
    this.keyOfBlock[blockId] = undefined;
    this.events.removed(key);
    this.derivations.remove(key);
    return true;
  }

  protected holds(blockId: BlockId, { tokenIds, start, end, position }: BlockContent): boolean {
    if (this.tokenCounts[blockId] !== end - start || this.positions[blockId] !== position) return false;
    const base = blockId * this.blockTokens - start;
    for (let i = start; i < end; i++) if (this.tokenIds[base + i] !== tokenIds[i]) return false;
    return true;
  }
}
