import { describe, expect, test } from "bun:test";
import { appendFileSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fc } from "../../support/fast-check.ts";
import { sparseBench } from "../sparse.ts";
import { barsOf, compareArm, compareSet, pairedDifference } from "./compare.ts";
import { type Kept, KeptScores } from "./kept.ts";
import { sliceOf } from "./questions.ts";

const score = (index: number, arm: string, isRight: boolean): Kept => ({ set: "s", index, arm, isRight, tokens: 10 });

test("the slices of a set are all of it, each question once", () => {
  fc.assert(
    fc.property(fc.nat({ max: 200 }), fc.integer({ min: 1, max: 40 }), (questions, of) => {
      const all = Array.from({ length: questions }, (_, index) => index);
      expect(Array.from({ length: of }, (_, at) => sliceOf(all, at + 1, of)).flat()).toEqual(all);
    }),
  );
});

describe("paired differences", () => {
  test("are the mean of what single questions differ by", () => {
    const { points, either } = pairedDifference([true, true, true, false], [true, false, true, false]);
    expect(points).toBe(25);
    // Of 1, 0, 0, 0: variance 3/16, so 1.96 * sqrt(3/64) of 1.
    expect(either).toBeCloseTo(196 * Math.sqrt(3 / 64), 10);
  });

  test("are nothing where the same questions are right, however many", () => {
    expect(pairedDifference([true, false], [true, false])).toEqual({ points: 0, either: 0 });
  });

  test("count the questions that both have, and what rows read", () => {
    const sparse = { steps: 9, denseSteps: 1, lists: 8, chosen: 4, chosenAgain: 0, changed: 16 };
    const now: Kept = { ...score(1, "now", false), sparse: { ...sparse, mass: 1.5, overlap: 1, measured: 2 } };
    const result = compareArm("now", [score(1, "dense", true)], [now]);
    expect(result).toMatchObject({ questions: 1, right: 0, pointsBelow: 100, tokens: 10, denseSteps: 1 });
    expect(result).toMatchObject({ mass: 0.75, overlap: 0.5, chosen: 0.5, changed: 2 });
  });
});

describe("kept scores", () => {
  test("are read back, but not half a line of a run that was killed", () => {
    const folder = mkdtempSync(join(tmpdir(), "spangate-kept-"));
    const kept = new KeptScores(folder, "first");
    for (const index of [0, 1]) kept.add(score(index, "dense", true));
    kept.add(score(0, "now", false));
    appendFileSync(join(folder, "first.jsonl"), JSON.stringify(score(1, "now", true)));
    const again = new KeptScores(folder, "second");
    expect(again.get("s", 0, "now")).toEqual(score(0, "now", false));
    expect(again.get("s", 1, "now")).toBeUndefined();
    expect(again.paired("s", ["dense", "now"])).toEqual(
      new Map([
        ["dense", [score(0, "dense", true)]],
        ["now", [score(0, "now", false)]],
      ]),
    );
    rmSync(folder, { recursive: true });
  });
});

test("an arm is compared over what it and dense have answered, and another arm over what both have", () => {
  const kept = new KeptScores(undefined, "");
  for (const index of [0, 1, 2, 3]) kept.add(score(index, "dense", true));
  for (const index of [0, 1]) kept.add(score(index, "now", index === 0));
  for (const index of [1, 3]) kept.add(score(index, "quest", true));
  const results = compareSet(kept, "s", ["dense", "now", "quest", "tova"]);
  expect(results.map(({ arm, questions, pointsBelow }) => [arm, questions, pointsBelow])).toEqual([
    ["dense", 4, 0],
    ["now", 2, 50],
    ["quest", 2, 0],
  ]);
  const bars = barsOf(kept, "s", results);
  expect(bars.find(({ name }) => name === "s: now, points below quest")?.value).toBe(100);
});

test("a run answers what is not kept, and makes the same table of what is", async () => {
  const folder = mkdtempSync(join(tmpdir(), "spangate-sparse-"));
  const options: Record<string, string> = {
    ...{ sets: "two-hop", samples: "3", arms: "dense,now", keep: folder, times: "no" },
  };
  const context = { option: (name: string) => options[name], say: () => undefined };
  const first = await sparseBench.run(context);
  const [file = ""] = readdirSync(folder);
  const lines = readFileSync(join(folder, file), "utf8");
  const second = await sparseBench.run(context);
  expect(second.rows).toEqual(first.rows);
  expect(readFileSync(join(folder, file), "utf8")).toBe(lines);
  const scores = lines
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as Kept);
  expect(scores.map(({ arm, index }) => `${arm} ${index}`).sort()).toEqual([
    ...["dense 0", "dense 1", "dense 2", "now 0", "now 1", "now 2"],
  ]);
  // Its rows chose: what is compared is not twice the same.
  const now = scores.filter(({ arm }) => arm === "now");
  expect(now.every(({ sparse, tokens }) => sparse !== undefined && sparse.steps >= tokens - 1)).toBe(true);
  expect(scores.every(({ isRight }) => isRight)).toBe(true);
  rmSync(folder, { recursive: true });
});
