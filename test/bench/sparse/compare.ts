/** What the scores of an arm come to beside those of dense answers to the same questions. */
import { atLeast, atMost, type Bar } from "../bench.ts";
import type { Kept, KeptScores } from "./kept.ts";

export interface ArmResult {
  readonly arm: string;
  readonly questions: number;
  readonly right: number;
  /** Points of a hundred that dense answers are better by, and half of the interval that has 95 of 100 such differences. */
  readonly pointsBelow: number;
  readonly pointsEither: number;
  /** Mean length of an answer, and of the dense answers to the same questions. */
  readonly tokens: number;
  readonly denseTokens: number;
  /** Of a chain: mean number of lines before its first mistake. */
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

/** An arm beside dense answers to the same questions: both are of the same length and in the same order. */
export function compareArm(arm: string, dense: readonly Kept[], scores: readonly Kept[]): ArmResult {
  const { points, either } = pairedDifference(dense.map(isRightOf), scores.map(isRightOf));
  const [measured, lists] = [sumOf(scores, "measured"), sumOf(scores, "lists")];
  return {
    arm,
    questions: scores.length,
    right: scores.filter(isRightOf).length,
    pointsBelow: points,
    pointsEither: either,
    tokens: mean(scores.map(({ tokens }) => tokens)),
    denseTokens: mean(dense.map(({ tokens }) => tokens)),
    lines: mean(scores.map(({ lines }) => lines ?? Number.NaN)),
    mass: sumOf(scores, "mass") / measured,
    overlap: sumOf(scores, "overlap") / measured,
    chosen: sumOf(scores, "chosen") / lists,
    changed: sumOf(scores, "changed") / lists,
    denseSteps: sumOf(scores, "denseSteps"),
  };
}

const isRightOf = ({ isRight }: Kept): boolean => isRight;

/** Each arm over the questions that it and the dense one have answered; an arm that has answered none is left out. */
export function compareSet(kept: KeptScores, set: string, arms: readonly string[]): ArmResult[] {
  return arms.flatMap((arm) => {
    const paired = kept.paired(set, ["dense", arm]);
    const [dense = [], scores = []] = [paired.get("dense"), paired.get(arm)];
    return scores.length === 0 ? [] : [compareArm(arm, dense, scores)];
  });
}

export function barsOf(kept: KeptScores, set: string, results: readonly ArmResult[]): Bar[] {
  const of = (arm: string) => results.find((result) => result.arm === arm);
  const [now, exact, ahead] = [of("now"), of("exact"), of("ahead")];
  const bars: Bar[] = [];
  if (now === undefined) return bars;
  bars.push(atMost(`${set}: now, points below dense`, now.pointsBelow, 1));
  for (const arm of ["quest", "tova"].filter((each) => of(each) !== undefined)) {
    const paired = kept.paired(set, [arm, "now"]);
    const [others = [], own = []] = [paired.get(arm)?.map(isRightOf), paired.get("now")?.map(isRightOf)];
    bars.push(atMost(`${set}: now, points below ${arm}`, pairedDifference(others, own).points, 0));
  }
  bars.push(atMost(`${set}: length of now's answers, off dense's`, Math.abs(now.tokens / now.denseTokens - 1), 0.02));
  if (exact) bars.push(atLeast(`${set}: mass of now / of the exact choice`, now.mass / exact.mass, 0.98));
  // Where an answer fetches facts, predictions do not know what is fetched next: `now` is the default.
  if (ahead) bars.push(atMost(`${set}: ahead, points below dense`, ahead.pointsBelow, 1));
  return bars;
}
