/** Whose memory is used first: by definition, over small pools, and against a model that looks at everything each time. */
import { describe, expect, test } from "bun:test";
import { BlockPool } from "../../worker/cache/block-pool.ts";
import { levelOf } from "../../worker/cache/shares.ts";
import { type KvOwner, retentionTimesMs } from "../../worker/contract/owners.ts";
import type { BlockId } from "../../worker/contract/units.ts";
import { fc } from "../support/fast-check.ts";
import { SharesModel } from "./shares-model.ts";

const owner = (number: number, quotaBlocks?: number): KvOwner =>
  quotaBlocks === undefined ? { number } : { number, quotaBlocks };

class Clock {
  nowMs = 0;
  readonly read = () => this.nowMs;
}

function taken(pool: BlockPool, who: KvOwner): BlockId {
  const blockId = pool.take(who);
  if (blockId === undefined) throw new Error("no block is free");
  return blockId;
}

/** Blocks that the owner computed and that stay, in the order of their use. */
function fill(pool: BlockPool, clock: Clock, number: number, count: number): BlockId[] {
  const blocks = Array.from({ length: count }, () => taken(pool, owner(number)));
  for (const blockId of blocks) {
    clock.nowMs += 1;
    pool.release(blockId, true);
  }
  return blocks;
}

/** Who loses each of the next blocks that the owner takes. */
function losers(pool: BlockPool, number: number, count: number): (number | undefined)[] {
  return Array.from({ length: count }, () => {
    const next = pool.freeBlocks().every((blockId) => pool.shares.ownerOf(blockId) !== undefined)
      ? pool.shares.next(owner(number))
      : undefined;
    const loser = next === undefined ? undefined : pool.shares.ownerOf(next)?.number;
    taken(pool, owner(number));
    return loser;
  });
}

describe("between owners", () => {
  test("who holds more than its share loses, its oldest block first, whoever asks and whoever is older", () => {
    const clock = new Clock();
    const pool = new BlockPool(16, clock.read);
    const light = fill(pool, clock, 1, 3);
    const heavy = fill(pool, clock, 2, 13);
    // 3 + 11 is 7/8 of the pool: the heavy one is 2 over.
    expect(taken(pool, owner(3))).toBe(heavy[0]);
    expect(taken(pool, owner(3))).toBe(heavy[1]);
    expect(pool.freeBlocks().slice(0, 3)).toEqual(light);
  });

  test("who is within its share keeps what is older than what another has beyond its own", () => {
    const clock = new Clock();
    const pool = new BlockPool(16, clock.read);
    const [older, heavy] = [fill(pool, clock, 1, 5), fill(pool, clock, 2, 11)];
    // Floors are 4 + 4, shares 5 + 9: only what is in use could make the first one lose.
    expect([taken(pool, owner(3)), taken(pool, owner(1))]).toEqual(heavy.slice(0, 2));
    expect(pool.freeBlocks().slice(0, 5)).toEqual(older);
  });

  test("two that hold as much lose what is older", () => {
    const clock = new Clock();
    const pool = new BlockPool(16, clock.read);
    const [a, b] = [fill(pool, clock, 1, 8), fill(pool, clock, 2, 8)];
    pool.retain(a[0]);
    clock.nowMs += 1;
    pool.release(a[0], true);
    expect(taken(pool, owner(3))).toBe(a[1]);
    expect(pool.shares.ownerOf(b[0])?.number).toBe(2);
  });

  test("a flood takes nothing from who is below the floor, and not more than down to it from who is above", () => {
    const clock = new Clock();
    const pool = new BlockPool(32, clock.read);
    fill(pool, clock, 1, 4);
    fill(pool, clock, 2, 12);
    fill(pool, clock, 3, 16);
    // What the flood holds stays in use. The floor is half the pool, evenly: 4 + 6 + 6.
    const lost = losers(pool, 3, 22);
    expect(lost.filter((number) => number === 1)).toHaveLength(0);
    expect(lost.filter((number) => number === 2)).toHaveLength(6);
    expect(pool.availableCount).toBe(10);
    expect(pool.shares.protectedFrom(3)).toBe(10);
  });

  test("who is below the floor loses when there is nothing else, to its own needs before others' are met", () => {
    const clock = new Clock();
    const pool = new BlockPool(8, clock.read);
    fill(pool, clock, 1, 2);
    fill(pool, clock, 2, 2);
    for (let i = 0; i < 4; i++) taken(pool, owner(3));
    // The floor is 1: the first has one more than that, then the second pays for itself.
    expect(losers(pool, 2, 4)).toEqual([1, 2, 2, 1]);
    expect(pool.take(owner(2))).toBeUndefined();
  });

  test("where only floors are left, the taker's own goes before what is older", () => {
    const clock = new Clock();
    const pool = new BlockPool(16, clock.read);
    fill(pool, clock, 1, 2);
    fill(pool, clock, 2, 2);
    for (let i = 0; i < 12; i++) taken(pool, owner(3));
    expect(losers(pool, 2, 4)).toEqual([2, 2, 1, 1]);
  });

  test("many that hold little leave the others their room", () => {
    const clock = new Clock();
    const pool = new BlockPool(64, clock.read);
    for (let number = 10; number < 30; number++) fill(pool, clock, number, 1);
    fill(pool, clock, 1, 6);
    fill(pool, clock, 2, 38);
    expect(new Set(losers(pool, 2, 20))).toEqual(new Set([2]));
  });

  test("looking at all owners is done once for 16 blocks of a large pool, and changes little of who loses", () => {
    let reads = 0;
    const pool = new BlockPool(16_384, () => ++reads);
    const owners = 200;
    const held = Array.from({ length: 16_384 }, (_, index) => taken(pool, owner(index % owners)));
    for (const blockId of held) pool.release(blockId, true);
    reads = 0;
    const before = new Map([...pool.shares.accounts()].map(({ number, heldBlocks }) => [number, heldBlocks]));
    for (let i = 0; i < 1_600; i++) taken(pool, owner(owners));
    // One look at an owner reads the clock once; so does each block that is chosen.
    expect(reads).toBeLessThan((1_600 / 16 + 2) * owners + 2 * 1_600);
    const lost = [...pool.shares.accounts()].map(({ number, heldBlocks }) => (before.get(number) ?? 0) - heldBlocks);
    expect(Math.max(...lost)).toBeLessThanOrEqual(1_600 / owners + 16);
  });

  test("an owner without blocks is forgotten, with its quota", () => {
    const pool = new BlockPool(4);
    const block = taken(pool, owner(7, 2));
    expect([...pool.shares.accounts()].map(({ number, quotaBlocks }) => [number, quotaBlocks])).toEqual([[7, 2]]);
    pool.release(block, false);
    expect([...pool.shares.accounts()]).toEqual([]);
    taken(pool, owner(7));
    expect([...pool.shares.accounts()][0]?.quotaBlocks).toBe(Number.POSITIVE_INFINITY);
  });
});

