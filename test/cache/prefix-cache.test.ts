import { describe, expect, test } from "bun:test";
import { BlockPool } from "../../worker/cache/block-pool.ts";
import { Derivation } from "../../worker/cache/derivations.ts";
import { KvEventLog } from "../../worker/cache/kv-events.ts";
import { type BlockContent, PrefixCache } from "../../worker/cache/prefix-cache.ts";
import type { BlockId, BlockKey } from "../../worker/contract/units.ts";
import { fc } from "../support/fast-check.ts";

const key = (name: string): BlockKey => name as BlockKey;

function content(tokenIds: number[], position = 0): BlockContent {
  return { tokenIds: Int32Array.from(tokenIds), start: 0, end: tokenIds.length, position, place: 0 };
}

function makeCache(blockCount: number): { cache: PrefixCache; pool: BlockPool; events: KvEventLog } {
  const pool = new BlockPool(blockCount);
  const events = new KvEventLog();
  return { cache: new PrefixCache(pool, 4, events), pool, events };
}

function storeNew(cache: PrefixCache, name: string, tokenIds: number[]): BlockId {
  const blockId = cache.allocate();
  if (blockId === undefined) throw new Error("no block is free");
  cache.store(blockId, key(name), key(`before ${name}`), content(tokenIds));
  return blockId;
}

describe("PrefixCache", () => {
  test("a released block stays findable until its memory is needed, oldest first", () => {
    const { cache, events } = makeCache(2);
    const a = storeNew(cache, "a", [1, 2, 3, 4]);
    const b = storeNew(cache, "b", [5]);
    cache.release(a);
    cache.release(b);
    expect(cache.find(key("a"), content([1, 2, 3, 4]))).toBe(a);
    expect(cache.allocate()).toBe(a);
    expect(cache.find(key("a"), content([1, 2, 3, 4]))).toBeUndefined();
    expect(cache.find(key("b"), content([5]))).toBe(b);
    expect(cache.evictedBlocks).toBe(1);
    expect(events.take()).toEqual([
      {
        sequence: 1,
        type: "stored",
        blockKeys: [key("a"), key("b")],
        previousKeys: [key("before a"), key("before b")],
        tokenCounts: [4, 1],
      },
      { sequence: 2, type: "removed", blockKeys: [key("a")] },
    ]);
    expect(events.take()).toEqual([]);
  });

  test("refuses a key whose block holds other tokens, another count or another position", () => {
    const { cache } = makeCache(1);
    storeNew(cache, "a", [1, 2, 3]);
    expect(cache.find(key("a"), content([1, 2, 3]))).toBe(0 as BlockId);
    for (const other of [content([1, 2, 4]), content([1, 2]), content([1, 2, 3, 4]), content([1, 2, 3], 4)]) {
      expect(cache.find(key("a"), other)).toBeUndefined();
    }
  });

  test("compares the tokens start to end of a longer array", () => {
    const { cache } = makeCache(2);
    const blockId = cache.allocate() as BlockId;
    const tokenIds = Int32Array.of(9, 8, 7, 6, 5, 4);
    cache.store(blockId, key("second"), key("first"), { tokenIds, start: 4, end: 6, position: 4, place: 0 });
    expect(cache.find(key("second"), content([5, 4], 4))).toBe(blockId);
  });

  test("keeps the first block of a key; the second stays private and is freed when released", () => {
    const { cache, pool } = makeCache(2);
    const first = storeNew(cache, "a", [1]);
    const second = storeNew(cache, "a", [1]);
    expect(cache.keyOf(second)).toBeUndefined();
    cache.release(first);
    cache.release(second);
    expect(pool.freeBlocks()).toEqual([second, first]);
  });

  test("evict forgets at once: a free block is used next, a live one is freed when released", () => {
    const { cache, pool, events } = makeCache(3);
    const [a, b, c] = [storeNew(cache, "a", [1]), storeNew(cache, "b", [2]), storeNew(cache, "c", [3])];
    cache.release(a);
    cache.release(b);
    events.take();
    cache.evict([key("b"), key("c"), key("never stored")]);
    expect(events.take()).toEqual([{ sequence: 2, type: "removed", blockKeys: [key("b"), key("c")] }]);
    expect(pool.freeBlocks()).toEqual([b, a]);
    cache.release(c);
    expect(pool.freeBlocks()).toEqual([c, b, a]);
    expect([...cache.resident()]).toEqual([[key("a"), a]]);
    expect(cache.evictedBlocks).toBe(0);
  });

  test("counts the free blocks that are cached, whatever happens to them", () => {
    const names = ["a", "b", "c", "d"];
    const operation = fc.tuple(
      fc.constantFrom("store" as const, "find" as const, "release" as const, "evict" as const),
      fc.nat(names.length - 1),
    );
    const property = fc.property(fc.array(operation, { maxLength: 60 }), (operations) => {
      const { cache, pool } = makeCache(3);
      const held: BlockId[] = [];
      for (const [what, index] of operations) {
        if (what === "store" && pool.availableCount > 0) held.push(storeNew(cache, names[index], [index]));
        const found = what === "find" ? cache.find(key(names[index]), content([index])) : undefined;
        if (found !== undefined) {
          cache.retain(found);
          held.push(found);
        }
        if (what === "release") for (const blockId of held.splice(index, 1)) cache.release(blockId);
        if (what === "evict") cache.evict([key(names[index])]);
        const cached = pool.freeBlocks().filter((blockId) => cache.keyOf(blockId) !== undefined);
        expect(cache.cachedFreeCount).toBe(cached.length);
      }
    });
    fc.assert(property, { numRuns: 200 });
  });

  test("keeps no content of a free block", () => {
    const { cache, pool } = makeCache(1);
    const blockId = cache.allocate() as BlockId;
    pool.release(blockId, false);
    expect(() => cache.store(blockId, key("a"), key("before a"), content([1]))).toThrow("is free");
  });
});

