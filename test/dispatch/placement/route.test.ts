import { describe, expect, test } from "bun:test";
import { type Candidate, chooseWorker } from "../../../gateway/dispatch/placement/route.ts";
import { fc } from "../../support/fast-check.ts";

const idle = (id: string, cachedTokens = 0): Candidate => ({
  id,
  cachedTokens,
  upcomingTokens: 0,
  fileTokens: 0,
  loadCost: 0,
  pendingTokens: 0,
  inFlight: 0,
});

describe("chooseWorker", () => {
  test("prefers the worker that holds more", () => {
    expect(chooseWorker([idle("a", 0), idle("b", 500)], 1000, "")).toBe("b");
  });

  test("of workers that have as much to do, one that holds more is always taken", () => {
    const load = { pendingTokens: fc.nat(10_000), inFlight: fc.nat(100) };
    fc.assert(
      fc.property(
        fc.record(load),
        fc.nat(999),
        fc.integer({ min: 1, max: 999 }),
        fc.string(),
        (same, less, more, name) => {
          const holdsLess = { ...idle("a", less), ...same };
          const holdsMore = { ...idle("b", less + more), ...same };
          expect(chooseWorker([holdsLess, holdsMore], 2_000, name)).toBe("b");
        },
      ),
    );
  });

  test("follows what another request is about to compute, rather than computing it twice", () => {
    const computing = { ...idle("a"), upcomingTokens: 900, pendingTokens: 900, inFlight: 1 };
    expect(chooseWorker([computing, idle("b")], 1000, "")).toBe("a");
  });

  test("a worker that loads is worth less than one that holds, and more than one that computes", () => {
    const below = { ...idle("b", 900), loadCost: 450 };
    const files = { ...idle("c"), fileTokens: 900, loadCost: 450 };
    expect(chooseWorker([idle("a"), below], 1000, "")).toBe("b");
    expect(chooseWorker([idle("a"), files], 1000, "")).toBe("c");
    for (const [holder, other] of [
      ["a", "b"],
      ["b", "a"],
    ] as const) {
      const holds = idle(holder, 900);
      expect(chooseWorker([holds, { ...below, id: other }], 1000, "")).toBe(holder);
      expect(chooseWorker([holds, { ...files, id: other }], 1000, "")).toBe(holder);
    }
    // Who loads waits alone: a loaded prompt is no reason to stand in the line of a busy worker.
    const busy = { ...idle("a", 900), pendingTokens: 500 };
    expect(chooseWorker([busy, files], 1000, "")).toBe("c");
  });

  test("does not queue behind more work than the cache saves", () => {
    const busy = { ...idle("b", 500), pendingTokens: 2_000, inFlight: 1 };
    expect(chooseWorker([idle("a"), busy], 1000, "")).toBe("a");
  });

  test("lets a long computation stand in the way of few: a little that is held does not pay for it", () => {
    const busy = { ...idle("b", 100), inFlight: 8 };
    expect(chooseWorker([idle("a"), busy], 1_000, "")).toBe("a");
    // All of it held does.
    expect(chooseWorker([idle("a"), { ...busy, cachedTokens: 990 }], 1_000, "")).toBe("b");
  });

  test("is deterministic, and affinity decides between equals whatever their order", () => {
    const choice = chooseWorker([idle("a"), idle("b"), idle("c")], 10, "tenant");
    expect(chooseWorker([idle("c"), idle("b"), idle("a")], 10, "tenant")).toBe(choice as string);
    const choices = new Set(Array.from({ length: 64 }, (_, n) => chooseWorker([idle("a"), idle("b")], 10, `t${n}`)));
    expect([...choices].sort()).toEqual(["a", "b"]);
  });

  test("nothing to choose from", () => {
    expect(chooseWorker([], 10, "")).toBeUndefined();
  });
});