describe("of one owner's", () => {
  const [, fiveMinutes, halfHour] = [0, 1, 2];

  function kept(pool: BlockPool, clock: Clock, retention: number): BlockId {
    const blockId = taken(pool, owner(1));
    if (retention > 0) pool.shares.prolong(blockId, retention);
    clock.nowMs += 1;
    pool.release(blockId, true);
    return blockId;
  }

  function order(pool: BlockPool): (BlockId | undefined)[] {
    return Array.from({ length: pool.availableCount }, () => pool.take(owner(1)));
  }

  test("those that nobody retains go first, then those whose time ends first, then pinned ones", () => {
    const clock = new Clock();
    const pool = new BlockPool(5, clock.read);
    const long = kept(pool, clock, halfHour);
    const short = kept(pool, clock, fiveMinutes);
    const pinned = kept(pool, clock, 0);
    const plain = kept(pool, clock, 0);
    const last = kept(pool, clock, 0);
    pool.shares.pin(pinned, true);
    expect(order(pool)).toEqual([plain, last, short, long, pinned]);
  });

  test("when the time is over, age alone counts; a use begins it anew, and ends it when it was over", () => {
    const clock = new Clock();
    const pool = new BlockPool(4, clock.read);
    const expired = kept(pool, clock, fiveMinutes);
    const used = kept(pool, clock, fiveMinutes);
    clock.nowMs += retentionTimesMs[fiveMinutes] - 10;
    const plain = kept(pool, clock, 0);
    pool.retain(used);
    pool.release(used, true);
    clock.nowMs += 100;
    const later = kept(pool, clock, 0);
    // `used` is retained still, `expired` is older than the plain ones.
    expect(pool.shares.next(owner(1))).toBe(expired);
    pool.retain(expired);
    pool.release(expired, true);
    expect(order(pool)).toEqual([plain, later, expired, used]);
  });

  test("the longest time that was asked for counts; a pin that is taken back leaves it", () => {
    const clock = new Clock();
    const pool = new BlockPool(3, clock.read);
    const block = kept(pool, clock, halfHour);
    pool.retain(block);
    pool.shares.prolong(block, fiveMinutes);
    pool.shares.pin(block, true);
    pool.release(block, true);
    const [short, plain] = [kept(pool, clock, fiveMinutes), kept(pool, clock, 0)];
    pool.shares.pin(block, false);
    clock.nowMs += retentionTimesMs[fiveMinutes] + 1;
    expect(order(pool)).toEqual([short, plain, block]);
  });

  test("pinned blocks of who is over its share go after what others hold above their floors", () => {
    const clock = new Clock();
    const pool = new BlockPool(16, clock.read);
    const others = fill(pool, clock, 1, 6);
    const pinned = fill(pool, clock, 2, 10);
    for (const blockId of pinned) pool.shares.pin(blockId, true);
    // Floors: 4 + 4. The first has 2 more than that.
    expect([taken(pool, owner(2)), taken(pool, owner(2))]).toEqual(others.slice(0, 2));
    expect(taken(pool, owner(2))).toBe(pinned[0]);
  });
});

