/** Cases that `bun run fuzz` found, kept in regressions.json, which regressions.test.ts runs again in every check. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";

const regression = z.strictObject({
  /** From the repository's root. */
  file: z.string().regex(/^test\/.+\.test\.ts$/),
  /** Names of its groups and its own, joined by " > ". */
  test: z.string().min(1),
  /** What SPANGATE_TEST_SEED was. It draws the same case as long as what the test draws from stays as it is. */
  seed: z.int().min(0),
  /** What the test said, for whoever reads the list. */
  said: z.string(),
});

export type Regression = z.infer<typeof regression>;

const defaultPath = join(import.meta.dir, "regressions.json");

/** @throws when the file does not hold a list of such cases */
export function readRegressions(path: string = defaultPath): Regression[] {
  return z.array(regression).parse(JSON.parse(readFileSync(path, "utf8")));
}

/** Keeps a case unless one of the same test is there with the same words. @returns whether it is new */
export function keepRegression(found: Regression, path: string = defaultPath): boolean {
  const kept = readRegressions(path);
  if (kept.some(({ file, test, said }) => file === found.file && test === found.test && said === found.said))
    return false;
  writeFileSync(path, `${JSON.stringify([...kept, found], undefined, 2)}\n`);
  return true;
}

/** A pattern for `bun test -t` that matches this test alone: there, names are joined by blanks. */
export function patternOf(test: string): string {
  const escaped = test.split(" > ").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return `^ ?${escaped.join("(?: >)? ")}$`;
}

const saidChars = 600;

/** The message of the test's error: what stands before its line `(fail)`, without excerpts of the source and the stack. */
export function saidBy(test: string, output: string): string {
  const lines = output.split("\n");
  const end = lines.findIndex((line) => line.startsWith(`(fail) ${test}`));
  const isResult = (line: string) => /^\((?:pass|fail|skip)\) /.test(line);
  const start = lines.slice(0, Math.max(0, end)).findLastIndex(isResult) + 1;
  const own = lines.slice(start, Math.max(start, end)).filter((line) => !/^\s*(?:\d+ \||\^|at |$)/.test(line));
  return own.join("\n").slice(0, saidChars);
}
