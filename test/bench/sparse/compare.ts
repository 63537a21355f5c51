/** What the scores of an arm come to beside those of dense answers to the same questions. */
import { atLeast, atMost, type Bar } from "../bench.ts";
import type { Kept } from "./kept.ts";

export interface ArmResult {
  readonly arm: string;
  readonly questions: number;
  readonly right: number;
  /** Points of a hundred that dense answers are better by, and half of the interval that has 95 of 100 such differences. */
  readonly pointsBelow: number;
  readonly pointsEither: number;
  /** Mean length of an answer, and of a chain the mean number of lines before its first mistake. */
  readonly tokens: number;
  readonly lines: number;
  readonly mass: number;
  readonly overlap: number;
  /** Of the lists that steps read, those that were chosen in their step; and tokens of one that were copied, in each. */
  readonly chosen: number;
  readonly changed: number;
  /** Tokens whose rows read everything, though they were to choose. */
  readonly denseSteps: number;
}

const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;

function sumOf(scores: readonly Kept[], part: keyof NonNullable<Kept["sparse"]>): number {
  return scores.reduce((sum, { sparse }) => sum + (sparse?.[part] ?? 0), 0);
}

/**
 * Questions that only one of the two has right say how the difference is spread: it is a mean of numbers -1, 0 and 1.
 * @returns points of a hundred
 */
export function pairedDifference(dense: readonly boolean[], other: readonly boolean[]) {
  const differences = dense.map((isRight, at) => Number(isRight) - Number(other[at]));
  const middle = mean(differences);
  const variance = mean(differences.map((each) => (each - middle) ** 2));
  return { points: 100 * middle, either: 196 * Math.sqrt(variance / differences.length) };
}

/** Each arm beside the dense one, which is among them. */
export function compareArms(paired: ReadonlyMap<string, readonly Kept[]>): ArmResult[] {
  const dense = paired.get("dense")?.map(({ isRight }) => isRight) ?? [];
  return [...paired].map(([arm, scores]) => {
    const { points, either } = pairedDifference(
      dense,
      scores.map(({ isRight }) => isRight),
    );
    const [measured, lists] = [sumOf(scores, "measured"), sumOf(scores, "lists")];
    return {
      arm,
      questions: scores.length,
      right: scores.filter(({ isRight }) => isRight).length,
      pointsBelow: points,
      pointsEither: either,
      tokens: mean(scores.map(({ tokens }) => tokens)),
      lines: mean(scores.map(({ lines }) => lines ?? Number.NaN)),
      mass: sumOf(scores, "mass") / measured,
      overlap: sumOf(scores, "overlap") / measured,
      chosen: sumOf(scores, "chosen") / lists,
      changed: sumOf(scores, "changed") / lists,
      denseSteps: sumOf(scores, "denseSteps"),
    };
  });
}

export function barsOf(set: string, results: readonly ArmResult[]): Bar[] {
  const of = (arm: string) => results.find((result) => result.arm === arm);
  const [dense, now, exact, ahead] = [of("dense"), of("now"), of("exact"), of("ahead")];
  const bars: Bar[] = [];
  if (dense === undefined || now === undefined) return bars;
  bars.push(atMost(`${set}: now, points below dense`, now.pointsBelow, 1));
  for (const arm of ["quest", "tova"]) {
    const other = of(arm);
    if (other) bars.push(atMost(`${set}: now, points below ${arm}`, now.pointsBelow - other.pointsBelow, 0));
  }
  bars.push(atMost(`${set}: length of now's answers, off dense's`, Math.abs(now.tokens / dense.tokens - 1), 0.02));
  if (exact) bars.push(atLeast(`${set}: mass of now / of the exact choice`, now.mass / exact.mass, 0.98));
  // Where an answer fetches facts, predictions do not know what is fetched next: `now` is the default.
  if (ahead) bars.push(atMost(`${set}: ahead, points below dense`, ahead.pointsBelow, 1));
  return bars;
}
