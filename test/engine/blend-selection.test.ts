/** Which copied tokens are computed again. */
import { describe, expect, test } from "bun:test";
import { recomputeCount, selectTokens } from "../../worker/blend/blending.ts";
import { fc } from "../support/fast-check.ts";

describe("selection", () => {
  test("all that is not copied, and of the rest those that deviate most, the earlier of equals, in order", () => {
    const copied = Uint8Array.of(0, 1, 1, 1, 0, 1, 1);
    const deviations = Float32Array.of(9, 2, 5, 1, Number.NaN, 5, 2);
    expect([0, 1, 2, 3, 5].map((count) => [...selectTokens(copied, deviations, count)])).toEqual([
      [0, 4],
      [0, 2, 4],
      [0, 2, 4, 5],
      [0, 1, 2, 4, 5],
      [0, 1, 2, 3, 4, 5, 6],
    ]);
  });

  test("no deviation left out is greater than one chosen; what is no number is chosen first", () => {
    const token = fc.record({ copied: fc.boolean(), deviation: fc.float({ noNaN: false }) });
    fc.assert(
      fc.property(fc.array(token, { maxLength: 40 }), fc.double({ min: 0, max: 1, noNaN: true }), (tokens, ratio) => {
        const copied = Uint8Array.from(tokens, (each) => (each.copied ? 1 : 0));
        const count = recomputeCount(tokens.filter((each) => each.copied).length, ratio);
        const deviations = Float32Array.from(tokens, (each) => each.deviation);
        const selected = new Set(selectTokens(copied, deviations, count));
        expect(selected.size).toBe(tokens.filter((each) => !each.copied).length + count);
        expect([...selected]).toEqual([...selected].toSorted((a, b) => a - b));
        const sizes = Array.from(deviations, (d) => (Number.isNaN(d) ? Number.POSITIVE_INFINITY : d));
        const chosen = sizes.filter((_, i) => copied[i] === 1 && selected.has(i));
        const left = sizes.filter((_, i) => copied[i] === 1 && !selected.has(i));
        if (chosen.length > 0 && left.length > 0) expect(Math.min(...chosen)).toBeGreaterThanOrEqual(Math.max(...left));
        tokens.forEach((each, i) => {
          if (!each.copied) expect(selected.has(i)).toBe(true);
        });
      }),
    );
  });

  test.each([
    [20, 0.15, 3],
    [100, 0.07, 7],
    [10, 0.11, 2],
    [7, 1, 7],
    [7, 0, 0],
    [0, 0.5, 0],
  ])("of %i copied tokens at ratio %d: %i", (copiedTokens, ratio, count) => {
    expect(recomputeCount(copiedTokens, ratio)).toBe(count);
  });
});
