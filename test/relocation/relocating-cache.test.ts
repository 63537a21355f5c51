import { describe, expect, test } from "bun:test";
import { BlockPool } from "../../worker/cache/block-pool.ts";
import { KvEventLog } from "../../worker/cache/kv-events.ts";
import type { BlockContent } from "../../worker/cache/prefix-cache.ts";
import type { KvOwner } from "../../worker/contract/owners.ts";
import type { BlockId, BlockKey } from "../../worker/contract/units.ts";
import { maxMoves, RelocatingCache, type RelocatingCacheOptions } from "../../worker/relocation/relocating-cache.ts";

const key = "a" as BlockKey;
const root = "root" as BlockKey;

function content(place: number, tokenIds = [1, 2, 3]): BlockContent {
  return { tokenIds: Int32Array.from(tokenIds), start: 0, end: tokenIds.length, position: 0, place };
}

function taken(cache: RelocatingCache, owner?: KvOwner): BlockId {
  const blockId = cache.allocate(owner);
  if (blockId === undefined) throw new Error("no block is free");
  return blockId;
}

/** A block at place 0, in use, and a copy of it at place 7, in use. */
function twoCopies(blockCount = 4, options?: RelocatingCacheOptions) {
  const pool = new BlockPool(blockCount);
  const events = new KvEventLog();
  const cache = new RelocatingCache(pool, 4, events, options);
  const [first, second] = [taken(cache), taken(cache)];
  cache.store(first, key, root, content(0));
  cache.copy(first, second, 7, 1);
  return { pool, events, cache, first, second };
}

describe("RelocatingCache", () => {
  test("answers the block at the wanted place, or else the one that was moved least", () => {
    const { cache, first, second } = twoCopies();
    expect(cache.find(key, content(7))).toBe(second);
    expect(cache.find(key, content(0))).toBe(first);
    expect(cache.find(key, content(3))).toBe(first);
    cache.move(first, 3, 5);
    expect(cache.find(key, content(0))).toBe(second);
    expect(cache.find(key, content(0, [1, 2, 4]))).toBeUndefined();
  });

  test("is told of once and gone when the last copy is; the copy that is left unused first is used next", () => {
    const { cache, events, pool, first, second } = twoCopies(3);
    cache.release(first);
    expect([pool.freeBlocks()[0], cache.cachedFreeCount]).toEqual([first, 0]);
    expect(cache.find(key, content(0))).toBe(second);
    cache.release(second);
    expect([pool.freeBlocks().at(-1), cache.cachedFreeCount]).toEqual([second, 1]);
    expect([...cache.resident()]).toEqual([[key, second]]);
    expect(events.take().map(({ type }) => type)).toEqual(["stored"]);
    for (let i = 0; i < 3; i++) taken(cache);
    expect(cache.find(key, content(7))).toBeUndefined();
    expect(events.take().map(({ type }) => type)).toEqual(["removed"]);
  });

  test("keeps unused copies, as they were left, when told to", () => {
    const published = { keepsCopies: true, maxMoves: Number.POSITIVE_INFINITY };
    const { cache, events, pool, first, second } = twoCopies(4, published);
    cache.move(second, 7, 1_000);
    cache.release(second);
    cache.release(first);
    expect([pool.freeBlocks().slice(-2), cache.cachedFreeCount]).toEqual([[second, first], 2]);
    expect(cache.find(key, content(7))).toBe(second);
    const third = taken(cache);
    taken(cache);
    cache.store(third, key, root, content(9));
    expect(cache.find(key, content(7))).toBe(second);
    expect([taken(cache), taken(cache)]).toEqual([second, first]);
    expect([cache.find(key, content(7)), cache.cachedFreeCount]).toEqual([third, 0]);
    expect(events.take().map(({ type }) => type)).toEqual(["stored"]);
  });

  test("a copy beyond its owner's quota is dropped alone: the one in use is still found, and may be copied", () => {
    const pool = new BlockPool(4);
    const events = new KvEventLog();
    const cache = new RelocatingCache(pool, 4, events, { keepsCopies: true, maxMoves: Number.POSITIVE_INFINITY });
    const owner = { number: 1, quotaBlocks: 2 };
    const used = taken(cache, owner);
    cache.store(used, key, root, content(0));
    const unused = taken(cache, owner);
    cache.copy(used, unused, 7, 1);
    cache.release(unused);
    const target = taken(cache, owner);
    expect([cache.keyOf(unused), cache.evictedBlocks, pool.freeBlocks()[0]]).toEqual([undefined, 1, unused]);
    expect(cache.find(key, content(9))).toBe(used);
    cache.copy(used, target, 9, 1);
    expect([...cache.resident()].map(([, blockId]) => blockId)).toEqual([used, target]);
    expect(events.take().map(({ type }) => type)).toEqual(["stored"]);
  });

  test("forgets all copies at once", () => {
    const { cache, events, second } = twoCopies();
    events.take();
    cache.forget(second);
    expect([...cache.resident()]).toEqual([]);
    expect(events.take()).toHaveLength(1);
    cache.evict([key]);
    expect(events.take()).toHaveLength(0);
  });

  test("what was moved too often is computed anew for another place, and then replaced", () => {
    const pool = new BlockPool(2);
    const cache = new RelocatingCache(pool, 4, new KvEventLog());
    const worn = taken(cache);
    cache.store(worn, key, root, content(0));
    cache.move(worn, 5, maxMoves);
    cache.release(worn);
    expect(cache.find(key, content(5))).toBe(worn);
    expect(cache.find(key, content(6))).toBeUndefined();
    const fresh = taken(cache);
    expect(fresh).not.toBe(worn);
    expect(cache.store(fresh, key, root, content(6))).toBe(true);
    expect([...cache.resident()]).toEqual([[key, fresh]]);
    expect([cache.find(key, content(9)), cache.moveCountOf(fresh), cache.cachedFreeCount]).toEqual([fresh, 0, 0]);
  });

  test("keeps one block for each place, and refuses other content under a taken key", () => {
    const { cache, first, second } = twoCopies();
    const third = taken(cache);
    expect(cache.store(third, key, root, content(7))).toBe(false);
    expect(cache.store(third, key, root, content(8, [9]))).toBe(false);
    expect([...cache.resident()].map(([, blockId]) => blockId)).toEqual([first, second]);
    cache.release(third);
    expect(cache.cachedFreeCount).toBe(0);
  });
});
