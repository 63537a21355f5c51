/**
 * Knows the owner of each block, and decides whose memory is used first. An owner is a tenant, known by a small number.
 * A block belongs to its owner from when it is taken until its content is forgotten.
 *
 *   share   every owner may hold as many blocks as the others: the level at which all holdings, each cut off there, add
 *           up to 7/8 of the pool. Owners below the level do not use up their part, which large owners can hold
 *   floor   the same level for half of the pool: blocks that an owner keeps whatever the others ask for
 *
 * Memory is taken from an owner over its share, then from an owner over its floor, each time the block that was used
 * longest ago; then pinned blocks of these owners; then the taker's own blocks. An owner below its floor loses blocks
 * only to a single request that fits nowhere else (engine/admission.ts). An owner with a quota keeps no more than its
 * quota.
 *
 * Among one owner's blocks those go first that nobody asked to retain, or whose time of retention is over; then retained
 * blocks, then pinned ones. Memory is bounded: an owner without blocks is forgotten.
 */
import { type KvOwner, retentionTimesMs } from "../contract/owners.ts";
import type { BlockId } from "../contract/units.ts";
import { type FreeLinks, FreeList } from "./free-list.ts";

const sharePart = 7 / 8;
const floorPart = 1 / 2;
/** The levels are computed anew after this part of the pool has been taken. */
const lookPart = 1 / 256;
/**
 * One owner loses so many blocks in a row at most, because finding the next owner to lose takes a look at all owners.
 */
const mostInRow = 16;
/** Lists of an owner's free blocks: one for each time of retention, 0 first, and pinned ones. */
const pinnedList = retentionTimesMs.length;
/** Ranks of victims: over the share, over the floor, pinned, the taker's own, others' below their floor. */
const [overShare, overFloor, pinnedOnly, own, protectedRank, nothing] = [0, 1, 2, 3, 4, 5];

export interface OwnerAccount {
  readonly number: number;
  /** Blocks in use (`live`), and blocks in use or free with content (`held`). */
  readonly liveBlocks: number;
  readonly heldBlocks: number;
  readonly quotaBlocks: number;
  readonly isOverQuota: boolean;
}

class Account implements OwnerAccount {
  readonly number: number;
  readonly lists: readonly FreeList[];
  quotaBlocks = Number.POSITIVE_INFINITY;
  liveBlocks = 0;
  heldBlocks = 0;

  constructor(number: number, links: FreeLinks) {
    this.number = number;
    this.lists = Array.from({ length: pinnedList + 1 }, () => new FreeList(links));
  }

  get freeBlocks(): number {
    return this.heldBlocks - this.liveBlocks;
  }

  get isOverQuota(): boolean {
    return this.heldBlocks > this.quotaBlocks;
  }

  get onlyPinnedFree(): boolean {
    return this.lists[pinnedList].length === this.freeBlocks;
  }
}

export class Shares {
  readonly #blockCount: number;
  readonly #clock: () => number;
  readonly #takesBetweenLooks: number;
  readonly #links: FreeLinks;
  readonly #byNumber = new Map<number, Account>();
  readonly #ofBlock: (Account | undefined)[];
  /** Index in retentionTimesMs, and 1 for a pin. */
  readonly #retention: Uint8Array;
  readonly #pinned: Uint8Array;
  readonly #freedAtMs: Float64Array;
  #shareBlocks = Number.POSITIVE_INFINITY;
  #floorBlocks = Number.POSITIVE_INFINITY;
  #takesUntilLook = 0;
  #takesOfVictim = 0;
  #victim: Account | undefined;
  #freeBlocks = 0;

  constructor(blockCount: number, links: FreeLinks, clock: () => number) {
    this.#blockCount = blockCount;
    this.#clock = clock;
    this.#links = links;
    this.#takesBetweenLooks = Math.ceil(blockCount * lookPart);
    this.#ofBlock = new Array(blockCount).fill(undefined);
    this.#retention = new Uint8Array(blockCount);
    this.#pinned = new Uint8Array(blockCount);
    this.#freedAtMs = new Float64Array(blockCount);
  }

  /** Free blocks that somebody owns. */
  get freeCount(): number {
    return this.#freeBlocks;
  }

