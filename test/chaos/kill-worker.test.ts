import { expect, test } from "bun:test";
import { limits } from "../../gateway/config.ts";
import { effort } from "../support/effort.ts";
import { startTestServer } from "../support/server.ts";
import { killWorkers, wrongEnds } from "./kill-worker.ts";

/** The worker checks its bookkeeping after every step, over a pool that is small enough for it. */
const env = { SPANGATE_MAX_RUNNING: "8", SPANGATE_DEBUG: "1", SPANGATE_KV_BYTES: String(2 << 20) };

test(
  "kill -9 of a worker under load: requests end whole or with worker_lost, and none is forgotten",
  async () => {
    await using server = await startTestServer({ model: "one-layer", env });
    const report = await killWorkers(server, { times: effort(2, 50), open: 12, calmMs: 300, say: () => undefined });
    expect(wrongEnds(report)).toEqual([]);
    // One kill more may have come before the server had read the request, and one while its answer was on its way.
    expect(Math.max(...report.outcomes.map(({ metKills }) => metKills))).toBeLessThanOrEqual(limits.deaths + 2);
    expect(report.toldMs.length).toBeGreaterThan(0);
    expect(report.outcomes.filter(({ end }) => end === "whole").length).toBeGreaterThanOrEqual(12);
  },
  effort(120_000, 3_600_000),
);
