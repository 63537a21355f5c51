/**
 * The free list: blocks nobody refers to, in the order their memory will be used again. A doubly linked
 * list over two Int32Arrays, so that taking a block out of the middle (a hit on a free block) is O(1).
 * Index `blockCount` is the sentinel; `unlinked` in `next` says that a block is not in the list.
 */
import type { BlockId } from "../contract/units.ts";

const unlinked = -1;

export class FreeList {
  private readonly next: Int32Array;
  private readonly previous: Int32Array;
  private readonly sentinel: number;
  private count = 0;

  constructor(blockCount: number) {
    this.sentinel = blockCount;
    this.next = new Int32Array(blockCount + 1).fill(unlinked);
    this.previous = new Int32Array(blockCount + 1).fill(unlinked);
    this.next[this.sentinel] = this.sentinel;
    this.previous[this.sentinel] = this.sentinel;
  }

  get length(): number {
    return this.count;
  }

  has(blockId: BlockId): boolean {
    return this.next[blockId] !== unlinked;
  }

  /** To be used next. */
  pushFront(blockId: BlockId): void {
    this.linkAfter(this.sentinel, blockId);
  }

  /** To be used last. */
  pushBack(blockId: BlockId): void {
    this.linkAfter(this.previous[this.sentinel], blockId);
  }

  popFront(): BlockId | undefined {
    if (this.count === 0) return undefined;
    const blockId = this.next[this.sentinel] as BlockId;
    this.remove(blockId);
    return blockId;
  }

  remove(blockId: BlockId): void {
    if (!this.has(blockId)) throw new Error(`block ${blockId} is not in the free list`);
    this.next[this.previous[blockId]] = this.next[blockId];
    this.previous[this.next[blockId]] = this.previous[blockId];
    this.next[blockId] = unlinked;
    this.previous[blockId] = unlinked;
    this.count -= 1;
  }

  /** Block ids from the one used next to the one used last. */
  *[Symbol.iterator](): IterableIterator<BlockId> {
    for (let at = this.next[this.sentinel]; at !== this.sentinel; at = this.next[at]) yield at as BlockId;
  }

  private linkAfter(before: number, blockId: BlockId): void {
    if (this.has(blockId)) throw new Error(`block ${blockId} is in the free list already`);
    const after = this.next[before];
    this.next[before] = blockId;
    this.previous[blockId] = before;
    this.next[blockId] = after;
    this.previous[after] = blockId;
    this.count += 1;
  }
}
