/** Each rule of the table alone: what it fires on, and the near misses on which it must stay quiet. */
import { describe, expect, test } from "bun:test";
import { canonicalKey, printQuery } from "../../gateway/query/print.ts";
import { type RewriteOptions, rewrite } from "../../gateway/query/rewrite.ts";
import { standardRules } from "../../gateway/query/rules/table.ts";
import { fragment, g, type Json, out, plainOptions, treeOf, user } from "./nodes.ts";

type Case = readonly [what: string, before: Json, after: Json, options?: RewriteOptions];
type NearMiss = readonly [what: string, query: Json, options?: RewriteOptions];

const [a, b, c, d] = ["a", "b", "c", "d"].map(user);
const [e, f] = ["e", "f"].map(fragment);
const greedy = { temperature: 0 };
const half = { reduce: { arity: 2 } };
const warm = (input: Json, model = "m") => ({ g: { model, max_tokens: 1, temperature: 0, input } });
const map = (...inputs: string[]) => ({ map: { metadata: plainOptions, inputs } });
const repeat = (n: number, generate: { g: object }) => ({ repeat: { n, ...generate } });
const noBulk: RewriteOptions = { bulkMap: () => false };
const sorted = (children: readonly Json[]) =>
  children.toSorted((x, y) => (canonicalKey(treeOf(x)) < canonicalKey(treeOf(y)) ? -1 : 1));
const unsorted = sorted([g(a), g(b), g(c), g(d)]).toReversed();

