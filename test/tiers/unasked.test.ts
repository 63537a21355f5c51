/** What is loaded without being asked for: which blocks it may take, and what becomes of what nobody uses. */
import { expect, test } from "bun:test";
import { BlockPool } from "../../worker/cache/block-pool.ts";
import { KvEventLog } from "../../worker/cache/kv-events.ts";
import { PrefixCache } from "../../worker/cache/prefix-cache.ts";
import type { KvObject } from "../../worker/contract/kv-object.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { Unasked } from "../../worker/tiers/unasked.ts";

const key = (name: string): BlockKey => name.padEnd(32, "0") as BlockKey;

function objectOf(id: string, owner = 1): KvObject {
  const keys = { rootKey: key("r"), previousKey: key("r"), lastKey: key(id) };
  return { id, dataKey: new Uint8Array(32), ...keys, position: 0, tokenCount: 4, owner: { number: owner } };
}

function open(blockCount = 64) {
  const clock = { ms: 0, changes: 0, reserved: 0 };
  const pool = new BlockPool(blockCount, () => clock.ms);
  const cache = new PrefixCache(pool, 4, new KvEventLog());
  const unasked = new Unasked({
    ...{ pool, cache, reservedBlocks: () => clock.reserved, nowMs: () => clock.ms },
    onChange: () => {
      clock.changes += 1;
    },
  });
  /** Stores a block of an owner's and lets it go. */
  const store = (name: string, owner: number): number => {
    const blockId = cache.allocate({ number: owner });
    if (blockId === undefined) throw new Error("no block is free");
    const content = { tokenIds: Int32Array.of(1, 2, 3, 4), start: 0, end: 4, position: 0, place: 0 };
    cache.store(blockId, key(name), key("r"), content);
    cache.release(blockId);
    return blockId;
  };
  const fill = (owner: number, from: number, end: number): void => {
    for (let index = from; index < end; index++) store(`${owner}x${index}`, owner);
  };
  /** @returns the id of the object that is loaded next */
  const next = (...wanted: readonly KvObject[]): string | undefined =>
    unasked.next((id) => wanted.find((object) => object.id === id))?.id;
  return { clock, pool, cache, unasked, store, fill, next };
}

test("what is named comes into a full pool too, tenants in turn; what a start reads does not", () => {
  const { unasked, fill, next } = open();
  fill(1, 0, 64);
  const objects = [objectOf("a", 1), objectOf("b", 1), objectOf("c", 2)];
  unasked.warm("w");
  for (const object of objects) unasked.name(object);
  expect([next(...objects), next(...objects), next(...objects)]).toEqual(["a", "c", "b"]);
  expect(next(objectOf("w"))).toBeUndefined();
});

test("what was promised to requests, and other tenants' floors, are not taken", () => {
  const { clock, unasked, fill, next } = open();
  // Both are below their floors, half of the pool together.
  fill(1, 0, 32);
  fill(2, 0, 32);
  const [own, other] = [objectOf("a", 1), objectOf("b", 2)];
  clock.reserved = 64;
  unasked.name(own);
  expect(next(own)).toBeUndefined();
  clock.reserved = 0;
  unasked.name(other);
  expect(next(other)).toBe("b");
  expect([unasked.mayTake(other), unasked.mayTake(own)]).toEqual([true, false]);
  const crowded = open(8);
  crowded.fill(1, 0, 4);
  crowded.fill(2, 0, 4);
  crowded.clock.reserved = 4;
  const third = objectOf("c", 3);
  crowded.unasked.name(third);
  expect(crowded.next(third)).toBeUndefined();
});

test("a name that is too old is passed over", () => {
  const { clock, unasked, next } = open();
  const [a, b] = [objectOf("a"), objectOf("b")];
  unasked.name(a);
  clock.ms = 9_999;
  unasked.name(b);
  clock.ms = 10_000;
  expect([next(a, b), next(a, b)]).toEqual(["b", undefined]);
});

test("what nobody has used by then is forgotten, and what somebody has stays", () => {
  const { clock, pool, cache, unasked, store, fill, next } = open();
  fill(2, 0, 48);
  const object = objectOf("a");
  unasked.name(object);
  next(object);
  const blocks = ["u", "v", "w"].map((name) => {
    const blockId = store(name, 1) as never;
    unasked.brought(object, key(name), blockId);
    return blockId;
  });
  clock.ms = 5_000;
  // The first is used and let go, the second is in use.
  cache.retain(blocks[0] as never);
  cache.release(blocks[0] as never);
  cache.retain(blocks[1] as never);
  clock.ms = 9_999;
  unasked.forgetUnused();
  expect(["u", "v", "w"].map((name) => cache.has(key(name)))).toEqual([true, true, true]);
  clock.ms = 10_000;
  unasked.forgetUnused();
  expect(["u", "v", "w"].map((name) => cache.has(key(name)))).toEqual([true, true, false]);
  expect([pool.freeBlocks()[0], clock.changes]).toEqual([blocks[2] as never, 2]);
});

test("what waits to be used takes a small part of the pool", () => {
  const { unasked, store, fill, next } = open();
  fill(1, 0, 64);
  const object = objectOf("a");
  unasked.name(object);
  next(object);
  const taken = Array.from({ length: 8 }, (_, index) => {
    if (!unasked.mayTake(object)) return false;
    unasked.brought(object, key(`n${index}`), store(`n${index}`, 1) as never);
    return true;
  });
  expect(taken).toEqual([true, true, true, true, false, false, false, false]);
});
