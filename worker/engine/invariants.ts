/** Derives the bookkeeping anew from the blocks that runs hold, and compares. */
import type { BlockPool } from "../cache/block-pool.ts";
import type { PrefixCache } from "../cache/prefix-cache.ts";
import type { BlockId } from "../contract/units.ts";
import type { Request } from "./request.ts";
import type { Scheduler } from "./scheduler.ts";

function assert(holds: boolean, text: string): asserts holds {
  if (!holds) throw new Error(`invariant broken: ${text}`);
}

/**
 * @param leaving requests that ended and whose blocks a step in flight holds
 * @throws Error naming the rule that is broken
 */
export function assertInvariants(
  pool: BlockPool,
  cache: PrefixCache,
  scheduler: Scheduler,
  requests: readonly Request[],
  leaving: readonly Request[],
): void {
  assertReferences(pool, [...requests, ...leaving]);
  assertKeys(pool, cache);
  assertOwners(pool, cache);
  assertReservations(pool, scheduler);
  for (const request of requests) {
    assertBlending(request);
    assertProgress(request);
  }
  const queued = new Set([...scheduler.waiting, ...scheduler.running]);
  assert(queued.size === scheduler.waiting.length + scheduler.running.length, "a request is queued twice");
  assert(queued.size === requests.length, "a request in progress is neither waiting nor running");
}

/** free + live = total, and a block's references are the runs and buffers that hold it. */
function assertReferences(pool: BlockPool, requests: readonly Request[]): void {
  const holders = new Map<BlockId, number>();
  for (const { runs, sparse } of requests) {
    for (const blockId of sparse?.buffer ?? []) holders.set(blockId, (holders.get(blockId) ?? 0) + 1);
    for (const run of runs) {
      for (const blockId of run.blocks) holders.set(blockId, (holders.get(blockId) ?? 0) + 1);
    }
  }
  const free = new Set(pool.freeBlocks());
  assert(free.size === pool.availableCount, "the free list's length is not its count");
  assert(free.size + holders.size === pool.blockCount, `${free.size} free + ${holders.size} live is not the total`);
  for (let id = 0; id < pool.blockCount; id++) {
    const blockId = id as BlockId;
    const held = holders.get(blockId) ?? 0;
    const counted = pool.referenceCount(blockId);
    assert(counted === held, `block ${id} counts ${counted} references, ${held} runs hold it`);
    assert(free.has(blockId) === (counted === 0), `block ${id} is free and live, or neither`);
  }
}

/** Keys and blocks map to each other one to one; free blocks without a key stand before those with one. */
function assertKeys(pool: BlockPool, cache: PrefixCache): void {
  let keyed = 0;
  for (let id = 0; id < pool.blockCount; id++) if (cache.keyOf(id as BlockId) !== undefined) keyed += 1;
  for (const [key, blockId] of cache.resident()) {
    assert(cache.keyOf(blockId) === key, `block ${blockId} is found under a key that is not its own`);
    keyed -= 1;
  }
  assert(keyed === 0, `${keyed} more blocks have a key than keys have a block`);
  let cachedCount = 0;
  for (const blockId of pool.freeBlocks()) {
    const cached = cache.keyOf(blockId) !== undefined;
    assert(cached || cachedCount === 0, `block ${blockId} holds nothing but is used after one that is cached`);
    if (cached) cachedCount += 1;
  }
  assert(cachedCount === cache.cachedFreeCount, `${cachedCount} free blocks are cached, not ${cache.cachedFreeCount}`);
}

