/** A list of checks on the device: each runs, passes or fails with its words, and the sum is the exit code. */

export interface CheckResult {
  readonly name: string;
  readonly isOk: boolean;
  readonly milliseconds: number;
  /** What was measured, or why it failed. */
  readonly details: string;
}

export class Report {
  readonly results: CheckResult[] = [];
  readonly figures: Record<string, number> = {};

  /** @param run answers what is worth a line */
  async check(name: string, run: () => string | Promise<string>): Promise<void> {
    const startMs = performance.now();
    let result: { isOk: boolean; details: string };
    try {
      result = { isOk: true, details: await run() };
    } catch (error) {
      result = { isOk: false, details: error instanceof Error ? (error.stack ?? error.message) : String(error) };
    }
    const entry = { name, ...result, milliseconds: performance.now() - startMs };
    this.results.push(entry);
    console.log(`${entry.isOk ? "ok  " : "FAIL"} ${name} (${entry.milliseconds.toFixed(0)} ms) ${entry.details}`);
  }

  /** Keeps a measured value; the name ends in its unit. */
  figure(name: string, value: number): string {
    this.figures[name] = value;
    return `${name} ${value.toPrecision(4)}`;
  }

  /** Writes everything to `path` if there is one, and answers the exit code. */
  async end(path: string | undefined): Promise<number> {
    const failed = this.results.filter(({ isOk }) => !isOk).length;
    if (path !== undefined) await Bun.write(path, JSON.stringify({ results: this.results, ...this.figures }, null, 2));
    console.log(`${this.results.length - failed} passed, ${failed} failed`);
    return failed === 0 ? 0 : 1;
  }
}

export function assertThat(condition: boolean, words: string): void {
  if (!condition) throw new Error(words);
}

/** What `run` throws. @throws Error when it throws nothing, or something else */
export function errorOf<T extends Error>(kind: abstract new (...parameters: never[]) => T, run: () => unknown): T {
  try {
    run();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`nothing was thrown where a ${kind.name} belongs`);
}

/** Median of `rounds` times of `run`, each divided by `count`, in microseconds. */
export function medianMicroseconds(rounds: number, count: number, run: () => void): number {
  const times = Array.from({ length: rounds }, () => {
    const startMs = performance.now();
    run();
    return ((performance.now() - startMs) * 1000) / count;
  });
  return times.sort((a, b) => a - b)[Math.floor(rounds / 2)] ?? Number.NaN;
}
