/** Answers' scores in a folder of JSON lines, so that a run that is cut off goes on where it was, and slices are joined. */
import { appendFileSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { SparseReport } from "../../../worker/contract/sparse.ts";
import type { Answer } from "./answerer.ts";
import type { Score } from "./questions.ts";

export interface Kept extends Score {
  readonly set: string;
  readonly index: number;
  readonly arm: string;
  /** Of the answer. */
  readonly tokens: number;
  readonly sparse?: Pick<
    SparseReport,
    "steps" | "denseSteps" | "lists" | "chosen" | "chosenAgain" | "changed" | "mass" | "overlap" | "measured"
  >;
}

export function keptOf(set: string, index: number, arm: string, { tokens, sparse }: Answer, score: Score): Kept {
  if (sparse === undefined) return { set, index, arm, tokens, ...score };
  const { steps, denseSteps, lists, chosen, chosenAgain, changed, mass, overlap, measured } = sparse;
  const counts = { steps, denseSteps, lists, chosen, chosenAgain, changed, mass, overlap, measured };
  return { set, index, arm, tokens, ...score, sparse: counts };
}

export class KeptScores {
  readonly #file: string | undefined;
  readonly #all = new Map<string, Kept>();

  /**
   * @param folder all of its files are read, and the run's own is written to; undefined: nothing is kept
   * @param name of the run's file
   */
  constructor(folder: string | undefined, name: string) {
    if (folder === undefined) return;
    mkdirSync(folder, { recursive: true });
    this.#file = join(folder, `${name}.jsonl`);
    for (const file of readdirSync(folder).filter((each) => each.endsWith(".jsonl"))) {
      const lines = readFileSync(join(folder, file), "utf8").split("\n");
      // A run that was killed may have left half a line at the end, which does not count.
      for (const line of lines.slice(0, -1)) this.#enter(JSON.parse(line) as Kept);
    }
  }

  get(set: string, index: number, arm: string): Kept | undefined {
    return this.#all.get(keyOf(set, index, arm));
  }

  add(kept: Kept): void {
    this.#enter(kept);
    if (this.#file !== undefined) appendFileSync(this.#file, `${JSON.stringify(kept)}\n`);
  }

  /** Of each arm of a set, the scores of the questions that all of the arms have answered, by their index. */
  paired(set: string, arms: readonly string[]): Map<string, Kept[]> {
    const own = [...this.#all.values()].filter((kept) => kept.set === set);
    const indices = [...new Set(own.map(({ index }) => index))].sort((a, b) => a - b);
    const whole = indices.filter((index) => arms.every((arm) => this.get(set, index, arm) !== undefined));
    return new Map(arms.map((arm) => [arm, whole.flatMap((index) => this.get(set, index, arm) ?? [])]));
  }

  #enter(kept: Kept): void {
    this.#all.set(keyOf(kept.set, kept.index, kept.arm), kept);
  }
}

const keyOf = (set: string, index: number, arm: string): string => `${set} ${index} ${arm}`;
