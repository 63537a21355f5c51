/** Runs jobs in a number of processes at a time. Nothing is shared between them but the source and compiled kernels. */
import { closeSync, mkdirSync, openSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { type Counts, countsOf } from "./counts.ts";
import type { Job } from "./jobs.ts";

export interface Outcome extends Counts {
  readonly job: Job;
  readonly durationMs: number;
  /** Of the process and those that it waited for. */
  readonly cpuMs: number;
  /** All that the process wrote, in order. */
  readonly output: string;
}

export interface PoolOptions {
  readonly root: string;
  /** Processes at a time. */
  readonly processCount: number;
  /** A folder that exists; each job has a folder for temporary files in it. */
  readonly scratch: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly onOutcome: (outcome: Outcome) => void;
  /** Asked before each job; what is left when it says no is not run. */
  readonly mayStart?: () => boolean;
  /** A process that takes longer is ended, and has failed. */
  readonly longestMs?: number;
}

/** Jobs start in the order given. */
export async function runJobs(jobs: readonly Job[], options: PoolOptions): Promise<Outcome[]> {
  const outcomes: Outcome[] = [];
  const waiting = jobs.entries();
  const { mayStart = () => true } = options;
  const runRest = async (): Promise<void> => {
    for (const [index, job] of waiting) {
      if (!mayStart()) return;
      const outcome = await runJob(job, join(options.scratch, String(index)), options);
      outcomes.push(outcome);
      options.onOutcome(outcome);
    }
  };
  await Promise.all(Array.from({ length: options.processCount }, runRest));
  return outcomes;
}

async function runJob(job: Job, folder: string, options: PoolOptions): Promise<Outcome> {
  const { root, env, longestMs = 15 * 60_000 } = options;
  mkdirSync(folder, { recursive: true });
  // One file for both streams keeps their lines in order.
  const logPath = join(folder, "output.log");
  const log = openSync(logPath, "w");
  const startMs = performance.now();
  const child = Bun.spawn([process.execPath, ...job.args], {
    cwd: root,
    env: { ...env, NO_COLOR: "1", FORCE_COLOR: "0", TMPDIR: folder },
    stdio: ["ignore", log, log],
    timeout: longestMs,
    killSignal: "SIGKILL",
  });
  const code = await child.exited;
  closeSync(log);
  const durationMs = performance.now() - startMs;
  const ended = child.signalCode === null ? "" : `\nended by ${child.signalCode} after ${Math.round(durationMs)} ms\n`;
  const output = readFileSync(logPath, "utf8") + ended;
  const cpuMs = Number(child.resourceUsage()?.cpuTime.total ?? 0) / 1_000;
  return { job, durationMs, cpuMs, output, ...countsOf(job, output, code === 0) };
}
