import { expect, test } from "bun:test";
import { readEvalQuestions } from "./eval-sets.ts";

test("the evaluation sets that benchmarks ask are read, all or those that are named", () => {
  const all = readEvalQuestions();
  expect(new Set(all.map(({ set }) => set)).size).toBeGreaterThan(10);
  expect(all.every(({ question, answer }) => question !== "" && answer !== "")).toBe(true);
  const some = readEvalQuestions(["facts-1", "merge"]);
  expect([...new Set(some.map(({ set }) => set))]).toEqual(["facts-1", "merge"]);
  expect(() => readEvalQuestions(["facts-0"])).toThrow('no evaluation set "facts-0"');
});