  /** The block's owner; undefined when the block is free and holds nothing. */
  ownerOf(blockId: BlockId): OwnerAccount | undefined {
    return this.#ofBlock[blockId];
  }

  /** The accounts of all owners that hold a block. */
  accounts(): IterableIterator<OwnerAccount> {
    return this.#byNumber.values();
  }

  /** A block in use that nobody owns is this owner's. */
  give(blockId: BlockId, { number, quotaBlocks = Number.POSITIVE_INFINITY }: KvOwner): void {
    const account = this.#byNumber.getOrInsertComputed(number, () => new Account(number, this.#links));
    account.quotaBlocks = quotaBlocks;
    account.heldBlocks += 1;
    account.liveBlocks += 1;
    this.#ofBlock[blockId] = account;
    this.#retention[blockId] = 0;
    this.#pinned[blockId] = 0;
    this.#takesUntilLook -= 1;
    this.#takesOfVictim -= 1;
  }

  /** Nobody owns the block any more. @param live it is in use, or was until now */
  disown(blockId: BlockId, live: boolean): void {
    const account = this.#accountOf(blockId);
    if (live) account.liveBlocks -= 1;
    else this.#removeFree(blockId, account);
    account.heldBlocks -= 1;
    this.#ofBlock[blockId] = undefined;
    if (account.heldBlocks > 0) return;
    this.#byNumber.delete(account.number);
    if (this.#victim === account) this.#victim = undefined;
  }

  /** A free block is in use again. */
  use(blockId: BlockId): void {
    const account = this.#accountOf(blockId);
    this.#removeFree(blockId, account);
    account.liveBlocks += 1;
    if (this.#expiresAtMs(blockId) <= this.#clock()) this.#retention[blockId] = 0;
  }

  /** A block that was in use is free, with content. Its time of retention begins anew. */
  free(blockId: BlockId): void {
    const account = this.#accountOf(blockId);
    account.liveBlocks -= 1;
    this.#freedAtMs[blockId] = this.#clock();
    this.#addFree(blockId, account);
  }

  /** When a free block was let go, by the pool's clock. */
  freedAtMs(blockId: BlockId): number {
    return this.#freedAtMs[blockId];
  }

  /** Asks for the block, in use, to be retained when it is free; the longest time that was asked for counts. */
  prolong(blockId: BlockId, retention: number): void {
    this.#retention[blockId] = Math.max(this.#retention[blockId], retention);
  }

  /** A pinned block goes last of its owner's. @throws Error when nobody owns it */
  pin(blockId: BlockId, pinned: boolean): void {
    const account = this.#accountOf(blockId);
    const isFree = this.#links.has(blockId);
    if (isFree) this.#removeFree(blockId, account);
    this.#pinned[blockId] = pinned ? 1 : 0;
    // It goes behind blocks that were freed since. Lists are in the order of time, and this breaks it hardly ever.
    if (isFree) this.#addFree(blockId, account);
  }

  /** The owned free block whose memory is used next; it stays in its list. */
  next({ number, quotaBlocks = Number.POSITIVE_INFINITY }: KvOwner): BlockId | undefined {
    const taker = this.#byNumber.get(number);
    const isFull = taker !== undefined && taker.freeBlocks > 0 && taker.heldBlocks >= quotaBlocks;
    const victim = isFull ? taker : this.#victimFor(number);
    return victim && this.#frontOf(victim);
  }

  /** A free block that the owner keeps beyond its quota. */
  surplusOf({ number, isOverQuota }: OwnerAccount): BlockId | undefined {
    const account = isOverQuota ? this.#byNumber.get(number) : undefined;
    return account && this.#frontOf(account);
  }

  /** Free blocks that lie below other owners' floors; for undefined, below anybody's. */
  protectedFrom(number: number | undefined): number {
    this.#look();
    let blocks = 0;
    for (const account of this.#byNumber.values()) {
      if (account.number === number) continue;
      blocks += Math.max(0, Math.min(account.heldBlocks, Math.floor(this.#floorBlocks)) - account.liveBlocks);
    }
    return blocks;
  }

  /** What `protectedFrom` is at most. */
  get mostProtected(): number {
    return Math.floor(this.#blockCount * floorPart);
  }

  /** Owners one after the other, of each the free blocks in order. For tests and for checks. */
  *freeInOrder(): IterableIterator<BlockId> {
    for (const { lists } of this.#byNumber.values()) for (const list of lists) yield* list;
  }

  #accountOf(blockId: BlockId): Account {
    const account = this.#ofBlock[blockId];
    if (account === undefined) throw new Error(`block ${blockId} has no owner`);
    return account;
  }

  #listOf(blockId: BlockId, { lists }: Account): FreeList {
    return lists[this.#pinned[blockId] === 1 ? pinnedList : this.#retention[blockId]];
  }

  #addFree(blockId: BlockId, account: Account): void {
    this.#listOf(blockId, account).pushBack(blockId);
    this.#freeBlocks += 1;
  }

  #removeFree(blockId: BlockId, account: Account): void {
    this.#listOf(blockId, account).remove(blockId);
    this.#freeBlocks -= 1;
  }

  #expiresAtMs(blockId: BlockId): number {
    return this.#freedAtMs[blockId] + retentionTimesMs[this.#retention[blockId]];
  }

  /** Of an owner's free blocks the one to go first. Each list is in the order of time, so its first is its oldest. */
  #frontOf({ lists }: Account): BlockId | undefined {
    const nowMs = this.#clock();
    let oldest: BlockId | undefined;
    let soonest: BlockId | undefined;
    for (let list = 0; list < pinnedList; list++) {
      const front = lists[list].front;
      if (front === undefined) continue;
      if (list === 0 || this.#expiresAtMs(front) <= nowMs) {
        if (oldest === undefined || this.#freedAtMs[front] < this.#freedAtMs[oldest]) oldest = front;
      } else if (soonest === undefined || this.#expiresAtMs(front) < this.#expiresAtMs(soonest)) soonest = front;
    }
    return oldest ?? soonest ?? lists[pinnedList].front;
  }

  #victimFor(taker: number): Account | undefined {
    const victim = this.#victim;
    if (victim !== undefined && this.#takesOfVictim > 0 && this.#rankOf(victim, taker) < pinnedOnly) return victim;
    this.#look();
    this.#takesOfVictim = Math.min(mostInRow, this.#takesBetweenLooks);
    let best: { readonly account: Account; readonly rank: number; readonly freedAtMs: number } | undefined;
    for (const account of this.#byNumber.values()) {
      const rank = this.#rankOf(account, taker);
      if (rank === nothing || (best !== undefined && rank > best.rank)) continue;
      const front = this.#frontOf(account);
      const freedAtMs = front === undefined ? 0 : this.#freedAtMs[front];
      if (best === undefined || rank < best.rank || freedAtMs < best.freedAtMs) best = { account, rank, freedAtMs };
    }
    this.#victim = best?.account;
    return this.#victim;
  }

  #rankOf(account: Account, taker: number): number {
    if (account.freeBlocks === 0) return nothing;
    if (account.heldBlocks <= this.#floorBlocks) return account.number === taker ? own : protectedRank;
    if (account.onlyPinnedFree) return pinnedOnly;
    return account.heldBlocks > this.#shareBlocks ? overShare : overFloor;
  }

  /** Computes share and floor from what all owners hold. */
  #look(): void {
    if (this.#takesUntilLook > 0) return;
    this.#takesUntilLook = this.#takesBetweenLooks;
    const held = Float64Array.from(this.#byNumber.values(), ({ heldBlocks }) => heldBlocks).sort();
    this.#shareBlocks = levelOf(held, this.#blockCount * sharePart);
    this.#floorBlocks = levelOf(held, this.#blockCount * floorPart);
  }
}

/**
 * The level to cut amounts at, which stand in rising order, so that they add up to `total`; Infinity when they are
 * less.
 */
export function levelOf(rising: Float64Array, total: number): number {
  let rest = total;
  for (let index = 0; index < rising.length; index++) {
    const level = rest / (rising.length - index);
    if (rising[index] > level) return level;
    rest -= rising[index];
  }
  return Number.POSITIVE_INFINITY;
}
