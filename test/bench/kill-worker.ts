/** A worker that is killed under load, a hundred times: how every request ends, and after how long. See test/chaos. */
import { CommandError } from "../../gateway/cli/support/command.ts";
import { killWorkers, wrongEnds } from "../chaos/kill-worker.ts";
import { startTestServer } from "../support/server.ts";
import { atLeast, atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { figure, quantile } from "./support/stats.ts";

const defaultTimes = 100;
/** A worker that stayed for 5 s starts again at once; one that falls sooner waits longer each time. */
const calmMs = 5_200;
const openRequests = 8;

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const [times, workers] = [Number(option("times") ?? defaultTimes), Number(option("workers") ?? 1)];
  if (!Number.isInteger(times) || times < 1) throw new CommandError("--times is a whole number, 1 or more");
  if (!Number.isInteger(workers) || workers < 1) throw new CommandError("--workers is a whole number, 1 or more");
  const devices = Array.from({ length: workers }, () => "cpu").join(",");
  // Fewer places than requests, so that some wait at the gateway.
  await using server = await startTestServer({ env: { SPANGATE_DEVICES: devices, SPANGATE_MAX_RUNNING: "6" } });
  const report = await killWorkers(server, { times, open: openRequests, calmMs, say });
  const { outcomes, toldMs, backMs } = report;
  const wrong = wrongEnds(report);
  const longestSilentMs = (some: typeof outcomes, metKill: boolean): number =>
    Math.max(0, ...some.filter((outcome) => outcome.metKills > 0 === metKill).map(({ silentMs }) => silentMs));
  const kinds = [...new Set(outcomes.map(({ kind }) => kind))];
  return {
    model: server.model,
    header: ["request", "ended", "whole", "worker_lost", "other", "longest silence ms", "without a kill"],
    rows: kinds.map((kind) => {
      const ended = outcomes.filter((outcome) => outcome.kind === kind);
      const count = (end: string) => ended.filter((outcome) => outcome.end === end).length;
      const [whole, lost] = [count("whole"), count("worker_lost")];
      const silent = [true, false].map((metKill) => figure(longestSilentMs(ended, metKill)));
      return [kind, ...[ended.length, whole, lost, ended.length - whole - lost].map(String), ...silent];
    }),
    notes: [
      "Silence: from sending to the first token, between tokens, to the end; of answers that are not streamed all of it.",
      `${report.kills} kills with ${report.openAtKills} requests open at them, ${openRequests} at a time.`,
      `worker_lost was told after ${figure(quantile(toldMs, 0.5))} ms (p50), ${figure(Math.max(...toldMs))} ms at most;`,
      `a worker was ready again after ${figure(quantile(backMs, 0.5))} ms (p50), ${figure(Math.max(...backMs))} ms at most.`,
      ...[...new Set(wrong.map(({ kind, end }) => `${kind}: ${end}`))],
    ],
    bars: [
      atLeast("kills with requests open", report.kills, times),
      atMost("requests that ended neither whole nor with worker_lost", wrong.length, 0),
      atMost("longest silence of a request that was open at a kill, ms", longestSilentMs(outcomes, true), 5_000),
      atLeast("requests cut by a kill", toldMs.length, times),
    ],
    details: { requests: outcomes.length, openAtKills: report.openAtKills, workers },
  };
}

export const killWorkerBench: Bench = {
  name: "kill-worker",
  summary: "kill -9 of a worker under load: every request ends whole or with worker_lost, none hangs",
  options: {
    times: `N  kills (default ${defaultTimes})`,
    workers: "N  workers of the server (1)",
  },
  run,
};
