/** Cases and near misses of the rules that expand and simplify. */
import type { RewriteOptions } from "../../../gateway/query/rules/rewrite.ts";
import { fragment, g, type Json, out, plainOptions, user } from "../nodes.ts";

/** What a rule alone makes of a tree. */
export type Case = readonly [what: string, before: Json, after: Json, options?: RewriteOptions];
/** A tree that comes near and on which the rule must stay quiet. */
export type NearMiss = readonly [what: string, query: Json, options?: RewriteOptions];
export type RuleCases = Readonly<
  Record<string, { readonly fires: readonly Case[]; readonly quiet: readonly NearMiss[] }>
>;

const [a, b, c, d] = ["a", "b", "c", "d"].map(user);
const [e, f] = ["e", "f"].map(fragment);
const warm = (input: Json, model = "m") => ({ g: { model, max_tokens: 1, temperature: 0, input } });
const map = (...inputs: string[]) => ({ map: { metadata: plainOptions, inputs } });
const repeat = (n: number, generate: { g: object }) => ({ repeat: { n, ...generate } });
const noBulk: RewriteOptions = { bulkMap: false };

export const expandAndSimplifyCases: RuleCases = {
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
      ["where the engine takes no map", map("a"), { plus: [g(a)] }, noBulk],
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
};
