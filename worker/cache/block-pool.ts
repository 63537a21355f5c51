/**
 * Reference counts and free blocks. A block is *live* while its count is above zero, otherwise it is free:
 * live + free = blockCount. The pool does not know what a block holds, only whether it holds something: a free block
 * with content belongs to its owner (shares.ts), and free blocks without content are used before it.
 */
import { type KvOwner, nobody } from "../contract/owners.ts";
import type { BlockId } from "../contract/units.ts";
import { FreeLinks, FreeList } from "./free-list.ts";
import { Shares } from "./shares.ts";

export class BlockPool {
  readonly blockCount: number;
  readonly shares: Shares;
  readonly #referenceCounts: Int32Array;
  /** Free blocks that hold nothing. */
  readonly #empty: FreeList;

  /** @param clock milliseconds from any fixed point, never falling */
  constructor(blockCount: number, clock: () => number = () => 0) {
    if (!Number.isInteger(blockCount) || blockCount < 1)
      throw new RangeError(`blockCount is ${blockCount}, not 1 or more`);
    this.blockCount = blockCount;
    this.#referenceCounts = new Int32Array(blockCount);
    const links = new FreeLinks(blockCount);
    this.shares = new Shares(blockCount, links, clock);
    this.#empty = new FreeList(links);
    for (let blockId = 0; blockId < blockCount; blockId++) this.#empty.pushBack(blockId as BlockId);
  }

  /** Blocks that can be taken, those with cached content among them. */
  get availableCount(): number {
    return this.#empty.length + this.shares.freeCount;
  }

  referenceCount(blockId: BlockId): number {
    return this.#referenceCounts[blockId];
  }

  isLive(blockId: BlockId): boolean {
    return this.#referenceCounts[blockId] > 0;
  }

  /** The block whose memory is used next, with one reference; undefined when every block is live. */
  take(owner: KvOwner = nobody): BlockId | undefined {
    const blockId = this.#empty.front ?? this.shares.next(owner);
    if (blockId === undefined) return undefined;
    this.#withdraw(blockId);
    this.#referenceCounts[blockId] = 1;
    this.shares.give(blockId, owner);
    return blockId;
  }

  /** Adds a reference. A free block may get one too, when its content is used again. */
  retain(blockId: BlockId): void {
    if (this.#referenceCounts[blockId] === 0) {
      if (this.shares.ownerOf(blockId) !== undefined) this.shares.use(blockId);
      else {
        this.#empty.remove(blockId);
        this.shares.give(blockId, nobody);
      }
    }
    this.#referenceCounts[blockId] += 1;
  }

  /** @param cached the content may be asked for again: the block is used last, not next. */
  release(blockId: BlockId, cached: boolean): void {
    if (this.#referenceCounts[blockId] === 0) throw new Error(`block ${blockId} was released more often than retained`);
    this.#referenceCounts[blockId] -= 1;
    if (this.#referenceCounts[blockId] > 0) return;
    if (cached) {
      this.shares.free(blockId);
      return;
    }
    this.shares.disown(blockId, true);
    this.#empty.pushFront(blockId);
  }

  /** The content of this block was forgotten. When the block is free, its memory is used next. */
  demote(blockId: BlockId): void {
    if (this.isLive(blockId)) return;
    this.#withdraw(blockId);
    this.#empty.pushFront(blockId);
  }

  /** Free blocks, those that hold nothing first; of one owner in the order of their use. For tests and for checks. */
  freeBlocks(): BlockId[] {
    return [...this.#empty, ...this.shares.freeInOrder()];
  }

  /** Takes a block out of the list of free blocks that it stands in. */
  #withdraw(blockId: BlockId): void {
    if (this.shares.ownerOf(blockId) === undefined) this.#empty.remove(blockId);
    else this.shares.disown(blockId, false);
  }
}
