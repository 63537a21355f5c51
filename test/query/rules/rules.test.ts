/** Each rule of the table alone: what it fires on, and the near misses on which it must stay quiet. */
import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { canonicalKey, printQuery } from "../../../gateway/query/print.ts";
import type { RewriteOptions } from "../../../gateway/query/rules/rewrite.ts";
import { standardRules } from "../../../gateway/query/rules/table.ts";
import { rewrite } from "../../support/span-queries.ts";
import { fragment, g, type Json, out, plainOptions, treeOf, user } from "../nodes.ts";
import { expandAndSimplifyCases, type RuleCases } from "./rule-cases.ts";

const [a, b, c, d] = ["a", "b", "c", "d"].map(user);
const f = fragment("f");
const greedy = { temperature: 0 };
const half = { reduce: { arity: 2 } };
const map = (...inputs: string[]) => ({ map: { metadata: plainOptions, inputs } });
const repeat = (n: number, generate: { g: object }) => ({ repeat: { n, ...generate } });
const many = (count: number) => Array.from({ length: count }, () => a);
const noBulk: RewriteOptions = { bulkMap: false };
const sorted = (children: readonly Json[]) =>
  children.toSorted((x, y) => (canonicalKey(treeOf(x)) < canonicalKey(treeOf(y)) ? -1 : 1));
const unsorted = sorted([g(a), g(b), g(c), g(d)]).toReversed();

const cases: RuleCases = {
  ...expandAndSimplifyCases,
  "canonical-order": {
    fires: [["the same order for the same set", g({ plus: unsorted }), g({ plus: unsorted.toReversed() })]],
    quiet: [
      ["the order of answers", { plus: unsorted }],
      ["an ordered join", g({ seq: unsorted })],
      ["what is run, not read", g({ monad: { plus: unsorted } })],
    ],
  },
  "merge-greedy": {
    fires: [
      ["equal runs", { seq: [g(a, greedy), g(a, greedy)] }, { seq: [g(a, greedy), g(a, greedy)] }],
      [
        "equal repeats",
        { seq: [repeat(2, g(a, greedy)), repeat(2, g(a, greedy))] },
        { seq: [repeat(2, g(a, greedy)), repeat(2, g(a, greedy))] },
      ],
    ],
    quiet: [
      ["samples", { seq: [g(a), g(a)] }],
      ["greedy over a sample", { seq: [g({ plus: [g(a)] }, greedy), g({ plus: [g(a)] }, greedy)] }],
      ["other options", { seq: [g(a, greedy), g(a, { ...greedy, max_tokens: 9 })] }],
      ["another prompt", { seq: [g(a, greedy), g(b, greedy)] }],
      ["once", { seq: [g(a, greedy)] }],
    ],
  },
  "distribute-plus": {
    fires: [
      [
        "a generate stands behind its input",
        g({ seq: [d, { plus: [g(a)] }] }),
        g({ seq: [d, { plus: [{ seq: [a, out(a)] }] }] }),
      ],
      [
        "a seq is spliced, its monads are left out",
        g({ plus: [g({ seq: [a, { monad: f }, b] })] }),
        g({ plus: [{ seq: [a, b, out({ seq: [a, { monad: f }, b] })] }] }),
      ],
      ["a repeat shows its input once", g({ plus: [repeat(3, g(a))] }), g({ plus: [{ seq: [a, repeat(3, out(a))] }] })],
      [
        "in a plus of a span",
        g({ plus: [{ seq: [a, { plus: [g(b)] }] }] }),
        g({ plus: [{ seq: [a, { plus: [{ seq: [b, out(b)] }] }] }] }),
      ],
      [
        "behind a preamble",
        g({ plus: { preamble: d, children: [g(a)] } }),
        g({ plus: { preamble: d, children: [{ seq: [a, out(a)] }] } }),
      ],
      [
        "an ordered join where asked for",
        g({ seq: [a, g(b, { expose: "both" })] }),
        g({ seq: [a, { seq: [b, out(b)] }] }),
      ],
      [
        "inner and outer",
        g({ plus: [g({ plus: [g(a)] })] }),
        g({ plus: [{ seq: [{ plus: [{ seq: [a, out(a)] }] }, out({ plus: [{ seq: [a, out(a)] }] })] }] }),
      ],
    ],
    quiet: [
      ["its output alone is asked for", g({ plus: [out(a)] })],
      ["an ordered join shows outputs", g({ plus: [{ seq: [b, g(a)] }] })],
      ["a plus that nobody reads", { plus: [g(a)] }],
      ["a plus that is only run", g({ seq: [a, { monad: { plus: [g(b)] } }] })],
      ["an engine without spans", g({ plus: [g(a)] }), { spans: false }],
      ["a preamble is no child", g({ plus: { preamble: g(a), children: [b] } })],
    ],
  },
  "reduce-judge": {
    fires: [
      [
        "groups of at most m, each between the same messages",
        g({ seq: [a, { plus: [b, c, d] }, user("which?")] }, half),
        g(
          {
            seq: [
              a,
              {
                seq: [
                  out({ seq: [a, { plus: [b] }, user("which?")] }, half),
                  out({ seq: [a, { plus: [c, d] }, user("which?")] }, half),
                ],
              },
              user("which?"),
            ],
          },
          half,
        ),
      ],
      [
        "without messages, by the server's arity",
        g({ plus: [b, c, d] }),
        g({ seq: [out({ plus: [b] }), out({ plus: [c, d] })] }),
        { reduceArity: 2 },
      ],
      [
        "effects among the children too",
        g({ plus: [{ monad: f }, b, c, d] }, half),
        g({ seq: [{ monad: f }, out({ plus: [b] }, half), out({ plus: [c, d] }, half)] }, half),
      ],
      [
        "effects are run once",
        g({ seq: [{ monad: f }, { plus: [b, c, d] }] }, half),
        g(
          {
            seq: [{ monad: f }, { seq: [out({ seq: [{ plus: [b] }] }, half), out({ seq: [{ plus: [c, d] }] }, half)] }],
          },
          half,
        ),
      ],
      [
        "by its own arity, also where the server's is smaller",
        g({ plus: [a, b, c, d] }, { reduce: { arity: 3 } }),
        g(
          { seq: [out({ plus: [a, b] }, { reduce: { arity: 3 } }), out({ plus: [c, d] }, { reduce: { arity: 3 } })] },
          { reduce: { arity: 3 } },
        ),
        { reduceArity: 2 },
      ],
    ],
    quiet: [
      ["too many messages to show to all judges", g({ seq: [...many(512), { plus: many(130) }] }, half)],
      ["few enough children", g({ seq: [a, { plus: [b, c] }] }, half)],
      ["not allowed", g({ plus: [b, c, d] })],
      ["two plus: no telling which is judged", g({ seq: [{ plus: [b, c, d] }, { plus: [b, c, d] }] }, half)],
      ["another part than messages", g({ seq: [f, { plus: [b, c, d] }] }, half)],
      ["a preamble", g({ plus: { preamble: a, children: [b, c, d] } }, half)],
      ["an ordered join of many", g({ seq: [a, b, c, d] }, half)],
    ],
  },
  "plus-to-map": {
    fires: [["one request", { plus: [g(a), g(b)] }, map("a", "b")]],
    quiet: [
      ["the model takes no map", { plus: [g(a), g(b)] }, noBulk],
      ["not the whole query", { seq: [{ plus: [g(a), g(b)] }, a] }],
      ["inside a prompt", g({ plus: [g(a), g(b)] })],
      ["other options", { plus: [g(a), g(b, { max_tokens: 9 })] }],
      ["another role", { plus: [g(a), g({ system: "b" })] }],
      ["more than a message", { plus: [g(a), g({ seq: [a, b] })] }],
      ["one generate", { plus: [g(a)] }],
      ["a preamble", { plus: { preamble: c, children: [g(a), g(b)] } }],
      ["a message beside", { plus: [g(a), g(b), c] }],
    ],
  },
};

