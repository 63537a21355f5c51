/**
 * One run of a request's plan and how far it is. Ranges in a run, in tokens:
 *
 *   0 ......... settled ......... computed ......... tokenCount
 *   [hit and computed: in blocks)[in flight        )[to compute )
 *   blocks cover [0, blocks.length * blockTokens), so the last one may be partly written
 *
 * Between steps all that is computed is settled, unless the next step has begun already. What is planned next goes
 * by `computed`, what others may find and what is reported by `settled`.
 * An open run grows at its end by what is generated, so prefill, decode and the recomputation after a
 * preemption are one thing: compute [computed, tokenCount).
 * The KV of a row that chose what it read (sparse decoding) is approximate, and so is what comes after it until all of
 * it is computed anew. Only the first `exactTokens` of those settled get keys.
 */

import { Blending } from "../blend/blending.ts";
import { Derivation } from "../cache/derivations.ts";
import type { BlockContent, PrefixCache } from "../cache/prefix-cache.ts";
import { nextBlockKey } from "../contract/block-key.ts";
import type { BlendReport, PlanRun } from "../contract/messages.ts";
import { type KvOwner, nobody } from "../contract/owners.ts";
import { fartherTier } from "../contract/tiers.ts";
import { type BlockId, type BlockKey, blockCountForTokens } from "../contract/units.ts";
import { RunUsage } from "./reports.ts";

/** The segments of `PlanRun.sees` in blocks: fixed once the runs seen are complete, so built once a run. */
export interface SeenSegments {
  /** [S] where a segment's blocks begin in blockIds. */
  readonly blockStarts: Int32Array;
  readonly firstTokens: Int32Array;
  /** The positions by which the stored K of each segment's first token is rotated. */
  readonly positions: Int32Array;
  readonly tokenCounts: Int32Array;
  readonly offsets: Int32Array;
  readonly blockIds: Int32Array;
}

export interface RunDetail {
  readonly place?: number | undefined;
  /** Of the run (cache/sources.ts). */
  readonly sources?: readonly BlockKey[];
  readonly owner?: KvOwner | undefined;
  readonly retention?: number;
}

export class Run {
  readonly plan: PlanRun;
  /** Where the chain's position 0 stands in the positions that K is stored at (relocation.ts); 0 unless K is moved. */
  readonly place: number;
  /** The position that the first token's K is stored at. */
  readonly firstPosition: number;
  /** Whom its blocks are counted for. */
  readonly owner: KvOwner;
  /** Index in retentionTimesMs. */
  readonly #retention: number;
  /** Goes on with generated tokens; false from `close` on. */
  open: boolean;
  /** Prompt tokens, then (open run) generated ones; only the first `tokenCount` count. */
  tokenIds: Int32Array;
  tokenCount: number;
  readonly blocks: BlockId[] = [];
  /** Blocks of what the plan sees, each segment's its own. */
  readonly seenBlockCount: number;
  /** Tokens of what the plan sees. */
  readonly seenTokenCount: number;
  computedTokens = 0;
  settledTokens = 0;
  /** Settled tokens before the first whose KV is approximate; and the same once the steps in flight are done. */
  exactTokens = 0;
  begunExactTokens = 0;
  /** The blocks and offsets of `plan.sees`; made when first needed, dropped with the blocks. */
  seen: SeenSegments | undefined;
  /** Progress of a blended run that is not complete yet; meanwhile `computedTokens` counts the found tokens only. */
  blending: Blending | undefined;
  /** Whether blocks are looked up and kept under keys. */
  keyed: boolean;

  readonly usage: RunUsage;
  /** Report of the first blending; a preempted run that is blended again keeps it. */
  blendReport: BlendReport | undefined;

  readonly #derivation: Derivation;
  readonly #blockTokens: number;
  readonly #keys: BlockKey[];
  /** Blocks [0, keptBlocks) were found under their key or offered to the cache. */
  #keptBlocks = 0;

  constructor(
    plan: PlanRun,
    open: boolean,
    keyed: boolean,
    blockTokens: number,
    { place = 0, sources = [], owner = nobody, retention = 0 }: RunDetail = {},
  ) {
    this.plan = plan;
    this.owner = owner;
    this.#retention = retention;
    this.#derivation = new Derivation(sources);
    this.place = place;
    this.firstPosition = plan.position + place;
    this.open = open;
    this.keyed = keyed;
    this.#blockTokens = blockTokens;
    this.tokenIds = plan.tokenIds;
    this.tokenCount = plan.tokenIds.length;
    this.#keys = [...plan.blockKeys];
    this.usage = new RunUsage(this.promptTokens);
    this.seenTokenCount = plan.sees.reduce((sum, { tokenCount }) => sum + tokenCount, 0);
    this.seenBlockCount = plan.sees.reduce((sum, { firstToken, tokenCount }) => {
      return sum + blockCountForTokens((firstToken % blockTokens) + tokenCount, blockTokens);
    }, 0);
  }

