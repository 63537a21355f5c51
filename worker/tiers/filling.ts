/** Puts what one file has into the pool: block after block is read, verified, stored and released. */
import type { BlockMover } from "../backend/backend.ts";
import { Derivation } from "../cache/derivations.ts";
import type { PrefixCache } from "../cache/prefix-cache.ts";
import { runBlockKeys } from "../contract/block-key.ts";
import type { KvObject } from "../contract/kv-object.ts";
import type { KvOwner } from "../contract/owners.ts";
import type { BlockId, BlockKey } from "../contract/units.ts";
import { contentOf } from "./keeps.ts";
import { Damaged, type ObjectShape, type Turn } from "./object-file.ts";
import { damagedBlock, type ObjectReader, type Placed, type ReadBlocks } from "./object-reader.ts";

export interface FillingParts {
  readonly object: KvObject;
  readonly owner: KvOwner;
  readonly shape: ObjectShape;
  readonly mover: BlockMover;
  readonly cache: PrefixCache;
  /** Whether one more block of the pool may be taken. */
  readonly mayTake: () => boolean;
  /** A block was stored and released. */
  readonly brought: (key: BlockKey, blockId: BlockId) => void;
}

/** What came of a load: bytes of blocks that were stored, and whether all of the object is there. */
export interface Loaded {
  readonly bytes: number;
  readonly isWhole: boolean;
}

const nothing: Placed = { filled: 0 };

export class Filling {
  readonly #parts: FillingParts;
  readonly #tokenIds: Int32Array;
  readonly #keys: readonly BlockKey[];
  readonly #derivation: Derivation;

  /** @throws Damaged when the tokens are not the object's */
  constructor(tokenIds: Int32Array, parts: FillingParts) {
    const { object, shape } = parts;
    this.#parts = parts;
    this.#tokenIds = tokenIds;
    this.#keys = runBlockKeys(object.previousKey, tokenIds, shape.blockTokens, true);
    if (this.#keys.at(-1) !== object.lastKey) throw new Damaged("the tokens are another chain's");
    this.#derivation = new Derivation([object.rootKey]);
  }

  /** @throws Damaged, or what the system says */
  async from(reader: ObjectReader, turn: Turn): Promise<Loaded> {
    const { mover, shape } = this.#parts;
    const count = this.#keys.length;
    let bytes = 0;
    for (let index = 0; index < count; ) {
      if (this.#isThere(index)) {
        index += 1;
        continue;
      }
      const { placed, isStuck } = this.#place(index, await reader.blocks(index, count - index, mover, turn));
      bytes += placed * shape.blocks.bytes;
      index += placed;
      if (isStuck) return { bytes, isWhole: false };
    }
    return { bytes, isWhole: true };
  }

  #isThere(index: number): boolean {
    return this.#parts.cache.find(this.#keys[index], this.#contentOf(index)) !== undefined;
  }

  #contentOf(index: number) {
    const { object, shape } = this.#parts;
    return contentOf(this.#tokenIds, object.position, index, shape.blockTokens);
  }

  /**
   * Takes blocks for those that were read, fills, stores and releases them. Nothing else runs meanwhile.
   * @returns how many, until one that is there already or is not at hand any more; or until no block may be taken, and it
   *   is stuck
   * @throws Damaged
   */
  #place(first: number, { count, place }: ReadBlocks): { readonly placed: number; readonly isStuck: boolean } {
    const { cache, object, owner, mayTake, brought } = this.#parts;
    const before = (index: number): BlockKey => (index === 0 ? object.previousKey : this.#keys[index - 1]);
    const blockIds: BlockId[] = [];
    while (blockIds.length < count && !this.#isThere(first + blockIds.length)) {
      const blockId = mayTake() ? cache.allocate(owner) : undefined;
      if (blockId === undefined) break;
      blockIds.push(blockId);
    }
    // Taking blocks may have evicted what these are chained from.
    const isChained = before(first) === object.rootKey || cache.has(before(first));
    const isWanted = isChained && blockIds.length > 0;
    const { filled, end } = isWanted ? place(blockIds) : nothing;
    for (const [offset, blockId] of blockIds.slice(0, filled).entries()) {
      const index = first + offset;
      const isStored = cache.store(blockId, this.#keys[index], before(index), this.#contentOf(index), this.#derivation);
      if (isStored) cache.noteTier(blockId, "disk");
    }
    // The last one first, so that chains are evicted from their tails.
    for (const [offset, blockId] of [...blockIds.entries()].toReversed()) {
      cache.release(blockId);
      if (offset < filled) brought(this.#keys[first + offset], blockId);
    }
    if (end === "damaged") throw damagedBlock(first + filled);
    const isStuck = end === undefined && filled < count && !this.#isThere(first + filled);
    return { placed: filled, isStuck };
  }
}