const cases: Readonly<Record<string, { readonly fires: readonly Case[]; readonly quiet: readonly NearMiss[] }>> = {
  "chat-to-generate": {
    fires: [
      [
        "over its children, with the server's defaults",
        { chat: [a, b] },
        { g: { ...plainOptions, model: "", input: { seq: [a, b] } } },
      ],
    ],
    quiet: [["a seq is no chat", { seq: [a, b] }]],
  },
  "zip-to-join": {
    fires: [
      ["a message before each child", { zip: { first: a, second: { cross: [b, c] } } }, { cross: [a, b, a, c] }],
      ["two messages", { zip: { first: a, second: b } }, { seq: [a, b] }],
      [
        "inside out",
        { zip: { first: a, second: { zip: { first: b, second: { plus: [c] } } } } },
        { plus: [a, b, a, c] },
      ],
      ["a map counts as its generates", { zip: { first: a, second: map("b") } }, { plus: [a, g(b)] }],
      ["retrieved fragments", { zip: { first: a, second: { retrieved: [f] } } }, { plus: [a, f] }],
      [
        "a monad puts nothing into the prompt",
        { zip: { first: a, second: { seq: [{ monad: f }, b] } } },
        { seq: [{ monad: f }, a, b] },
      ],
      [
        "the preamble stays first",
        { zip: { first: a, second: { plus: { preamble: d, children: [b] } } } },
        { plus: { preamble: d, children: [a, b] } },
      ],
      ["no child, nothing", { zip: { first: a, second: { retrieved: [] } } }, { plus: [] }],
    ],
    quiet: [["a join is no zip", { seq: [a, b, a, c] }]],
  },
  "map-to-plus": {
    fires: [
      ["in a prompt", g(map("a", "b")), g({ plus: [g(a), g(b)] })],
      ["run for its effect", { monad: map("a") }, { monad: { plus: [g(a)] } }],
      ["where the model takes no map", map("a"), { plus: [g(a)] }, noBulk],
    ],
    quiet: [
      ["as the whole query", map("a", "b")],
      ["beside others outside prompts", { seq: [map("a", "b"), a] }],
    ],
  },
  "repeat-once": {
    fires: [["one sample", repeat(1, g(a)), g(a)]],
    quiet: [["two samples", repeat(2, g(a))]],
  },
  "retrieved-alone": {
    fires: [
      ["as the whole query", { retrieved: [f, e] }, { plus: [f, e] }],
      [
        "run for its effect, in a prompt too",
        g({ seq: [a, { monad: { retrieved: [f] } }] }),
        g({ seq: [a, { monad: { plus: [f] } }] }),
      ],
    ],
    quiet: [["what a generate reads", g({ retrieved: [f] })]],
  },
  "retrieved-to-plus": {
    fires: [
      [
        "prepared and read",
        g({ retrieved: [f, e] }),
        g({ seq: [{ monad: { plus: [warm(f), warm(e)] } }, { plus: [f, e] }] }),
      ],
      [
        "one fragment like any number",
        g({ seq: [a, { retrieved: [f] }] }),
        g({ seq: [a, { seq: [{ monad: { plus: [warm(f)] } }, { plus: [f] }] }] }),
      ],
      [
        "for the model that reads it",
        g({ seq: [g({ retrieved: [f] }, { model: "inner" })] }),
        g({ seq: [g({ seq: [{ monad: { plus: [warm(f, "inner")] } }, { plus: [f] }] }, { model: "inner" })] }),
      ],
      ["nothing found", g({ seq: [a, { retrieved: [] }] }), g({ seq: [a, { seq: [] }] })],
    ],
    quiet: [
      ["outside every generate", { seq: [{ retrieved: [f] }, g(a)] }],
      ["only run, not read", g({ monad: { retrieved: [f] } })],
    ],
  },
  "flatten-monad": {
    fires: [["twice", { monad: { monad: f } }, { monad: f }]],
    quiet: [["a seq between", { monad: { seq: [{ monad: f }] } }]],
  },
  "idle-monad": {
    fires: [["text runs nothing", { monad: { plus: [a, { seq: [b] }] } }, { seq: [] }]],
    quiet: [
      ["a generate runs", { monad: { seq: [g(a)] } }],
      ["a fragment is prepared", { monad: f }],
      ["a map runs", { monad: map("a") }],
    ],
  },
  "drop-empty": {
    fires: [
      ["in an ordered join", { seq: [a, { plus: [] }, b] }, { seq: [a, b] }],
      ["in a plus", { plus: [{ seq: [] }, { cross: [{ par: [] }] }] }, { plus: [] }],
      ["a preamble without a word", { plus: { preamble: { seq: [] }, children: [a] } }, { plus: [a] }],
    ],
    quiet: [
      ["a preamble is read also before no children", { seq: [{ plus: { preamble: a, children: [] } }] }],
      ["the input of a generate", g({ seq: [] })],
      ["the whole query", { plus: [] }],
    ],
  },
  "only-child": {
    fires: [
      ["in a prompt", g({ cross: [{ plus: [a] }] }), g({ plus: [a] })],
      ["a generate that nobody reads", { seq: [{ par: [g(a)] }] }, g(a)],
      ["a generate that is only run", g({ monad: { seq: [g(a)] } }), g({ monad: g(a) })],
    ],
    quiet: [
      ["a generate in a prompt would be shown with its input", g({ plus: [{ seq: [g(a)] }] })],
      ["its output would no longer be words of this chain", g({ plus: [{ seq: [out(a)] }] })],
      ["a span does not see what stands before it", g({ seq: [a, { plus: [b] }] })],
      ["two children", { seq: [a, b] }],
    ],
  },
  "flatten-ordered": {
    fires: [
      ["of one kind", { seq: [a, { seq: [b, { seq: [c] }] }] }, { seq: [a, b, c] }],
      ["of any kind in a prompt", g({ cross: [a, { par: [b, c] }] }), g({ cross: [a, b, c] })],
    ],
    quiet: [
      ["outside prompts the kind says how it is run", { seq: [a, { par: [g(b), g(c)] }] }],
      ["a seq in a plus is one span", g({ plus: [{ seq: [a, b] }, c] })],
      ["a plus in a seq is spans", g({ seq: [a, { plus: [b, c] }] })],
    ],
  },
  "flatten-plus": {
    fires: [["spans of a span without words", g({ plus: [{ plus: [a, b] }, c] }), g({ plus: [a, b, c] })]],
    quiet: [
      ["the inner preamble is for the inner children", g({ plus: [{ plus: { preamble: a, children: [b] } }, c] })],
      ["spans of a span do not see the outer preamble", g({ plus: { preamble: d, children: [{ plus: [a, b] }, c] } })],
      ["the inner plus stands in a chain with words", g({ plus: [{ seq: [a, { plus: [b, c] }] }, d] })],
    ],
  },
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
      ["a model without spans", g({ plus: [g(a)] }), { spanModel: () => false }],
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
                plus: [
                  out({ seq: [a, { plus: [b] }, user("which?")] }),
                  out({ seq: [a, { plus: [c, d] }, user("which?")] }),
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
        g({ plus: [out({ plus: [b] }), out({ plus: [c, d] })] }),
        { reduceArity: 2 },
      ],
      [
        "effects among the children too",
        g({ plus: [{ monad: f }, b, c, d] }, half),
        g({ plus: [{ monad: f }, out({ plus: [b] }), out({ plus: [c, d] })] }, half),
      ],
      [
        "effects are run once",
        g({ seq: [{ monad: f }, { plus: [b, c, d] }] }, half),
        g({ seq: [{ monad: f }, { plus: [out({ seq: [{ plus: [b] }] }), out({ seq: [{ plus: [c, d] }] })] }] }, half),
      ],
    ],
    quiet: [
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
