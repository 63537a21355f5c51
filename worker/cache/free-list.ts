/**
 * A free list: blocks that nobody refers to, in the order in which their memory will be used again. A doubly linked
 * list over two Int32Arrays, so that taking a block out of the middle (a hit on a free block) is O(1). Lists of one
 * pool share the arrays, since a block is in one list at most, so a list for each tenant takes no more memory.
 */
import type { BlockId } from "../contract/units.ts";

const none = -1;
/** Says in `next` that a block is in no list. */
const unlinked = -2;

/** What the lists of one pool share. */
export class FreeLinks {
  readonly next: Int32Array;
  readonly previous: Int32Array;

  constructor(blockCount: number) {
    this.next = new Int32Array(blockCount).fill(unlinked);
    this.previous = new Int32Array(blockCount).fill(unlinked);
  }

  /** Whether the block is in a list. */
  has(blockId: BlockId): boolean {
    return this.next[blockId] !== unlinked;
  }
}

export class FreeList {
  readonly #links: FreeLinks;
  #first = none;
  #last = none;
  #count = 0;

  constructor(links: FreeLinks) {
    this.#links = links;
  }

  get length(): number {
    return this.#count;
  }

  /** The block used next. */
  get front(): BlockId | undefined {
    return this.#first === none ? undefined : (this.#first as BlockId);
  }

  /** To be used next. */
  pushFront(blockId: BlockId): void {
    this.#link(none, blockId, this.#first);
  }

  /** To be used last. */
  pushBack(blockId: BlockId): void {
    this.#link(this.#last, blockId, none);
  }

  /** A block of this list. */
  remove(blockId: BlockId): void {
    if (!this.#links.has(blockId)) throw new Error(`block ${blockId} is not in the free list`);
    const { next, previous } = this.#links;
    const [before, after] = [previous[blockId], next[blockId]];
    if (before === none) this.#first = after;
    else next[before] = after;
    if (after === none) this.#last = before;
    else previous[after] = before;
    next[blockId] = unlinked;
    previous[blockId] = unlinked;
    this.#count -= 1;
  }

  /** Block ids from the one used next to the one used last. */
  *[Symbol.iterator](): IterableIterator<BlockId> {
    for (let at = this.#first; at !== none; at = this.#links.next[at]) yield at as BlockId;
  }

  #link(before: number, blockId: BlockId, after: number): void {
    if (this.#links.has(blockId)) throw new Error(`block ${blockId} is in a free list already`);
    const { next, previous } = this.#links;
    next[blockId] = after;
    previous[blockId] = before;
    if (before === none) this.#first = blockId;
    else next[before] = blockId;
    if (after === none) this.#last = blockId;
    else previous[after] = blockId;
    this.#count += 1;
  }
}
