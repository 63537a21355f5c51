import { describe, expect, test } from "bun:test";
import { philox4x32, uniform } from "../../worker/sample/rng.ts";

describe("philox4x32", () => {
  // Random123's known answers (kat_vectors, philox4x32 10).
  test("known answers", () => {
    expect(philox4x32([0, 0, 0, 0], [0, 0])).toEqual([0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
    const ones = 0xffffffff;
    expect(philox4x32([ones, ones, ones, ones], [ones, ones])).toEqual([
      0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd,
    ]);
    expect(philox4x32([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0])).toEqual([
      0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1,
    ]);
  });
});

describe("uniform", () => {
  test("lies in [0, 1), is even, and depends on seed and index alone", () => {
    const counts = new Array<number>(16).fill(0);
    for (let index = 0; index < 16_000; index++) {
      const value = uniform(7, index);
      expect(value >= 0 && value < 1).toBe(true);
      counts[Math.floor(16 * value)] += 1;
    }
    // Chi-square with 15 degrees of freedom: 37.7 is its 99.9 % point. The numbers are fixed, so is the outcome.
    expect(counts.reduce((sum, count) => sum + (count - 1_000) ** 2 / 1_000, 0)).toBeLessThan(37.7);
    expect(uniform(7, 3)).toBe(uniform(7, 3));
  });

  test("seeds that differ in any half have other streams", () => {
    const seeds = [0, 1, -1, 2 ** 32, 2 ** 32 + 1, Number.MAX_SAFE_INTEGER, Number.MIN_SAFE_INTEGER];
    expect(new Set(seeds.map((seed) => uniform(seed, 0))).size).toBe(seeds.length);
    expect(uniform(0, 1)).not.toBe(uniform(0, 2 ** 32 + 1));
  });
});
