/** The fuzzer as a program: `bun test/fuzz/run.ts [--cases 10000] [--seed 1] [--concurrency 8]`. */
import { parseArgs } from "node:util";
import { runCampaign } from "./campaign.ts";
import { openWorld } from "./world.ts";

const { values } = parseArgs({
  options: {
    cases: { type: "string", default: "10000" },
    seed: { type: "string", default: "1" },
    concurrency: { type: "string", default: "8" },
  },
});

await using world = await openWorld();
const startMs = performance.now();
const report = await runCampaign(world, {
  cases: Number(values.cases),
  seed: Number(values.seed),
  concurrency: Number(values.concurrency),
});
const lines = [...report.statuses].sort().map(([name, count]) => `${String(count).padStart(6)} ${name}`);
const seconds = ((performance.now() - startMs) / 1_000).toFixed(1);
lines.push(
  `${report.cases} cases in ${seconds} s, slowest ${Math.round(report.slowestMs)} ms, ${report.faults.length} faults`,
);
process.stdout.write(`${[...lines, ...report.faults].join("\n")}\n`);
process.exitCode = report.faults.length === 0 ? 0 : 1;
