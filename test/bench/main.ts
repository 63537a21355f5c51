/** `bun run bench NAME`: a table for people, and one JSON object as the last line for programs. */
import { writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { CommandError } from "../../gateway/cli/support/command.ts";
import { textTable } from "../../gateway/cli/support/text-table.ts";
import type { Bench, BenchReport } from "./bench.ts";
import { bulkBench } from "./bulk.ts";
import { consoleBench } from "./console.ts";
import { decodeBench } from "./decode.ts";
import { deleteBench } from "./delete.ts";
import { determinismBench } from "./determinism.ts";
import { kernelsBench } from "./kernels.ts";
import { killGatewayBench } from "./kill-gateway.ts";
import { killWorkerBench } from "./kill-worker.ts";
import { kvWritesBench } from "./kv-writes.ts";
import { lightTenantBench } from "./light-tenant.ts";
import { llamaBench } from "./llama.ts";
import { loweringBench } from "./lowering.ts";
import { masksBench } from "./masks.ts";
import { memoryBench } from "./memory.ts";
import { needleBench } from "./needle.ts";
import { nestedBench } from "./nested.ts";
import { overheadBench } from "./overhead.ts";
import { packBench } from "./pack.ts";
import { poolBench } from "./pool.ts";
import { qualityBench } from "./quality.ts";
import { ragBench } from "./rag.ts";
import { readingBench } from "./reading.ts";
import { restartBench } from "./restart.ts";
import { retrievalBench } from "./retrieval.ts";
import { reuseDecayBench } from "./reuse-decay.ts";
import { sparseBench } from "./sparse.ts";
import { stallsBench } from "./stalls.ts";
import { streamsBench } from "./streams.ts";
import { structuredBench } from "./structured.ts";
import { commit, hardware } from "./support/hardware.ts";
import { pictureOf, readResult } from "./support/picture.ts";
import { figure } from "./support/stats.ts";
import { tiersBench } from "./tiers.ts";
import { timingBench } from "./timing.ts";
import { tracesBench } from "./traces.ts";
import { zipfBench } from "./zipf.ts";

const benches: readonly Bench[] = [
  ragBench,
  decodeBench,
  kernelsBench,
  overheadBench,
  llamaBench,
  memoryBench,
  masksBench,
  determinismBench,
  qualityBench,
  readingBench,
  loweringBench,
  nestedBench,
  bulkBench,
  needleBench,
  retrievalBench,
  deleteBench,
  packBench,
  poolBench,
  zipfBench,
  timingBench,
  killWorkerBench,
  killGatewayBench,
  restartBench,
  tiersBench,
  kvWritesBench,
  streamsBench,
  tracesBench,
  consoleBench,
  reuseDecayBench,
  lightTenantBench,
  stallsBench,
  structuredBench,
  sparseBench,
];

function listText(): string {
  return benches
    .flatMap(({ name, summary, options }) => [
      `${name.padEnd(13)}${summary}`,
      ...Object.entries(options ?? {}).map(([flag, text]) => `${" ".repeat(15)}--${flag}  ${text}`),
    ])
    .join("\n");
}

function printReport(report: BenchReport): void {
  console.log(textTable(report.header, report.rows));
  for (const note of report.notes ?? []) console.log(note);
  const bars = report.bars.map(({ name, value, at, bound, ok }) => [
    name,
    figure(value),
    `at ${at} ${figure(bound)}`,
    ok ? "ok" : "MISSED",
  ]);
  if (bars.length > 0) console.log(`\n${textTable(["bar", "value", "bound", ""], bars)}`);
}

async function main(args: readonly string[]): Promise<number> {
  const optionNames = new Set(benches.flatMap(({ options }) => Object.keys(options ?? {})));
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      list: { type: "boolean" },
      plot: { type: "string" },
      results: { type: "string" },
      ...Object.fromEntries([...optionNames].map((name) => [name, { type: "string" as const }])),
    },
  });
  if (values.list) {
    console.log(listText());
    return 0;
  }
  const bench = benches.find(({ name }) => name === positionals[0]);
  if (bench === undefined || positionals.length > 1) {
    const [given, extra] = positionals;
    const wrong = [given, extra].find((name) => name !== undefined && name !== bench?.name);
    if (wrong !== undefined) console.error(`There is no benchmark "${wrong}".`);
    const names = benches.map(({ name }) => name).join(", ");
    console.error(
      `Usage: bun run bench NAME [--plot FILE.svg [--results FILE.json]]\nNAME is one of ${names}.\n"bun run bench --list" tells what each measures.`,
    );
    return 2;
  }
  const { plot, results } = values;
  if (typeof results === "string" && typeof plot !== "string") throw new CommandError("--results needs --plot");
  if (typeof plot === "string" && bench.plot === undefined) {
    const drawn = benches.filter((each) => each.plot !== undefined).map(({ name }) => name);
    throw new CommandError(`${bench.name} has no curve; these have one: ${drawn.join(", ")}`);
  }
  if (typeof plot === "string" && typeof results === "string") {
    writeFileSync(plot, pictureOf(bench, readResult(results, bench.name)));
    return 0;
  }
  const report = await bench.run({
    option: (name) => {
      const value = Object.entries(values).find(([key]) => key === name)?.[1];
      return typeof value === "string" ? value : undefined;
    },
    say: (line) => console.error(line),
  });
  printReport(report);
  const { model, bars, details } = report;
  const line = { bench: bench.name, commit: await commit(), hardware: await hardware(), model, bars, ...details };
  console.log(JSON.stringify(line));
  if (typeof plot === "string") writeFileSync(plot, pictureOf(bench, line));
  return bars.every(({ ok }) => ok) ? 0 : 1;
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  const isUsage = error instanceof TypeError && "code" in error && String(error.code).startsWith("ERR_PARSE_ARGS");
  if (!isUsage && !(error instanceof CommandError)) throw error;
  console.error(`bench: ${error.message}`);
  process.exitCode = isUsage ? 2 : 1;
}
process.exit();
