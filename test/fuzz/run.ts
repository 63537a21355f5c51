/** The fuzzer as a program: `bun test/fuzz/run.ts [--cases 10000] [--seed 1] [--only json|headers]`. */
import { parseArgs } from "node:util";
import { runCampaign } from "./campaign.ts";
import { runHeads } from "./headers.ts";
import { type FuzzWorld, openWorld } from "./world.ts";

interface RunOptions {
  readonly cases: number;
  readonly seed: number;
}

async function fuzzBodies(world: FuzzWorld, options: RunOptions): Promise<readonly string[]> {
  const report = await runCampaign(world, options);
  const lines = [...report.statuses].sort().map(([name, count]) => `${String(count).padStart(6)} ${name}`);
  lines.push(`json: ${report.cases} cases, slowest ${Math.round(report.slowestMs)} ms`);
  process.stdout.write(`${lines.join("\n")}\n`);
  return report.faults;
}

async function fuzzHeads(world: FuzzWorld, options: RunOptions): Promise<readonly string[]> {
  const faults = await runHeads(world, options);
  process.stdout.write(`headers: ${options.cases} cases\n`);
  return faults;
}

const { values } = parseArgs({
  options: {
    cases: { type: "string", default: "10000" },
    seed: { type: "string", default: "1" },
    only: { type: "string", default: "" },
  },
});
const options = { cases: Number(values.cases), seed: Number(values.seed) };
const parts = { json: fuzzBodies, headers: fuzzHeads };

await using world = await openWorld();
const faults: string[] = [];
for (const [name, fuzz] of Object.entries(parts)) {
  if (values.only !== "" && values.only !== name) continue;
  const startMs = performance.now();
  const found = await fuzz(world, options);
  faults.push(...found);
  process.stdout.write(`${name}: ${found.length} faults in ${((performance.now() - startMs) / 1_000).toFixed(1)} s\n`);
}
process.stdout.write(faults.map((fault) => `${fault}\n`).join(""));
process.exitCode = faults.length === 0 ? 0 : 1;
