/**
 * Reference counts and the free list. A block is *live* while its count is above zero, otherwise it is in
 * the free list: live + free = blockCount. What a block holds is not known here.
 */
import type { BlockId } from "../contract/units.ts";
import { FreeList } from "./free-list.ts";

export class BlockPool {
  readonly blockCount: number;
  private readonly referenceCounts: Int32Array;
  private readonly freeList: FreeList;

  constructor(blockCount: number) {
    if (!Number.isInteger(blockCount) || blockCount < 1)
      throw new RangeError(`blockCount is ${blockCount}, not 1 or more`);
    this.blockCount = blockCount;
    this.referenceCounts = new Int32Array(blockCount);
    this.freeList = new FreeList(blockCount);
    for (let blockId = 0; blockId < blockCount; blockId++) this.freeList.pushBack(blockId as BlockId);
  }

  /** Blocks that can be taken, those with cached content among them. */
  get availableCount(): number {
    return this.freeList.length;
  }

  referenceCount(blockId: BlockId): number {
    return this.referenceCounts[blockId];
  }

  isLive(blockId: BlockId): boolean {
    return this.referenceCounts[blockId] > 0;
  }

  /** The block whose memory is used next, with one reference; undefined when every block is live. */
  take(): BlockId | undefined {
    const blockId = this.freeList.popFront();
    if (blockId !== undefined) this.referenceCounts[blockId] = 1;
    return blockId;
  }

  retain(blockId: BlockId): void {
    if (this.referenceCounts[blockId] === 0) this.freeList.remove(blockId);
    this.referenceCounts[blockId] += 1;
  }

  /** @param cached the content may be asked for again: the block is used last, not next. */
  release(blockId: BlockId, cached: boolean): void {
    if (this.referenceCounts[blockId] === 0) throw new Error(`block ${blockId} was released more often than retained`);
    this.referenceCounts[blockId] -= 1;
    if (this.referenceCounts[blockId] > 0) return;
    if (cached) this.freeList.pushBack(blockId);
    else this.freeList.pushFront(blockId);
  }

  /** The content of this block was forgotten: if it is free, its memory is used next. */
  demote(blockId: BlockId): void {
    if (this.isLive(blockId)) return;
    this.freeList.remove(blockId);
    this.freeList.pushFront(blockId);
  }

  /** Free blocks from the one used next to the one used last: all of them, for tests and for checks. */
  freeBlocks(): BlockId[] {
    return [...this.freeList];
  }
}