test("levels: cut there, amounts come to the total, and none is cut in vain", () => {
  const property = fc.property(
    fc.array(fc.nat(50), { maxLength: 12 }),
    fc.integer({ min: 1, max: 200 }),
    (raw, total) => {
      const rising = Float64Array.from(raw).sort();
      const sum = rising.reduce((all, amount) => all + amount, 0);
      const level = levelOf(rising, total);
      if (sum <= total) expect(level).toBe(Number.POSITIVE_INFINITY);
      else expect(rising.reduce((all, amount) => all + Math.min(amount, level), 0)).toBeCloseTo(total);
    },
  );
  fc.assert(property);
});

test("agrees with a model that works everything out each time, under any sequence of operations", () => {
  const operation = fc.record({
    what: fc.constantFrom("take", "take", "release", "release", "retain", "drop", "pin", "unpin", "prolong", "wait"),
    owner: fc.integer({ min: 1, max: 4 }),
    pick: fc.nat(20),
  });
  const property = fc.property(fc.array(operation, { minLength: 12, maxLength: 150 }), (operations) => {
    const clock = new Clock();
    const pool = new BlockPool(12, clock.read);
    const model = new SharesModel(12);
    const live: BlockId[] = [];
    // A pool that is in use: who has how much of it differs.
    for (const { owner: number } of operations.slice(0, 12)) {
      const blockId = taken(pool, owner(number === 4 ? 1 : number));
      model.take(blockId, number === 4 ? 1 : number);
      clock.nowMs += 1;
      pool.release(blockId, true);
      model.change(blockId, { freedAtMs: clock.nowMs });
    }
    for (const { what, owner: number, pick } of operations) {
      clock.nowMs += 1;
      const free = [...pool.shares.freeInOrder()].sort((a, b) => a - b);
      const one = live.length === 0 ? undefined : live[pick % live.length];
      const other = free.length === 0 ? undefined : free[pick % free.length];
      if (what === "take" && pool.availableCount > 0) {
        const expected = model.next(number, clock.nowMs);
        const isFull = pool.availableCount === free.length;
        const blockId = taken(pool, owner(number));
        if (isFull) expect(expected).toEqual([blockId]);
        model.take(blockId, number);
        live.push(blockId);
      } else if (what === "release" && one !== undefined) {
        live.splice(live.indexOf(one), 1);
        pool.release(one, true);
        model.change(one, { freedAtMs: clock.nowMs });
      } else if (what === "retain" && other !== undefined) {
        const isOver = model.expiry(other) <= clock.nowMs;
        pool.retain(other);
        model.change(other, { freedAtMs: undefined, ...(isOver && { list: 0 }) });
        live.push(other);
      } else if (what === "drop" && other !== undefined && pick % 4 === 0) {
        pool.demote(other);
        model.take(other, 0);
        // Nobody's, and used before all others.
        expect(pool.take(owner(number))).toBe(other);
        model.take(other, number);
        live.push(other);
      } else if (what === "pin" && one !== undefined) {
        pool.shares.pin(one, true);
        model.change(one, { pinned: true });
      } else if (what === "unpin" && one !== undefined) {
        pool.shares.pin(one, false);
        model.change(one, { pinned: false });
      } else if (what === "prolong" && one !== undefined) {
        const list = 1 + (pick % (retentionTimesMs.length - 1));
        pool.shares.prolong(one, list);
        model.prolong(one, list);
      } else if (what === "wait") clock.nowMs += pick * 60_000;
    }
  });
  fc.assert(property, { numRuns: 400 });
});