for (const [name, { fires, quiet }] of Object.entries(cases)) {
  describe(name, () => {
    const rules = standardRules.filter((rule) => rule.name === name);

    for (const [what, before, after, rewriteOptions] of fires) {
      test(`fires: ${what}`, () => {
        const { query, steps } = rewrite(treeOf(before), rewriteOptions, rules);
        expect(steps.length).toBeGreaterThan(0);
        expect(printQuery(query)).toEqual(printQuery(treeOf(after)));
      });
    }

    for (const [what, query, rewriteOptions] of quiet) {
      test(`stays quiet: ${what}`, () => {
        const tree = treeOf(query);
        const rewritten = rewrite(tree, rewriteOptions, rules);
        expect(rewritten.steps).toEqual([]);
        expect(rewritten.query).toBe(tree);
      });
    }
  });
}

test("every rule of the table has a case and a near miss", () => {
  expect(standardRules.map(({ name }) => name).sort()).toEqual(Object.keys(cases).sort());
  expect(Object.values(cases).every(({ fires, quiet }) => fires.length > 0 && quiet.length > 0)).toBe(true);
});

test("the language's page names every rule of the table", () => {
  const page = readFileSync(join(import.meta.dir, "..", "..", "..", "gateway", "query", "README.md"), "utf8");
  const rows = page.split("\n").filter((line) => line.trimStart().startsWith("|"));
  const named = new Set(rows.flatMap((row) => (row.split("|")[1] ?? "").split(",").map((name) => name.trim())));
  expect(standardRules.map(({ name }) => name).filter((name) => !named.has(name))).toEqual([]);
});
