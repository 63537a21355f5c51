import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { Residency } from "../../gateway/dispatch/residency.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { spanRun } from "./rig.ts";

const key = (name: string) => name.padEnd(32, "0") as BlockKey;

describe("residency", () => {
  test("follows stored, removed and cleared events, each worker for itself", () => {
    const residency = new Residency();
    residency.apply("w0", [{ sequence: 1, type: "stored", blockKeys: [key("a"), key("b")] }]);
    residency.apply("w1", [{ sequence: 1, type: "stored", blockKeys: [key("b")] }]);
    expect(residency.holders(key("b"))).toEqual(["w0", "w1"]);
    residency.apply("w0", [{ sequence: 2, type: "removed", blockKeys: [key("a")] }]);
    expect([residency.holders(key("a")), residency.blockCount("w0")]).toEqual([[], 1]);
    residency.apply("w0", [
      { sequence: 3, type: "cleared", blockKeys: [] },
      { sequence: 4, type: "stored", blockKeys: [key("c")] },
    ]);
    expect(residency.holders(key("b"))).toEqual(["w1"]);
    expect(residency.holders(key("c"))).toEqual(["w0"]);
  });

  test("counts the first blocks of each chain that are held, the last one by its own tokens", () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 200 }), fc.nat(), (tokenCount, seed) => {
        const run = spanRun("x", tokenCount);
        const held = seed % (run.blockKeys.length + 1);
        const residency = new Residency();
        residency.apply("w", [{ sequence: 1, type: "stored", blockKeys: run.blockKeys.slice(0, held) }]);
        expect(residency.cachedTokens("w", [run], 16)).toBe(Math.min(held * 16, tokenCount));
      }),
    );
  });
});
