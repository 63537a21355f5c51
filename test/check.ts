/**
 * Everything that has to hold before a change lands, in one command: `bun run check [--all | --quick] [--only STAGE]… [PATH…]`.
 * A line for each tool and test file, or folder of light ones, as it ends, the whole output of what failed, and a last line of sums.
 */
import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { CommandError } from "../gateway/cli/support/command.ts";
import { prepareKernels } from "../gateway/cli/support/kernels.ts";
import { ensureInstalled, repositoryRoot } from "../gateway/cli/support/setup.ts";
import { sumLine, sumOf } from "./check/counts.ts";
import { longestFirst, readDurations, writeDurations } from "./check/durations.ts";
import { selectJobs, stageNames } from "./check/jobs.ts";
import { type Outcome, runJobs } from "./check/pool.ts";
import { longVariable } from "./support/effort.ts";

const usage = `Usage: bun run check [--all | --quick] [--only STAGE]... [PATH...]

  --all         Chaos and fuzz tests run in their long form (an hour or so), and every test file in a process of its own.
  --quick       Types, lint, and the tests of seconds that a change anywhere can make red.
  --only STAGE  One of ${stageNames.join(", ")}; can be given more than once.
  PATH          A test file or a folder of tests, as test/engine.
`;

const durationsPath = join(repositoryRoot, ".build", "check-durations.json");
const usualDurationsPath = join(import.meta.dir, "check", "durations.json");
const seconds = (ms: number): string => `${(ms / 1_000).toFixed(1)} s`;

function readArguments() {
  try {
    return parseArgs({
      args: process.argv.slice(2),
      allowPositionals: true,
      options: {
        all: { type: "boolean", default: false },
        quick: { type: "boolean", default: false },
        only: { type: "string", multiple: true, default: [] },
        help: { type: "boolean", short: "h", default: false },
      },
    });
  } catch (error) {
    throw new CommandError(`${error instanceof Error ? error.message : String(error)}\n\n${usage}`);
  }
}

/**
 * One thread for each worker that a test starts: the cores are taken by tests beside each other. Tests that load
 * onnxruntime themselves send its maker nothing, as workers do not. TypeScript's compiler is a program in Go that would
 * take a third of its time to collect garbage, and ends with little more memory without: it collects none below 2 GiB.
 */
const environment = () => ({
  SPANGATE_THREADS: "1",
  ORT_DISABLE_TELEMETRY: "1",
  GOGC: "off",
  GOMEMLIMIT: "2GiB",
  ...process.env,
});

/**
 * Most processes of the short forms live for seconds. JavaScriptCore's compilers make code for a longer life than that: a
 * function has to have run four times as often as by default (500, 1,000) before the first two compile it, and ten times
 * as often (100,000) for the last, FTL. The last takes a twelfth off the tests' processor time, the others a tenth of a
 * server's and a twentieth of a folder's of light tests; simulations, which run longest, take a twentieth more.
 */
const shortLives = {
  BUN_JSC_thresholdForJITAfterWarmUp: "2000",
  BUN_JSC_thresholdForOptimizeAfterWarmUp: "4000",
  BUN_JSC_thresholdForFTLOptimizeAfterWarmUp: "1000000",
};

function showOutcome({ job, durationMs, cpuMs, output, ...counts }: Outcome): void {
  const times = `${seconds(durationMs)}, cpu ${seconds(cpuMs)}`;
  if (counts.failed === 0) console.log(`ok      ${job.name}: ${sumLine(counts)}, ${times}`);
  else console.log(`FAILED  ${job.name}: ${sumLine(counts)}, ${times}\n${output.trimEnd()}\n── end of ${job.name}\n`);
}

function showSums(outcomes: readonly Outcome[], durationMs: number): void {
  console.log("");
  for (const stage of stageNames) {
    const own = outcomes.filter(({ job }) => job.stage === stage);
    if (own.length === 0) continue;
    const cpuMs = own.reduce((sum, outcome) => sum + outcome.cpuMs, 0);
    console.log(`${stage.padEnd(12)} ${sumLine(sumOf(own))}; ${seconds(cpuMs)} of processor time`);
  }
  for (const { job, failed } of outcomes) if (failed > 0) console.log(`FAILED  ${job.name}`);
  console.log(`\n${seconds(durationMs)}\n${sumLine(sumOf(outcomes))}`);
}

async function main(): Promise<number> {
  const { values, positionals } = readArguments();
  if (values.help) {
    console.log(usage);
    return 0;
  }
  const testFiles = [...new Bun.Glob("test/**/*.test.ts").scanSync(repositoryRoot)].sort();
  const selected = selectJobs(
    { only: values.only, paths: positionals, alone: values.all, quick: values.quick },
    testFiles,
  );
  await ensureInstalled();
  await prepareKernels();
  const measured = { ...readDurations(usualDurationsPath), ...readDurations(durationsPath) };
  const scratch = mkdtempSync(join(tmpdir(), "spangate-check-"));
  // Some tests start programs as a user without rights, who has to reach what is laid out here.
  chmodSync(scratch, 0o755);
  const startMs = performance.now();
  try {
    const outcomes = await runJobs(longestFirst(selected, measured), {
      root: repositoryRoot,
      // Tests that wait leave their cores to the two more; the long forms measure times, and have a core each.
      processCount: availableParallelism() + (values.all ? 0 : 2),
      scratch,
      env: { ...environment(), ...(values.all ? { [longVariable]: "1" } : shortLives) },
      onOutcome: showOutcome,
      ...(values.all ? { longestMs: 2 * 3_600_000 } : {}),
    });
    showSums(outcomes, performance.now() - startMs);
    const own = Object.fromEntries(outcomes.map(({ job, durationMs }) => [job.name, Math.round(durationMs)]));
    if (!values.all) writeDurations(durationsPath, { ...measured, ...own });
    return outcomes.every(({ failed }) => failed === 0) ? 0 : 1;
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

try {
  process.exitCode = await main();
} catch (error) {
  if (!(error instanceof CommandError)) throw error;
  console.error(`check: ${error.message}`);
  process.exitCode = 1;
}
