import { describe, expect, test } from "bun:test";
import { type FragmentHolder, homesOf } from "../../gateway/dispatch/homes.ts";
import type { BlockKey } from "../../worker/contract/units.ts";

const workers = (...rooms: number[]): FragmentHolder[] =>
  rooms.map((roomBlocks, index) => ({ id: `worker-${index}`, roomBlocks }));
const fragment = (name: string, uses = 0) => ({ spanKey: name as BlockKey, blockCount: 8, uses });
const names = Array.from({ length: 2_000 }, (_, index) => `fragment ${index}`);

describe("homes of a fragment", () => {
  test("every worker, while all have room", () => {
    expect(homesOf(fragment("a"), workers(8, 8, 8), []).toSorted()).toEqual(["worker-0", "worker-1", "worker-2"]);
  });

  test("one, where there is no room; it spreads what is used little, in proportion to room", () => {
    const counts = [0, 0, 0];
    for (const name of names) {
      const homes = homesOf(fragment(name), workers(1, 2, 5), []);
      expect(homes.length).toBe(1);
      counts[Number(homes[0]?.slice(-1))] = (counts[Number(homes[0]?.slice(-1))] ?? 0) + 1;
    }
    expect(counts.map((count) => Math.round((count / names.length) * 8))).toEqual([1, 2, 5]);
  });

  test("all, for one that is used much, the home first", () => {
    const [home] = homesOf(fragment("a"), workers(0, 0), []);
    const homes = homesOf(fragment("a", 16), workers(0, 0), []);
    expect(homes[0]).toBe(home);
    expect(homes.length).toBe(2);
  });

  test("the one that holds it, whatever the hash says", () => {
    for (const name of names.slice(0, 50)) {
      expect(homesOf(fragment(name), workers(0, 0, 0), ["worker-1"])).toEqual(["worker-1"]);
    }
  });

  test("a worker that goes moves only its own fragments", () => {
    const [a, b, c] = workers(0, 0, 0);
    if (a === undefined || b === undefined || c === undefined) throw new Error("three workers");
    for (const name of names) {
      const [before] = homesOf(fragment(name), [a, b, c], []);
      const [after] = homesOf(fragment(name), [a, b], []);
      if (before !== c.id) expect(after).toBe(before);
    }
  });

  test("none without a worker", () => {
    expect(homesOf(fragment("a", 99), [], [])).toEqual([]);
  });
});
