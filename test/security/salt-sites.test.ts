/** The mutants of salt-mutants.ts, which is too slow for every day, still name code that is there. */
import { expect, test } from "bun:test";
import { readText } from "../support/import-graph.ts";
import { saltMutants } from "./salt-sites.ts";

test("every mutant's place is found once", () => {
  const places = saltMutants.map(({ name, file, find }) => ({ name, count: readText(file).split(find).length - 1 }));
  expect(places.filter(({ count }) => count !== 1)).toEqual([]);
});
