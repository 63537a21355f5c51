/** Everything that has to hold before a change lands, in one command: each stage with its time, then one line of sums. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CommandError } from "../gateway/cli/support/command.ts";
import { prepareKernels } from "../gateway/cli/support/kernels.ts";
import { ensureInstalled, repositoryRoot } from "../gateway/cli/support/setup.ts";

interface Counts {
  passed: number;
  failed: number;
  skipped: number;
}

interface Stage {
  readonly name: string;
  /** Arguments for Bun. */
  readonly args: readonly string[];
  /** A tool that passes or fails as one, or a run of `bun test` that counts. */
  readonly kind: "tool" | "tests";
}

const tests = [...new Bun.Glob("test/**/*.test.ts").scanSync(repositoryRoot)].map((path) => `./${path}`).sort();
const testsIn = (folder: string) => tests.filter((path) => path.startsWith(`./test/${folder}/`));
const tidyTest = "./test/tidy.test.ts";
/** For a machine that has other things to do as well; nothing waits that long. */
const testTimeout = ["--timeout", "60000"];
const [contractTests, endToEndTests] = [testsIn("contract"), testsIn("e2e")];
const conformanceTests = testsIn("conformance");
const inOtherStages = [tidyTest, ...contractTests, ...endToEndTests, ...conformanceTests];
const unitTests = tests.filter((path) => !inOtherStages.includes(path));

/** Without a path, `bun test` would run everything. */
function testStage(name: string, paths: readonly string[]): Stage {
  if (paths.length === 0) throw new CommandError(`there are no tests for the stage "${name}"`);
  return { name, args: ["test", ...testTimeout, ...paths], kind: "tests" };
}

const stages: readonly Stage[] = [
  { name: "types", args: ["x", "--no-install", "tsc", "--noEmit", "-p", "."], kind: "tool" },
  { name: "lint", args: ["x", "--no-install", "biome", "check", "."], kind: "tool" },
  testStage("tidy", [tidyTest]),
  testStage("unit", unitTests),
  testStage("contract", contractTests),
  testStage("end to end", endToEndTests),
  testStage("conformance", conformanceTests),
];

/** Shows a stream while it comes, and keeps it. */
async function show(stream: ReadableStream<Uint8Array>): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of stream) {
    process.stdout.write(chunk);
    text += decoder.decode(chunk, { stream: true });
  }
  return text;
}

/** The sums at the end of a run of `bun test`: ` 12 pass`, ` 1 fail`, ` 2 skip`. */
function testCounts(output: string, isOk: boolean): Counts {
  const count = (word: string) => Number([...output.matchAll(new RegExp(`^ (\\d+) ${word}$`, "gm"))].at(-1)?.[1] ?? 0);
  const counts = { passed: count("pass"), failed: count("fail"), skipped: count("skip") };
  // A crash, or an error outside of any test, fails the stage without being counted by the runner.
  if (!isOk && counts.failed === 0) counts.failed = 1;
  return counts;
}

/** @param scratch folder for what the stage leaves behind, removed at the end */
async function runStage({ name, args, kind }: Stage, scratch: string): Promise<Counts> {
  console.log(`\n── ${name}`);
  const startMs = performance.now();
  const child = Bun.spawn([process.execPath, ...args], {
    cwd: repositoryRoot,
    env: { ...process.env, NO_COLOR: "1", FORCE_COLOR: "0", TMPDIR: scratch },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const [output, errors, code] = await Promise.all([show(child.stdout), show(child.stderr), child.exited]);
  const isOk = code === 0;
  console.log(`── ${name}: ${isOk ? "ok" : "FAILED"} in ${((performance.now() - startMs) / 1_000).toFixed(1)} s`);
  if (kind === "tests") return testCounts(output + errors, isOk);
  return { passed: Number(isOk), failed: Number(!isOk), skipped: 0 };
}

async function main(): Promise<number> {
  await ensureInstalled();
  await prepareKernels();
  const sum: Counts = { passed: 0, failed: 0, skipped: 0 };
  const scratch = mkdtempSync(join(tmpdir(), "spangate-check-"));
  try {
    for (const stage of stages) {
      const counts = await runStage(stage, scratch);
      sum.passed += counts.passed;
      sum.failed += counts.failed;
      sum.skipped += counts.skipped;
    }
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
  const skipped = sum.skipped > 0 ? `, ${sum.skipped} skipped` : "";
  console.log(`\n${sum.passed} passed, ${sum.failed} failed${skipped}`);
  return sum.failed === 0 ? 0 : 1;
}

try {
  process.exitCode = await main();
} catch (error) {
  if (!(error instanceof CommandError)) throw error;
  console.error(`check: ${error.message}`);
  process.exitCode = 1;
}