/** Counts what is forgotten and which keys are looked up for it. */
class CountedCache extends PrefixCache {
  forgotten = 0;
  lookedUp = 0;

  override forget(blockId: BlockId): void {
    this.forgotten += 1;
    super.forget(blockId);
  }

  protected override blocksOf(key: BlockKey): readonly BlockId[] {
    this.lookedUp += 1;
    return super.blocksOf(key);
  }
}

test("a corpus of 100,000 fragments is evicted by one key: as much work as it has blocks, none for others'", () => {
  const blockCount = 110_000;
  const cache = new CountedCache(new BlockPool(blockCount), 1, new KvEventLog());
  const store = (name: string, sources: readonly string[]): void => {
    const blockId = cache.allocate();
    if (blockId === undefined) throw new Error("no block is free");
    cache.store(blockId, key(name), key("root"), content([1]), new Derivation(sources.map(key)));
    cache.release(blockId);
  };
  for (let i = 0; i < 100_000; i++) store(`fragment ${i}`, ["corpus"]);
  for (let i = 0; i < 5_000; i++) store(`other ${i}`, ["other corpus"]);
  // Answers over some of them, with what they were computed from.
  for (let i = 0; i < 5_000; i++) store(`answer ${i}`, [`fragment ${i}`, "corpus"]);
  expect(cache.sourceCount).toBe(5_002);
  // One for each corpus, whatever it has, and one for each answer.
  expect(cache.derivationCount).toBe(5_002);
  cache.evict([key("corpus")]);
  expect(cache.forgotten).toBe(105_000);
  expect(cache.lookedUp).toBeLessThanOrEqual(105_001);
  expect([...cache.resident()].every(([name]) => name.startsWith("other "))).toBe(true);
  expect([cache.cachedFreeCount, cache.sourceCount]).toEqual([5_000, 1]);
});

describe("what blocks were computed from", () => {
  test("is forgotten with the blocks, so that it takes no room", () => {
    const { cache } = makeCache(2);
    const derivation = new Derivation([key("x"), key("y")]);
    const store = (name: string): BlockId => {
      const blockId = cache.allocate();
      if (blockId === undefined) throw new Error("no block is free");
      cache.store(blockId, key(name), key(`before ${name}`), content([1]), derivation);
      cache.release(blockId);
      return blockId;
    };
    store("a");
    store("b");
    expect(cache.sourceCount).toBe(2);
    // Both blocks' memory is used for something else.
    for (const name of ["c", "d"]) cache.release(storeNew(cache, name, [9]));
    expect(cache.sourceCount).toBe(0);
    store("e");
    cache.evict([key("y")]);
    expect(cache.find(key("e"), content([1]))).toBeUndefined();
    expect(cache.find(key("d"), content([9]))).toBeDefined();
    expect(cache.sourceCount).toBe(0);
  });
});