/** Each owner holds blocks in use and free blocks with content. Nobody owns a free block without content. */
function assertOwners(pool: BlockPool, cache: PrefixCache): void {
  const counted = new Map<number, { live: number; held: number }>();
  for (let id = 0; id < pool.blockCount; id++) {
    const blockId = id as BlockId;
    const [owner, live] = [pool.shares.ownerOf(blockId), pool.isLive(blockId)];
    const holds = live || cache.keyOf(blockId) !== undefined;
    assert((owner !== undefined) === holds, `block ${blockId} is owned, or has content, and not both`);
    if (owner === undefined) continue;
    const count = counted.getOrInsertComputed(owner.number, () => ({ live: 0, held: 0 }));
    count.held += 1;
    if (live) count.live += 1;
  }
  const accounts = [...pool.shares.accounts()];
  assert(accounts.length === counted.size, `${accounts.length} owners have an account, ${counted.size} hold blocks`);
  for (const { number, liveBlocks, heldBlocks, quotaBlocks } of accounts) {
    const { live = 0, held = 0 } = counted.get(number) ?? {};
    const isRight = live === liveBlocks && held === heldBlocks;
    assert(isRight, `owner ${number} counts ${liveBlocks} live of ${heldBlocks} blocks, it has ${live} of ${held}`);
    const within = heldBlocks <= quotaBlocks || heldBlocks === liveBlocks;
    assert(within, `owner ${number} keeps ${heldBlocks - liveBlocks} blocks beyond its quota of ${quotaBlocks}`);
  }
}

/** Token counts of runs are in order; the tokens that are pending, and no others, are names below 0. */
function assertProgress({ requestId, runs, openRun, pendingTokens }: Request): void {
  for (const run of runs) {
    const { settledTokens, computedTokens, tokenCount } = run;
    const ordered = settledTokens <= computedTokens && computedTokens <= tokenCount;
    assert(ordered, `${requestId} has ${settledTokens} tokens settled, ${computedTokens} computed of ${tokenCount}`);
    const exact = run.exactTokens <= settledTokens && run.begunExactTokens <= computedTokens;
    assert(exact, `${requestId} has ${run.exactTokens} exact tokens of ${settledTokens} that are settled`);
    const known = tokenCount - (run === openRun ? pendingTokens : 0);
    const isRight = run.tokenIds.subarray(0, tokenCount).every((id, token) => id >= 0 === token < known);
    assert(isRight, `${requestId} has ${pendingTokens} pending tokens, its run holds others`);
  }
}

/** While no step is in flight, no token is begun or pending. */
export function assertSettled({ requestId, runs, pendingTokens }: Request): void {
  assert(pendingTokens === 0, `${requestId} awaits ${pendingTokens} tokens that no step draws`);
  for (const run of runs) {
    assert(run.settledTokens === run.computedTokens, `${requestId} awaits tokens that no step computes`);
  }
}

/** A run that is being blended has all its blocks and what was found counted; its copies' sources are complete. */
function assertBlending({ requestId, runs }: Request): void {
  for (const run of runs) {
    if (run.blending === undefined) continue;
    assert(run.blocks.length === run.blockCount, `${requestId} blends a run that lacks blocks`);
    assert(run.computedTokens < run.tokenCount, `${requestId} blends a run that is complete`);
    for (const copy of run.plan.blend?.copies ?? []) {
      assert(runs[copy.run].complete, `${requestId} blends from run ${copy.run}, which is not complete`);
    }
  }
}

function assertReservations(pool: BlockPool, scheduler: Scheduler): void {
  for (const request of scheduler.running) {
    const held = request.runs.reduce((sum, run) => sum + run.blocks.length, 0);
    const missing = request.decoding ? 0 : request.blockCount - held;
    const { requestId, reservedBlocks } = request;
    assert(reservedBlocks === missing, `${requestId} reserves ${reservedBlocks} blocks, it lacks ${missing}`);
  }
  for (const request of scheduler.waiting) {
    const held = request.runs.some((run) => run.blocks.length > 0);
    const isBare = request.reservedBlocks === 0 && request.sparse?.seat === undefined;
    assert(!held && isBare, `${request.requestId} waits and holds blocks or a seat`);
  }
  assert(scheduler.reservedBlocks <= pool.availableCount, "more blocks are reserved than available");
}
