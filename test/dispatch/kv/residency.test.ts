import { describe, expect, test } from "bun:test";
import type { ChainOwner } from "../../../gateway/dispatch/kv/pending-blocks.ts";
import { Residency } from "../../../gateway/dispatch/kv/residency.ts";
import type { KvEvent, PlanRun } from "../../../worker/contract/messages.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import { fc } from "../../support/fast-check.ts";
import { spanRun } from "../rig.ts";

const key = (name: string) => name.padEnd(32, "0") as BlockKey;

/** Blocks of 16 tokens, each chained from the one before it, the first from `root`. */
function stored(root: string, ...names: string[]): KvEvent {
  const blockKeys = names.map(key);
  const previousKeys = [key(root), ...blockKeys].slice(0, names.length);
  return { sequence: 1, type: "stored", blockKeys, previousKeys, tokenCounts: names.map(() => 16) };
}

const removed = (...names: string[]): KvEvent => ({ sequence: 2, type: "removed", blockKeys: names.map(key) });

/** The first blocks of a run. */
function storedRun({ blockKeys, rootKey, tokenIds }: PlanRun, blockCount: number): KvEvent {
  const previousKeys = [rootKey, ...blockKeys].slice(0, blockCount);
  const tokenCounts = previousKeys.map((_, index) => Math.min(16, tokenIds.length - 16 * index));
  return { sequence: 1, type: "stored", blockKeys: blockKeys.slice(0, blockCount), previousKeys, tokenCounts };
}

describe("residency", () => {
  test("follows what is stored and removed, and what goes with a worker, each worker for itself", () => {
    const residency = new Residency();
    residency.apply("w0", [stored("r", "a", "b")]);
    residency.apply("w1", [stored("a", "b")]);
    expect(residency.holders(key("b"))).toEqual(["w0", "w1"]);
    residency.apply("w0", [removed("a")]);
    expect([residency.holders(key("a")), residency.blockCount("w0")]).toEqual([[], 1]);
    residency.forget("w0");
    residency.apply("w0", [stored("r", "c")]);
    expect(residency.holders(key("b"))).toEqual(["w1"]);
    expect(residency.holders(key("c"))).toEqual(["w0"]);
  });

  test("counts the first blocks of each chain that are held, the last one by its own tokens", () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 200 }), fc.nat(), (tokenCount, seed) => {
        const run = spanRun("x", tokenCount);
        const held = seed % (run.blockKeys.length + 1);
        const residency = new Residency();
        residency.apply("w", [storedRun(run, held)]);
        expect(residency.cachedTokens("w", [run], 16)).toBe(Math.min(held * 16, tokenCount));
      }),
    );
  });
});

describe("memory of the host beside the device", () => {
  const below = (event: KvEvent): KvEvent => ({ ...event, tier: "host" });

  test("is held too, told apart, and told of once where both have it", () => {
    const residency = new Residency(() => ({ tenantId: "tenant_a", isFragment: true }));
    residency.apply("w0", [stored("r", "a", "b"), below(stored("r", "a", "b", "c"))]);
    residency.apply("w0", [removed("a", "b")]);
    residency.apply("w0", [stored("r", "a")]);
    const holds = (tier?: "device" | "host") =>
      ["a", "b", "c", "d"].map((name) => residency.holds("w0", key(name), tier));
    expect([holds(), holds("device"), holds("host")]).toEqual([
      [true, true, true, false],
      [true, false, false, false],
      [true, true, true, false],
    ]);
    expect([residency.blockCount("w0"), residency.blockCount("w0", "host")]).toEqual([1, 3]);
    expect([...residency.keys("w0")].toSorted()).toEqual(["a", "b", "c"].map(key));
    expect(residency.keysOf("w0", "tenant_a", false)).toHaveLength(3);
    expect(residency.byTenant("w0").get("tenant_a")?.blockCount).toBe(1);
    expect(residency.byTenant("w0", "host").get("tenant_a")?.blockCount).toBe(3);
    residency.apply("w0", [below(removed("c"))]);
    expect(residency.holders(key("c"))).toEqual([]);
    residency.forget("w0");
    expect([residency.holders(key("a")), residency.blockCount("w0", "host")]).toEqual([[], 0]);
  });

  test("keeps a block's owner when what it was chained from is only there", () => {
    const residency = new Residency((_, root) =>
      root === key("r") ? { tenantId: "tenant_a", isFragment: false } : undefined,
    );
    residency.apply("w0", [stored("r", "a", "b"), below(stored("r", "a", "b")), removed("a", "b")]);
    residency.apply("w0", [stored("a", "b")]);
    expect([...residency.byTenant("w0").keys()]).toEqual(["tenant_a"]);
  });

  test("counts the tokens that have to come up", () => {
    const run = spanRun("x", 100);
    const residency = new Residency();
    residency.apply("w", [storedRun(run, 2), below(storedRun(run, 5))]);
    expect([residency.cachedTokens("w", [run], 16), residency.tokensBelow("w", [run], 16)]).toEqual([80, 48]);
  });
});

describe("accounting", () => {
  const owners = new Map<BlockKey, ChainOwner>([
    [key("ra"), { tenantId: "tenant_a", isFragment: false }],
    [key("rf"), { tenantId: "tenant_a", isFragment: true }],
    [key("rb"), { tenantId: "tenant_b", isFragment: false }],
  ]);
  const open = () => new Residency((_, root) => owners.get(root));

  test("a block is its chain's owner's, also one that was generated later", () => {
    const residency = open();
    residency.apply("w0", [stored("ra", "a0"), stored("rb", "b0", "b1"), stored("rf", "f0"), stored("a0", "a1")]);
    residency.apply("w1", [stored("rb", "b0")]);
    expect(residency.byTenant("w0")).toEqual(
      new Map([
        ["tenant_a", { blockCount: 3, tokenCount: 48, fragmentBlockCount: 1 }],
        ["tenant_b", { blockCount: 2, tokenCount: 32, fragmentBlockCount: 0 }],
      ]),
    );
    expect(residency.byTenant("w1").get("tenant_b")).toMatchObject({ blockCount: 1 });
  });

  test("what is removed is counted no more; a block told twice is counted once", () => {
    const residency = open();
    residency.apply("w0", [stored("ra", "a0", "a1"), stored("ra", "a0"), removed("a1", "never there")]);
    expect(residency.byTenant("w0").get("tenant_a")).toMatchObject({ blockCount: 1, tokenCount: 16 });
    residency.apply("w0", [removed("a0")]);
    expect(residency.byTenant("w0").size).toBe(0);
  });

  test("a worker that is gone holds nothing", () => {
    const residency = open();
    residency.apply("w0", [stored("ra", "a0")]);
    residency.forget("w0");
    expect([residency.byTenant("w0").size, residency.blockCount("w0")]).toEqual([0, 0]);
  });
});