  get promptTokens(): number {
    return this.plan.tokenIds.length;
  }

  get complete(): boolean {
    return this.settledTokens === this.tokenCount;
  }

  /** Blocks that all tokens so far take. */
  get blockCount(): number {
    return blockCountForTokens(this.tokenCount, this.#blockTokens);
  }

  /** Tokens whose KV is neither found nor computed yet; of a blended run those that will be computed. */
  get missingTokens(): number {
    return this.blending?.missingTokens ?? this.tokenCount - this.computedTokens;
  }

  /** Takes blocks until tokens [0, end) have one; they are reserved or there is room. @returns how many. */
  coverWithBlocks(end: number, cache: PrefixCache): number {
    const before = this.blocks.length;
    while (this.blocks.length * this.#blockTokens < end) {
      const blockId = cache.allocate(this.owner);
      if (blockId === undefined) throw new Error("no block is free although one was reserved");
      this.blocks.push(blockId);
    }
    return this.blocks.length - before;
  }

  /** Where the pool has the K and V of a token that has a block: blockId * blockTokens + place in the block. */
  slotOf(token: number): number {
    const blockIndex = Math.floor(token / this.#blockTokens);
    return this.blocks[blockIndex] * this.#blockTokens + (token - blockIndex * this.#blockTokens);
  }

  /** One more token, whose KV is still to be computed. */
  append(tokenId: number): void {
    if (this.tokenCount === this.tokenIds.length) {
      const grown = new Int32Array(Math.max(64, 2 * this.tokenCount));
      grown.set(this.tokenIds);
      this.tokenIds = grown;
    }
    this.tokenIds[this.tokenCount] = tokenId;
    this.tokenCount += 1;
  }

  /** Drops the tokens behind `tokenCount`: a step in flight assumed them, and they turned out to be others. */
  cutTo(tokenCount: number): void {
    this.tokenCount = tokenCount;
    this.computedTokens = Math.min(this.computedTokens, tokenCount);
    this.begunExactTokens = Math.min(this.begunExactTokens, tokenCount);
  }

  /** Generation is over: these tokens end the run, and its partly filled last block is kept too. */
  close(tokenIds: Int32Array, cache: PrefixCache): void {
    for (const tokenId of tokenIds) this.append(tokenId);
    this.open = false;
    // Others will read it, so what is approximate is computed anew.
    if (this.exactTokens < this.settledTokens) {
      this.settledTokens = this.exactTokens;
      this.computedTokens = this.exactTokens;
      this.begunExactTokens = this.exactTokens;
    }
    this.settleRows(this.settledTokens, this.settledTokens, cache);
  }

  /** Key of the block that is computed next, when there is one and other runs could share it. */
  keyAt(blockIndex: number): BlockKey | undefined {
    return this.keyed ? this.#keys[blockIndex] : undefined;
  }

  /**
   * Goes on without looking blocks up or keeping them when it has one of these keys, begins with one, or is computed
   * from what one stands for.
   * @param owner number of the owner whose runs are meant; undefined: everybody's
   */
  forget(keys: ReadonlySet<BlockKey>, owner?: number): void {
    if (!this.keyed || (owner !== undefined && this.owner.number !== owner)) return;
    const has = (key: BlockKey): boolean => keys.has(key);
    if (has(this.plan.rootKey) || this.#keys.some(has) || this.#derivation.sources.some(has)) this.keyed = false;
  }

  /** Resident blocks that continue what is computed, in order; the next missing one ends the list. */
  residentBlocks(cache: PrefixCache): BlockId[] {
    const found: BlockId[] = [];
    if (!this.keyed || this.settledTokens !== this.blocks.length * this.#blockTokens) return found;
    for (let index = this.blocks.length; index < this.#reusableBlocks(); index++) {
      const blockId = this.#findBlock(index, cache);
      if (blockId === undefined) break;
      found.push(blockId);
    }
    return found;
  }

  isResident(blockIndex: number, cache: PrefixCache): boolean {
    return blockIndex < this.#reusableBlocks() && this.#findBlock(blockIndex, cache) !== undefined;
  }

  /** Refers to `found` (of residentBlocks) instead of computing it. Answers the prompt tokens first found. */
  adopt(found: readonly BlockId[], cache: PrefixCache): number {
    for (const blockId of found) {
      cache.retain(blockId);
      this.usage.tier = fartherTier(this.usage.tier, cache.tierOf(blockId));
      if (this.#retention > 0) cache.prolong(blockId, this.#retention);
      this.blocks.push(blockId);
    }
    this.#keptBlocks = this.blocks.length;
    const tokens = Math.min(this.blocks.length * this.#blockTokens, this.tokenCount);
    this.beginRows(0, tokens);
    this.settledTokens = tokens;
    this.exactTokens = tokens;
    return this.usage.found(this.settledTokens);
  }

  /** A step that computes tokens [first, end) has begun. @param exact its rows read all they see */
  beginRows(first: number, end: number, exact = true): void {
    this.computedTokens = Math.max(this.computedTokens, end);
    if (exact && first <= this.begunExactTokens) this.begunExactTokens = Math.max(this.begunExactTokens, end);
  }

  /** Tokens [first, end), which were begun, are computed: counts them and keeps the blocks they filled. */
  settleRows(first: number, end: number, cache: PrefixCache, exact = true): void {
    this.settledTokens = Math.max(this.settledTokens, end);
    if (exact && first <= this.exactTokens) this.exactTokens = Math.max(this.exactTokens, end);
    this.usage.computed(this.settledTokens);
    while (this.keyed && this.#keepNextBlock(cache)) this.#keptBlocks += 1;
  }

  /** Begins and settles: the next `rowCount` tokens are computed. */
  advance(rowCount: number, cache: PrefixCache): void {
    const [first, end] = [this.computedTokens, this.computedTokens + rowCount];
    this.beginRows(first, end);
    this.settleRows(first, end, cache);
  }

  /** Begins to blend the tokens that were not found. The run has all its blocks by now. */
  beginBlending(): Blending {
    const { blend } = this.plan;
    if (blend === undefined) throw new Error("a run without copies is blended");
    this.blending = new Blending(blend, this.computedTokens, this.tokenCount);
    return this.blending;
  }

  /** All selected tokens are computed again: counts the run's tokens and keeps its blocks. */
  completeBlending({ copiedTokens, recomputedTokens }: Blending, cache: PrefixCache): void {
    this.blendReport ??= { copiedTokens, recomputedTokens };
    this.blending = undefined;
    this.advance(this.tokenCount - this.computedTokens, cache);
  }

  /** Gives all blocks back, the last one first, so that a chain is evicted from its tail. */
  release(cache: PrefixCache): void {
    for (let blockId = this.blocks.pop(); blockId !== undefined; blockId = this.blocks.pop()) cache.release(blockId);
    this.computedTokens = 0;
    this.settledTokens = 0;
    this.exactTokens = 0;
    this.begunExactTokens = 0;
    this.#keptBlocks = 0;
    this.seen = undefined;
    this.blending = undefined;
  }

  /**
   * Blocks that may be found. Of an open run the last token is always computed, because its logits draw the next token.
   */
  #reusableBlocks(): number {
    return this.open ? Math.floor((this.tokenCount - 1) / this.#blockTokens) : this.blockCount;
  }

  #findBlock(index: number, cache: PrefixCache): BlockId | undefined {
    const key = this.keyAt(index);
    return key === undefined ? undefined : cache.find(key, this.#contentOf(index));
  }

  #keepNextBlock(cache: PrefixCache): boolean {
    const content = this.#contentOf(this.#keptBlocks);
    const { start, end } = content;
    if (start === end || end > this.exactTokens) return false;
    if (this.open && end - start < this.#blockTokens) return false;
    const previous = this.#keys[this.#keptBlocks - 1] ?? this.plan.rootKey;
    // The block before was stored by another run and has been evicted since: a key chained from it would never be found.
    if (this.#keptBlocks > 0 && this.#findBlock(this.#keptBlocks - 1, cache) === undefined) {
      this.keyed = false;
      return false;
    }
    this.#keys[this.#keptBlocks] ??= nextBlockKey(previous, this.tokenIds.subarray(start, end));
    const key = this.#keys[this.#keptBlocks];
    const stored = cache.store(this.blocks[this.#keptBlocks], key, previous, content, this.#derivation);
    if (stored && this.#retention > 0) cache.prolong(this.blocks[this.#keptBlocks], this.#retention);
    // The key belongs to other content (a collision), so keys chained from it do not stand for this run either.
    if (!stored && cache.find(key, content) === undefined) this.keyed = false;
    this.usage.keep(start, end, stored);
    return true;
  }

  #contentOf(blockIndex: number): BlockContent {
    const start = Math.min(blockIndex * this.#blockTokens, this.tokenCount);
    const end = Math.min(start + this.#blockTokens, this.tokenCount);
    return { tokenIds: this.tokenIds, start, end, position: this.plan.position + start, place: this.place };
  }
}
