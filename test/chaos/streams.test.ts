import { expect, test } from "bun:test";
import { effort } from "../support/effort.ts";
import { openStreams } from "./streams.ts";

const streams = effort(36, 800);

test(
  "streams side by side: all open at once, all whole, no descriptor left",
  async () => {
    // Answers are long enough for the last stream to begin before the first ends, however late this process has its turn.
    const answerTokens = effort(100, 200);
    const report = await openStreams({ streams, rounds: effort(1, 3), answerTokens, say: () => undefined });
    expect(report.faults).toEqual([]);
    for (const round of report.rounds) {
      expect(round.mostOpen).toBe(streams);
      if (process.platform === "linux") expect(round.cost.descriptors).toBeLessThanOrEqual(report.before.descriptors);
    }
  },
  effort(120_000, 600_000),
);
