import { describe, expect, test } from "bun:test";
import { type FragmentHolder, FragmentPlacement } from "../../../gateway/dispatch/placement/fragment-placement.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";

/** Pools of 100 blocks, of which fragments take so many. */
const workers = (...taken: number[]): FragmentHolder[] =>
  taken.map((fragmentBlockCount, index) => ({ id: `worker-${index}`, blockCount: 100, fragmentBlockCount }));
const fragment = (corpus: string, uses = 0) => ({ corpus, spanKey: `${corpus} key` as BlockKey, blockCount: 5, uses });
const names = Array.from({ length: 200 }, (_, index) => `corpus ${index}`);

describe("homes of a fragment", () => {
  test("every worker, while fragments take little of the pools", () => {
    const homes = new FragmentPlacement(10);
    expect(homes.of(fragment("a"), workers(20, 20, 20), []).toSorted()).toEqual(["worker-0", "worker-1", "worker-2"]);
    expect(homes.of(fragment("a"), workers(21, 21, 21), []).length).toBe(1);
  });

  test("of a corpus's fragments the same one, while that has room; then the one with most", () => {
    const homes = new FragmentPlacement(10);
    expect(homes.of(fragment("a"), workers(60, 50, 70), [])).toEqual(["worker-1"]);
    expect(homes.of(fragment("a"), workers(30, 70, 70), [])).toEqual(["worker-1"]);
    expect(homes.of(fragment("a"), workers(40, 71, 30), [])).toEqual(["worker-2"]);
  });

  test("corpora spread over workers that are alike", () => {
    const homes = new FragmentPlacement(1_000);
    const counts = new Map<string, number>();
    for (const name of names) {
      const [home = ""] = homes.of(fragment(name), workers(40, 40), []);
      counts.set(home, (counts.get(home) ?? 0) + 1);
    }
    expect(Math.min(...counts.values())).toBeGreaterThan(names.length / 3);
    expect(counts.size).toBe(2);
  });

  test("its corpus's, where no worker has room", () => {
    const homes = new FragmentPlacement(10);
    const [home = ""] = homes.of(fragment("a"), workers(50, 60), []);
    expect(homes.of(fragment("a"), workers(90, 80), [])).toEqual([home]);
  });

  test("all, for one that is used much, the home first", () => {
    const homes = new FragmentPlacement(10);
    expect(homes.of(fragment("a", 16), workers(99, 80, 95), [])).toEqual(["worker-1", "worker-0", "worker-2"]);
    expect(homes.of(fragment("a", 15.9), workers(99, 80, 95), [])).toEqual(["worker-1"]);
  });

  test("those that hold it, whatever else", () => {
    const homes = new FragmentPlacement(10);
    expect(homes.of(fragment("a"), workers(30, 30, 90), ["worker-2"])).toEqual(["worker-2"]);
    expect(homes.of(fragment("a"), workers(30, 30, 90), ["worker-2", "worker-1"]).toSorted()).toEqual([
      "worker-1",
      "worker-2",
    ]);
  });

  test("another, when the home has gone; none without a worker", () => {
    const homes = new FragmentPlacement(10);
    const [home = ""] = homes.of(fragment("a"), workers(40, 40), []);
    const left = workers(40, 40).filter(({ id }) => id !== home);
    expect(homes.of(fragment("a"), left, [])).toEqual(left.map(({ id }) => id));
    expect(homes.of(fragment("a", 99), [], [])).toEqual([]);
  });
});
