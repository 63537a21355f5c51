import { describe, expect, test } from "bun:test";
import { BlockPool } from "../../worker/cache/block-pool.ts";
import type { BlockId } from "../../worker/contract/units.ts";

function takeAll(pool: BlockPool): number[] {
  const taken: number[] = [];
  for (let block = pool.take(); block !== undefined; block = pool.take()) taken.push(block);
  return taken;
}

describe("BlockPool", () => {
  test("gives blocks out once, and none when all are live", () => {
    const pool = new BlockPool(3);
    expect(takeAll(pool)).toEqual([0, 1, 2]);
    expect(pool.availableCount).toBe(0);
  });

  test("uses released blocks without content next, cached ones last, in order of release", () => {
    const pool = new BlockPool(4);
    const [a, b, c] = [pool.take(), pool.take(), pool.take()] as BlockId[];
    pool.release(b, true);
    pool.release(a, true);
    pool.release(c, false);
    expect(takeAll(pool)).toEqual([c, 3, b, a]);
  });

  test("a block is free only when its last reference is released", () => {
    const pool = new BlockPool(1);
    const block = pool.take() as BlockId;
    pool.retain(block);
    pool.release(block, true);
    expect(pool.availableCount).toBe(0);
    expect(pool.referenceCount(block)).toBe(1);
    pool.release(block, true);
    expect(pool.availableCount).toBe(1);
    expect(() => pool.release(block, true)).toThrow("released more often");
  });

  test("a retained free block leaves the free ones, a demoted one is used next", () => {
    const pool = new BlockPool(4);
    const [a, b, c] = [pool.take(), pool.take(), pool.take()] as BlockId[];
    for (const block of [a, b, c]) pool.release(block, true);
    pool.retain(b);
    pool.demote(c);
    pool.demote(b);
    expect(pool.freeBlocks()).toEqual([c, 3 as BlockId, a]);
  });

  test("refuses a pool without blocks", () => {
    for (const blockCount of [0, -1, 1.5, Number.NaN]) expect(() => new BlockPool(blockCount)).toThrow("blockCount");
  });
});
