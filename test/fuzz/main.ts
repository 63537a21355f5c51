/**
 * `bun run fuzz [--minutes N] [--seed N] [PATH…]`: the tests that draw, again and again, each round from another seed.
 * What fails is kept in regressions.json, and `bun run check` runs it from then on.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { CommandError } from "../../gateway/cli/support/command.ts";
import { prepareKernels } from "../../gateway/cli/support/kernels.ts";
import { ensureInstalled, repositoryRoot } from "../../gateway/cli/support/setup.ts";
import { failedTests } from "../check/counts.ts";
import { longestFirst } from "../check/durations.ts";
import { selectJobs } from "../check/jobs.ts";
import { type Outcome, runJobs } from "../check/pool.ts";

const usage = `Usage: bun run fuzz [--minutes N] [--seed N] [PATH...]

  --minutes N  How long new rounds begin (default 10).
  --seed N     Seed of the first round, the next ones count on from it (default: by chance).
  PATH         A test file or a folder of tests; default: all that draw.
`;
const write = (text: string): boolean => process.stdout.write(text);

interface FuzzOptions {
  readonly minutes: number;
  readonly firstSeed: number;
  readonly paths: readonly string[];
}

function parsed<Result>(parse: () => Result): Result {
  try {
    return parse();
  } catch (error) {
    throw new CommandError(error instanceof Error ? error.message : String(error));
  }
}

function readOptions(): FuzzOptions {
  const options = { minutes: { type: "string", default: "10" }, seed: { type: "string" } } as const;
  const { values, positionals } = parsed(() =>
    parseArgs({ args: process.argv.slice(2), allowPositionals: true, options }),
  );
  const minutes = Number(values.minutes);
  const firstSeed = Number(values.seed ?? Math.floor(Math.random() * 2 ** 30));
  if (!(minutes > 0)) throw new CommandError("--minutes is a number above 0");
  if (!Number.isInteger(firstSeed) || firstSeed < 0 || firstSeed >= 2 ** 30) {
    throw new CommandError(`--seed is a whole number from 0 to ${2 ** 30 - 1}`);
  }
  return { minutes, firstSeed, paths: positionals };
}

/** Test files that draw: what they import leads to fast-check or to the run's seed. */
async function drawingTests(): Promise<readonly string[]> {
  const { imports } = await import("../support/import-graph.ts");
  const draws = new Set(
    imports
      .filter(({ specifier, target }) => specifier === "fast-check" || target === "test/support/seed.ts")
      .map(({ from }) => from),
  );
  for (let before = -1; before < draws.size; ) {
    before = draws.size;
    for (const { from, target } of imports) if (target !== undefined && draws.has(target)) draws.add(from);
  }
  // Kept cases have seeds of their own, and the long waits of chaos draw little.
  const isOwn = (file: string) => file.endsWith(".test.ts") && !/^test\/(?:chaos|support|fuzz\/regressions)/.test(file);
  return [...draws].filter(isOwn).sort();
}

/** @returns how many cases are new */
async function keep({ job, output, failed }: Outcome, seed: number): Promise<number> {
  if (failed === 0) return 0;
  const { keepRegression, saidBy } = await import("./regressions.ts");
  write(`FAILED  ${job.name}, seed ${seed}\n${output.trimEnd()}\n── end of ${job.name}\n\n`);
  const cases = failedTests(output).map((test) => ({ file: job.name, test, seed, said: saidBy(test, output) }));
  return cases.filter((found) => keepRegression(found)).length;
}

async function main(): Promise<number> {
  const { minutes, firstSeed, paths } = readOptions();
  await ensureInstalled();
  await prepareKernels();
  const { seedVariable } = await import("../support/seed.ts");
  const jobs = longestFirst(selectJobs({ only: [], paths, alone: true }, await drawingTests()), {}).filter(
    ({ kind }) => kind === "tests",
  );
  const endMs = performance.now() + minutes * 60_000;
  let [failures, kept] = [0, 0];
  for (let seed = firstSeed; performance.now() < endMs; seed++) {
    const scratch = mkdtempSync(join(tmpdir(), "spangate-fuzz-"));
    try {
      const outcomes = await runJobs(jobs, {
        root: repositoryRoot,
        processCount: availableParallelism(),
        scratch,
        env: { ...process.env, [seedVariable]: String(seed) },
        onOutcome: () => undefined,
        mayStart: () => performance.now() < endMs,
      });
      for (const outcome of outcomes) kept += await keep(outcome, seed);
      const failed = outcomes.filter((outcome) => outcome.failed > 0).length;
      failures += failed;
      write(`seed ${seed}: ${outcomes.length} of ${jobs.length} files, ${failed} failed\n`);
    } finally {
      rmSync(scratch, { recursive: true, force: true });
    }
  }
  write(`${failures} failures, ${kept} new cases kept in test/fuzz/regressions.json\n`);
  return failures === 0 ? 0 : 1;
}

try {
  process.exitCode = await main();
} catch (error) {
  if (!(error instanceof CommandError)) throw error;
  process.stderr.write(`fuzz: ${error.message}\n\n${usage}`);
  process.exitCode = 1;
}
