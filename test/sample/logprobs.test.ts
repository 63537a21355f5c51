import { describe, expect, test } from "bun:test";
import { tokenLogprob } from "../../worker/sample/logprobs.ts";
import { fc } from "../support/fast-check.ts";

describe("tokenLogprob", () => {
  test("log of the softmax, the likeliest first, ties by lowest id", () => {
    const logits = Float32Array.of(0, 1, 1, -2);
    const total = Math.log(1 + 2 * Math.E + Math.exp(-2));
    const { logprob, top } = tokenLogprob(logits, 0, 3);
    expect(logprob).toBeCloseTo(-total, 6);
    expect(top.map(([tokenId]) => tokenId)).toEqual([1, 2, 0]);
    expect(top[0][1]).toBeCloseTo(1 - total, 6);
    expect(tokenLogprob(logits, 3, 0).top).toEqual([]);
  });

  test("large logits do not overflow", () => {
    expect(tokenLogprob(Float32Array.of(1e30, 0), 0, 0).logprob).toBe(0);
    expect(tokenLogprob(Float32Array.of(-1e4, -1e4), 1, 0).logprob).toBeCloseTo(-Math.log(2), 3);
  });

  test("the alternatives are the head of the sorted vocabulary", () => {
    const row = fc.array(fc.integer({ min: -9, max: 9 }), { minLength: 1, maxLength: 60 });
    const property = fc.property(row, fc.integer({ min: 1, max: 20 }), (values, count) => {
      const sorted = values.map((_, tokenId) => tokenId).sort((a, b) => values[b] - values[a] || a - b);
      const { top } = tokenLogprob(Float32Array.from(values), 0, count);
      expect(top.map(([tokenId]) => tokenId)).toEqual(sorted.slice(0, count));
    });
    fc.assert(property, { numRuns: 200 });
  });
});
