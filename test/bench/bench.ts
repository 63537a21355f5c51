/** What a benchmark is and what it reports. */
import type { Plot } from "./support/plot.ts";

/** A figure with its promise. `at` says on which side of the bound the value has to be. */
export interface Bar {
  readonly name: string;
  readonly value: number;
  readonly bound: number;
  readonly at: "least" | "most";
  readonly ok: boolean;
}

export interface BenchReport {
  /** Model folder's name and numeric mode, or a shape. */
  readonly model: string;
  readonly bars: readonly Bar[];
  readonly header: readonly string[];
  readonly rows: readonly (readonly string[])[];
  /** Lines below the table: what was left out, which ties flipped. */
  readonly notes?: readonly string[];
  /** More for the JSON line. */
  readonly details?: Readonly<Record<string, unknown>>;
}

export interface BenchContext {
  /** Value of `--NAME VALUE` on the command line. */
  readonly option: (name: string) => string | undefined;
  /** Progress for the person who waits; goes to stderr. */
  readonly say: (line: string) => void;
}

export interface Bench {
  readonly name: string;
  readonly summary: string;
  /** What `--NAME VALUE` may be given. */
  readonly options?: Readonly<Record<string, string>>;
  run(context: BenchContext): Promise<BenchReport>;
  /** A picture of the report's details, for benchmarks whose figures are a curve. */
  plot?(details: Readonly<Record<string, unknown>>): Omit<Plot, "source">;
}

/** A value that must be at least `bound`. NaN never is. */
export function atLeast(name: string, value: number, bound: number): Bar {
  return { name, value, bound, at: "least", ok: value >= bound };
}

/** A value that must be at most `bound`. NaN never is. */
export function atMost(name: string, value: number, bound: number): Bar {
  return { name, value, bound, at: "most", ok: value <= bound };
}
