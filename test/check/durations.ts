/**
 * How long each job took the last time, kept in .build/, so that the longest start first and no core waits at the end.
 * A clone that has never run begins with `durations.json`: about what those of five seconds and more took, in some other clone.
 */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import type { Job } from "./jobs.ts";

/** Milliseconds by the job's name. */
export type Durations = Readonly<Record<string, number>>;

/** Folders whose tests start servers or compute in plain loops. */
const slowFolders = /^test\/(?:backend\/cuda|chaos|conformance|console|e2e|fuzz|security|sim)\//;
const guesses = { slowMs: 10_000, otherMs: 1_000 };

export function expectedMs({ name, kind, fileCount }: Job, measured: Durations): number {
  const known = measured[name];
  if (known !== undefined) return known;
  return kind === "tool" || slowFolders.test(name) ? guesses.slowMs : fileCount * guesses.otherMs;
}

/** The longest first; equal ones as they were. */
export function longestFirst(jobs: readonly Job[], measured: Durations): Job[] {
  return jobs.toSorted((a, b) => expectedMs(b, measured) - expectedMs(a, measured));
}

/** What is unreadable counts as never measured. */
export function readDurations(path: string): Durations {
  if (!existsSync(path)) return {};
  try {
    const parsed: unknown = JSON.parse(readFileSync(path, "utf8"));
    if (typeof parsed !== "object" || parsed === null) return {};
    const entries = Object.entries(parsed);
    return Object.fromEntries(entries.filter((entry): entry is [string, number] => typeof entry[1] === "number"));
  } catch {
    return {};
  }
}

export function writeDurations(path: string, durations: Durations): void {
  mkdirSync(dirname(path), { recursive: true });
  const sorted = Object.entries(durations).sort(([, a], [, b]) => b - a);
  writeFileSync(path, `${JSON.stringify(Object.fromEntries(sorted), undefined, 1)}\n`);
}
