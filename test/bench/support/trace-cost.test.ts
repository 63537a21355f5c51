/** What traces cost is measured by differences: of streams that were all whole, of which two gateways kept each. */
import { expect, test } from "bun:test";
import { measured, traceCost } from "./trace-cost.ts";

test("each stream with traces is kept, by both that keep them", async () => {
  const { kept, streams, addedUs, controlUs } = await traceCost({ turns: 2, warmUpTurns: 1, answerTokens: 4 });
  expect([kept, streams]).toEqual([48, 48]);
  for (const { low, median, high } of [addedUs, controlUs]) {
    expect(low).toBeLessThanOrEqual(median);
    expect(median).toBeLessThanOrEqual(high);
  }
});

test("a median's interval is between the order statistics that hold it", () => {
  // Of 100 samples the 40th and the 61st, by the table of the binomial distribution.
  expect(measured(Array.from({ length: 100 }, (_, at) => 100 - at))).toEqual({ median: 50.5, low: 41, high: 60 });
  expect(measured([7])).toEqual({ median: 7, low: 7, high: 7 });
});
