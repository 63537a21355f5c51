/** A query in the console: where its faults are, and how its tree is read. */
import { expect, test } from "bun:test";
import { lineOfPath, stepsOf } from "../../gateway/console/client/query/error-place.ts";
import { heldByPath, type Json, rowsOf } from "../../gateway/console/client/query/tree.ts";
import type { Query } from "../../gateway/query/ir.ts";
import { childrenOf } from "../../gateway/query/ir.ts";
import { printQuery } from "../../gateway/query/print.ts";
import { treeArbitrary } from "../query/trees.ts";
import { fc } from "../support/fast-check.ts";

const text = `g:
  temperature: 0
  input:
    cross:
      - system: words
      - plus:
          - fragment: { text: "one" }
          - repeat:
              n: 2
              g: { temperature: 0.5, max_tokens: many, input: { user: "x" } }
      - user: last
`;

test("the line of a path is that of its last name", () => {
  const line = (path: string) => lineOfPath(text, path);
  expect(line("$.g.temperature")).toBe(1);
  expect(line("$.g.input.cross[1].plus[1].repeat.g.max_tokens")).toBe(9);
  expect(line("$.g.input.cross[1].plus[0].fragment.text")).toBe(6);
  expect(line("$.g.input.cross[2].user")).toBe(10);
  expect(line("$.g.nothing")).toBe(0);
  expect(line("$")).toBeUndefined();
  expect(stepsOf("$.g.input.plus[12].a")).toEqual(["g", "input", "plus", 12, "a"]);
  expect(lineOfPath('{"g": {"input": {\n"user": 3}}}', "$.g.input.user")).toBe(1);
});

/** Paths and kinds as the language itself has them. */
function expected(query: Query, path = "$"): string[] {
  return [path, ...childrenOf(query).flatMap(([step, child]) => expected(child, path + step))];
}

test("the tree has every node that the language has, under the same path", () => {
  fc.assert(
    fc.property(treeArbitrary, (query) => {
      const { rows, isWhole } = rowsOf(printQuery(query) as Json);
      if (isWhole) expect(rows.map(({ path }) => path)).toEqual(expected(query));
    }),
  );
});

test("what is held of a place and of a span is found by its path", () => {
  const run = (id: string | null, tokens: number, cached: number, known = true) => {
    return { span_id: id, tokens, cached_tokens: cached, known };
  };
  const held = heldByPath([
    { place: "$", samples: 1, prompt_tokens: 30, runs: [run(null, 10, 0), run("$.g.input.plus[0]", 20, 16, false)] },
  ]);
  expect(held.get("$")).toEqual({ tokens: 30, cached: 16, isKnown: false });
  expect(held.get("$.g.input.plus[0]")).toEqual({ tokens: 20, cached: 16, isKnown: false });
});
