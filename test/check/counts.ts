/** Reads sums and names of tests out of what `bun test` writes. */
import type { Job } from "./jobs.ts";

export interface Counts {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}

/** The sums at the end of a run of `bun test`: ` 12 pass`, ` 1 fail`, ` 2 skip`. */
export function countsOf({ kind, fileCount }: Pick<Job, "kind" | "fileCount">, output: string, isOk: boolean): Counts {
  if (kind === "tool") return { passed: Number(isOk), failed: Number(!isOk), skipped: 0 };
  const count = (word: string) => Number([...output.matchAll(new RegExp(`^ (\\d+) ${word}$`, "gm"))].at(-1)?.[1] ?? 0);
  const [passed, failed, skipped] = [count("pass"), count("fail"), count("skip")];
  // A crash, an error outside of any test, and a file without tests fail without being counted by the runner.
  const isUncounted = failed === 0 && (!isOk || passed + skipped === 0 || filesWithTests(output) < fileCount);
  return { passed, failed: isUncounted ? 1 : failed, skipped };
}

/** Each file's name stands above what its tests wrote; a folder's files share a process. */
function filesWithTests(output: string): number {
  const [, ...parts] = output.split(/^(?:::group::)?\S+\.test\.ts:$/m);
  return parts.filter((part) => /^\((?:pass|fail|skip|todo)\) /m.test(part)).length;
}

export function sumOf(counts: readonly Counts[]): Counts {
  const sum = (of: (each: Counts) => number) => counts.reduce((total, each) => total + of(each), 0);
  return {
    passed: sum((each) => each.passed),
    failed: sum((each) => each.failed),
    skipped: sum((each) => each.skipped),
  };
}

/** Names of the tests that failed, groups and test joined by " > ". */
export function failedTests(output: string): string[] {
  const names = [...output.matchAll(/^\(fail\) (.+?)(?: \[[\d.]+ ?m?s\])?$/gm)].map(([, name]) => name ?? "");
  return [...new Set(names)];
}

/** The last line of all. */
export function sumLine({ passed, failed, skipped }: Counts): string {
  return `${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ""}`;
}
