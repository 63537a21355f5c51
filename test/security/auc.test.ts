import { expect, test } from "bun:test";
import { aucOf } from "../bench/support/auc.ts";

test("the area is the share of pairs in order, ties counted half", () => {
  expect(aucOf([1, 2], [3, 4])).toEqual({ auc: 1, from: 1, to: 1 });
  expect(aucOf([3, 4], [1, 2]).auc).toBe(0);
  expect(aucOf([1, 2, 3], [1, 2, 3]).auc).toBe(0.5);
  expect(aucOf([1, 4], [2, 4, 5]).auc).toBeCloseTo((1 + 1 + 1 + 0 + 0.5 + 1) / 6, 12);
  expect(() => aucOf([1], [2, 3])).toThrow("two values");
});

test("the interval is DeLong's: of values drawn alike it holds one half about 95 times of 100", () => {
  let state = 1;
  const next = (): number => {
    state = (state * 48271) % 2147483647;
    return state / 2147483647;
  };
  const draw = (count: number): number[] => Array.from({ length: count }, next);
  let holds = 0;
  let width = 0;
  for (let round = 0; round < 400; round++) {
    const { from, to } = aucOf(draw(100), draw(100));
    if (from <= 0.5 && to >= 0.5) holds += 1;
    width += (to - from) / 400;
  }
  expect(holds / 400).toBeGreaterThan(0.92);
  expect(holds / 400).toBeLessThan(0.98);
  // Two samples of n values: the area's variance is (2n + 1) / (12 n²).
  expect(width).toBeCloseTo(2 * 1.96 * Math.sqrt(201 / 120_000), 2);
});
