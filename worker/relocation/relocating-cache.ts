/**
 * The cache where K is stored at absolute positions: a block's K is rotated as if its chain's position 0 stood at the
 * block's *place*. A run that needs it at another place has it moved there, or copied while others use it where it is.
 * So a key has one block for each place that it is used at. A copy that nobody uses any more is worth nothing while
 * there is another copy, so it is forgotten and its memory is used next.
 *
 * K is rounded again with every move: after n moves it is off by about sqrt(n + 1) times what storing it once costs (in
 * bfloat16 0.17% of its size, and 0.7% after 16 moves).
 * After `maxMoves` it is taken as lost at any other place, and computed anew there.
 */

import type { BlockPool } from "../cache/block-pool.ts";
import type { Derivation } from "../cache/derivations.ts";
import type { KvEventLog } from "../cache/kv-events.ts";
import { type BlockContent, PrefixCache } from "../cache/prefix-cache.ts";
import type { BlockId, BlockKey } from "../contract/units.ts";

/** After so many moves a K counts as lost at any other place. */
export const maxMoves = 16;

/** How published systems keep copies, for comparison. */
export interface RelocatingCacheOptions {
  /** Whether a copy that nobody uses any more stays until its memory is needed, as any other block does. */
  readonly keepsCopies: boolean;
  /** Moves after which K is taken as lost at other places; less than 255, or Infinity. */
  readonly maxMoves: number;
}

export class RelocatingCache extends PrefixCache {
  /** All blocks of a key that has more than one. */
  readonly #copies = new Map<BlockKey, BlockId[]>();
  readonly #places: Int32Array;
  readonly #moveCounts: Uint8Array;
  readonly #options: RelocatingCacheOptions;

  constructor(
    pool: BlockPool,
    blockTokens: number,
    events: KvEventLog,
    options: RelocatingCacheOptions = { keepsCopies: false, maxMoves },
  ) {
    super(pool, blockTokens, events);
    this.#options = options;
    this.#places = new Int32Array(pool.blockCount);
    this.#moveCounts = new Uint8Array(pool.blockCount);
  }

  placeOf(blockId: BlockId): number {
    return this.#places[blockId];
  }

  moveCountOf(blockId: BlockId): number {
    return this.#moveCounts[blockId];
  }

  tokenCountOf(blockId: BlockId): number {
    return this.tokenCounts[blockId];
  }

  override *resident(): IterableIterator<[BlockKey, BlockId]> {
    for (const key of this.blockOfKey.keys()) for (const blockId of this.blocksOf(key)) yield [key, blockId];
  }

  /** The block at the wanted place, or else the one that was moved least. */
  override find(key: BlockKey, content: BlockContent): BlockId | undefined {
    let best: BlockId | undefined;
    for (const blockId of this.blocksOf(key)) {
      if (!this.holds(blockId, content)) continue;
      if (this.#places[blockId] === content.place) return blockId;
      const moveCount = this.#moveCounts[blockId];
      if (moveCount < this.#options.maxMoves && (best === undefined || moveCount < this.#moveCounts[best]))
        best = blockId;
    }
    return best;
  }

  /** The key may be taken by the same content at other places. */
  override store(
    blockId: BlockId,
    key: BlockKey,
    previousKey: BlockKey,
    content: BlockContent,
    derivation?: Derivation,
  ): boolean {
    const others = [...this.blocksOf(key)];
    const same = others.filter((other) => this.holds(other, content));
    if (others.length > 0 && same.length === 0) return false;
    if (same.some((other) => this.#places[other] === content.place)) return false;
    if (others.length === 0) super.store(blockId, key, previousKey, content, derivation);
    else {
      this.link(blockId, key, content);
      this.#addCopy(key, blockId);
    }
    this.#places[blockId] = content.place;
    this.#moveCounts[blockId] = 0;
    if (!this.#options.keepsCopies) {
      for (const other of others) if (!this.pool.isLive(other)) this.drop(other);
    }
    return true;
  }

  /** The block's K is rotated to stand at another place. */
  move(blockId: BlockId, place: number, moveCount: number): void {
    this.#places[blockId] = place;
    this.#moveCounts[blockId] = Math.min(moveCount, 255);
  }

  /** `target`, live and without content, holds what `source` does, at a place of its own. */
  copy(source: BlockId, target: BlockId, place: number, moveCount: number): void {
    const key = this.keyOf(source);
    if (key === undefined) throw new Error(`block ${source} is copied and has no key`);
    const start = source * this.blockTokens;
    const end = start + this.tokenCounts[source];
    this.link(target, key, { tokenIds: this.tokenIds, start, end, position: this.positions[source], place });
    this.#addCopy(key, target);
    this.move(target, place, moveCount);
  }

  override release(blockId: BlockId): void {
    const key = this.keyOf(blockId);
    const isLast = key !== undefined && this.#copies.has(key) && this.pool.referenceCount(blockId) === 1;
    if (isLast && !this.#options.keepsCopies) this.unlink(blockId);
    super.release(blockId);
  }

  /** Forgets all copies of what a block holds. */
  override forget(blockId: BlockId): void {
    const key = this.keyOf(blockId);
    if (key === undefined) return;
    for (const copy of [...this.blocksOf(key)]) this.drop(copy);
  }

  protected override unlink(blockId: BlockId): boolean {
    const key = this.keyOf(blockId);
    const copies = key === undefined ? undefined : this.#copies.get(key);
    if (key === undefined || copies === undefined) return super.unlink(blockId);
    copies.splice(copies.indexOf(blockId), 1);
    this.blockOfKey.set(key, copies[0]);
    if (copies.length === 1) this.#copies.delete(key);
    this.keyOfBlock[blockId] = undefined;
    return true;
  }

  protected override blocksOf(key: BlockKey): readonly BlockId[] {
    return this.#copies.get(key) ?? super.blocksOf(key);
  }

  #addCopy(key: BlockKey, blockId: BlockId): void {
    this.#copies.getOrInsertComputed(key, () => [...this.blocksOf(key)]).push(blockId);
  }
}
