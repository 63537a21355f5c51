/**
 * Takes the salt away at every place that keys are built from, one at a time, in a copy of the last commit, and expects a
 * test to fail each time. Slow, so it is a program of its own:
 *
 *   bun test/security/salt-mutants.ts [words of a mutant's name]
 */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Mutant, saltMutants } from "./salt-sites.ts";

const repository = join(import.meta.dir, "..", "..");
/** The fast tests first: most mutants get no further. */
const stages: readonly (readonly string[])[] = [
  ["test/lower", "test/tenant"],
  ["test/e2e/salts.test.ts", "test/e2e/prompt-files.test.ts"],
  [
    "test/corpus/search/retrieve.test.ts",
    "test/corpus/prepare/prepare.test.ts",
    "test/corpus/deletion/delete.test.ts",
    "test/execute",
  ],
  ["test/http/openai/chat.test.ts", "test/http/query/query.test.ts", "test/http/isolation.test.ts"],
];
const stageLimitMs = 300_000;

async function run(argv: readonly string[], cwd: string): Promise<boolean> {
  const child = Bun.spawn([...argv], { cwd, stdio: ["ignore", "ignore", "ignore"], timeout: stageLimitMs });
  return (await child.exited) === 0;
}

/** @returns number of the stage that failed, from 1; undefined when all tests pass */
async function failingStage(copy: string): Promise<number | undefined> {
  for (const [index, tests] of stages.entries()) {
    if (!(await run([process.execPath, "test", "--bail", "--timeout", "60000", ...tests], copy))) return index + 1;
  }
  return undefined;
}

function applied({ name, find, replace }: Mutant, text: string): string {
  const parts = text.split(find);
  if (parts.length !== 2) throw new Error(`${name}: '${find}' is there ${parts.length - 1} times, not once`);
  return parts.join(replace);
}

async function main(): Promise<number> {
  const wanted = process.argv.slice(2).join(" ");
  const copy = mkdtempSync(join(tmpdir(), "spangate-mutants-"));
  try {
    const checkedOut = await run(["sh", "-c", `git archive HEAD | tar -x -C '${copy}'`], repository);
    if (!checkedOut) throw new Error("the last commit could not be copied");
    // Compiled kernels are kept by their contents: no mutant changes them.
    mkdirSync(join(repository, ".build"), { recursive: true });
    for (const name of ["node_modules", ".build"]) symlinkSync(join(repository, name), join(copy, name));
    const mutants = saltMutants.filter(({ name }) => name.includes(wanted));
    const texts = new Map(mutants.map(({ file }) => [file, readFileSync(join(copy, file), "utf8")]));
    // All of them can be made, before any test runs.
    for (const mutant of mutants) applied(mutant, texts.get(mutant.file) ?? "");
    const failing = await failingStage(copy);
    if (failing !== undefined) throw new Error(`without a mutant, tests fail in stage ${failing}`);
    const survivors: string[] = [];
    for (const mutant of mutants) {
      const text = texts.get(mutant.file) ?? "";
      writeFileSync(join(copy, mutant.file), applied(mutant, text));
      const stage = await failingStage(copy);
      writeFileSync(join(copy, mutant.file), text);
      if (stage === undefined) survivors.push(mutant.name);
      process.stdout.write(`${stage === undefined ? "SURVIVED" : `killed in stage ${stage}`}: ${mutant.name}\n`);
    }
    process.stdout.write(`${mutants.length - survivors.length} of ${mutants.length} killed\n`);
    return survivors.length === 0 ? 0 : 1;
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
}

process.exit(await main());
