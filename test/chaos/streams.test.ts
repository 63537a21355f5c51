import { expect, test } from "bun:test";
import { openStreams } from "./streams.ts";

test("streams side by side: all open at once, all whole, no descriptor left", async () => {
  const report = await openStreams({ streams: 80, rounds: 1, answerTokens: 24, say: () => undefined });
  expect(report.faults).toEqual([]);
  const [round] = report.rounds;
  expect(round?.mostOpen).toBe(80);
  if (process.platform === "linux") expect(round?.cost.descriptors).toBeLessThanOrEqual(report.before.descriptors);
}, 120_000);
