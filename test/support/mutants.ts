/** Mistakes made on purpose in a copy of the last commit, one at a time: tests have to fail of each. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export interface Mutant {
  readonly name: string;
  readonly file: string;
  /** Is there once. */
  readonly find: string;
  readonly replace: string;
}

/** A command and the environment that it is given besides. */
export interface Stage {
  readonly argv: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

const repository = join(import.meta.dir, "..", "..");
const stageLimitMs = 300_000;

/** Runs of Bun's tests in these files and folders, stopping at the first failure. */
export const testStage = (...tests: readonly string[]): Stage => ({
  argv: [process.execPath, "test", "--bail", "--timeout", "60000", ...tests],
});

async function isGreen({ argv, env }: Stage, cwd: string): Promise<boolean> {
  const stdio = ["ignore", "ignore", "ignore"] as const;
  const child = Bun.spawn([...argv], {
    cwd,
    stdio: [...stdio],
    timeout: stageLimitMs,
    env: { ...process.env, ...env },
  });
  return (await child.exited) === 0;
}

/** @returns number of the stage that failed, from 1; undefined when all pass */
async function failingStage(stages: readonly Stage[], copy: string): Promise<number | undefined> {
  for (const [index, stage] of stages.entries()) if (!(await isGreen(stage, copy))) return index + 1;
  return undefined;
}

function applied({ name, find, replace }: Mutant, text: string): string {
  const parts = text.split(find);
  if (parts.length !== 2) throw new Error(`${name}: '${find}' is there ${parts.length - 1} times, not once`);
  return parts.join(replace);
}

/**
 * Says for each mutant whether a stage failed.
 * @param stages the fast ones first: most mutants get no further
 * @returns the process's exit code
 */
export async function runMutants(all: readonly Mutant[], stages: readonly Stage[]): Promise<number> {
  const wanted = process.argv.slice(2).join(" ");
  const copy = mkdtempSync(join(tmpdir(), "spangate-mutants-"));
  try {
    const archive = { argv: ["sh", "-c", `git archive HEAD | tar -x -C '${copy}'`] };
    if (!(await isGreen(archive, repository))) throw new Error("the last commit could not be copied");
    // Compiled kernels are kept by their contents: no mutant changes them.
    mkdirSync(join(repository, ".build"), { recursive: true });
    for (const name of ["node_modules", ".build"]) symlinkSync(join(repository, name), join(copy, name));
    const mutants = all.filter(({ name }) => name.includes(wanted));
    const texts = new Map(mutants.map(({ file }) => [file, readFileSync(join(copy, file), "utf8")]));
    // All of them can be made, before any test runs.
    for (const mutant of mutants) applied(mutant, texts.get(mutant.file) ?? "");
    const failing = await failingStage(stages, copy);
    if (failing !== undefined) throw new Error(`without a mutant, tests fail in stage ${failing}`);
    let killed = 0;
    for (const mutant of mutants) {
      const text = texts.get(mutant.file) ?? "";
      writeFileSync(join(copy, mutant.file), applied(mutant, text));
      const stage = await failingStage(stages, copy);
      writeFileSync(join(copy, mutant.file), text);
      if (stage !== undefined) killed += 1;
      process.stdout.write(`${stage === undefined ? "SURVIVED" : `killed in stage ${stage}`}: ${mutant.name}\n`);
    }
    process.stdout.write(`${killed} of ${mutants.length} killed\n`);
    return killed === mutants.length ? 0 : 1;
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
}
