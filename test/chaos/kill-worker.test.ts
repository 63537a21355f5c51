import { expect, test } from "bun:test";
import { startTestServer } from "../support/server.ts";
import { killWorkers, wrongEnds } from "./kill-worker.ts";

test("kill -9 of a worker under load: requests end whole or with worker_lost, and none is forgotten", async () => {
  await using server = await startTestServer({ env: { SPANGATE_MAX_RUNNING: "8" } });
  const report = await killWorkers(server, { times: 2, open: 12, calmMs: 300, say: () => undefined });
  expect(wrongEnds(report)).toEqual([]);
  expect(report.toldMs.length).toBeGreaterThan(0);
  expect(report.outcomes.filter(({ end }) => end === "whole").length).toBeGreaterThan(12);
}, 120_000);
