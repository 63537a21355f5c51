import { describe, expect, test } from "bun:test";
import type { Generate, Query, Repeat } from "../../gateway/query/ir.ts";
import { planFault } from "../../worker/contract/validate.ts";
import { fc } from "../support/fast-check.ts";
import { models } from "../text/models.ts";
import {
  assistant,
  behind,
  card,
  contextOf,
  fragment,
  g,
  lowererOf,
  NaiveChatml,
  plus,
  repeat,
  seq,
  submitOf,
  system,
  user,
  visibleTo,
} from "./query-rig.ts";

const said = (node: Generate | Repeat, index: number): string =>
  `the answer ${index} of ${node.kind === "repeat" ? node.generate.options.seed : node.options.seed}`;

/** Lowers a query for ChatML, at once and in turns, and holds every run of its plan against the naive flattening. */
async function expectNaive(query: Generate): Promise<void> {
  const { lowerer, tokenizer } = lowererOf(models.chatml);
  const context = contextOf(tokenizer, said);
  const lowered = lowerer.lower(query, context);
  expect(await lowererOf(models.chatml).lowerer.lowerInSlices(query, context)).toEqual(lowered);
  const { plan, promptTokens, indeterminateRuns } = lowered;
  const naive = new NaiveChatml(models.chatml, context, said);
  const whole = naive.tokens(naive.prompt(query));
  expect(promptTokens).toBe(whole.length);
  expect(visibleTo(plan, plan.runs.length - 1)).toEqual(whole);
  const found = new Set(plan.runs.map((_, index) => visibleTo(plan, index).join()));
  expect(found).toEqual(new Set([...naive.runTexts].map((text) => naive.tokens(text).join())));
  expect(new Set(plan.runs.map((run) => run.blockKeys.at(-1) ?? run.rootKey)).size).toBe(plan.runs.length);
  expect(indeterminateRuns.size).toBe(0);
  expect(planFault(submitOf(lowered), { ...card, vocabSize: 400 })).toBeUndefined();
}

describe("what a plan shows is what the query says", () => {
  const judge = seq(system("be brief"), user("the thing"));
  const cases: Readonly<Record<string, Query>> = {
    "messages alone": seq(user("in the row"), assistant("yes"), user("why")),
    "spans of one message, of several, of a fragment": plus(user("one"), seq(user("a"), assistant("b")), fragment("a")),
    "the same fragment twice": plus(fragment("a"), fragment("b"), fragment("a")),
    "spans in spans": plus(seq(user("a"), plus(fragment("a"), user("b")), user("c")), fragment("d")),
    "a plus in a plus": plus(user("a"), plus(fragment("a"), user("b"))),
    "an ordered join of fragments": seq(fragment("a"), user("and"), fragment("b")),
    "a preamble": behind(system("about the user"), fragment("a"), seq(user("b"), fragment("c"))),
    "a preamble in a preamble": behind(user("a"), behind(seq(user("b"), plus(user("c"))), fragment("a")), user("d")),
    "an output behind its own prompt": plus(seq(judge, g(judge, { expose: "output", seed: 1 })), fragment("a")),
    "a generate that was not distributed": plus(g(judge, { seed: 1 }), fragment("a")),
    "outputs alone": plus(g(judge, { expose: "output", seed: 1 }), g(user("x"), { expose: "output", seed: 2 })),
    "samples behind their prompt": plus(seq(judge, repeat(3, g(judge, { expose: "output", seed: 1 })))),
    "outputs in an ordered join": seq(g(judge, { seed: 1 }), user("and"), repeat(2, g(user("x"), { seed: 2 }))),
    "an output behind a preamble": behind(user("a"), seq(judge, g(judge, { expose: "output", seed: 1 }))),
    "an output as a preamble": behind(seq(judge, g(judge, { expose: "output", seed: 1 })), fragment("a")),
    "a generate behind another text than its prompt": plus(seq(user("a"), g(user("b"), { seed: 1 }))),
    "a generate of another prompt among its own": plus(seq(judge, g(user("x"), { seed: 1 }), g(judge, { seed: 2 }))),
    "a generate that shows its prompt": seq(
      g(judge, { seed: 1, expose: "both" }),
      plus(seq(judge, g(judge, { seed: 2, expose: "both" }))),
    ),
    "fragments that come with the query": plus(
      { kind: "fragment", text: "in the row", title: "A title" },
      seq({ kind: "fragment", text: "in" }, user("x")),
    ),
    "effects only": seq(
      { kind: "monad", child: user("warm") },
      plus({ kind: "monad", child: fragment("a") }),
      user("x"),
    ),
  };
  for (const [name, query] of Object.entries(cases)) {
    test(name, async () => {
      await expectNaive(g(seq(system("you answer"), query, user("Who?"))));
    });
  }

  test("a generate in a generate in a generate", async () => {
    const inner = seq(user("a"), plus(fragment("a"), user("b")));
    const middle = plus(seq(inner, g(inner, { expose: "output", seed: 1 })), fragment("b"));
    const outer = seq(middle, user("c"));
    await expectNaive(
      g(seq(system("s"), plus(seq(outer, g(outer, { expose: "output", seed: 2 })), fragment("c")), user("d"))),
    );
  });

  test("any query", async () => {
    const words = fc.string({
      unit: fc.constantFrom("the", " in", " thing", " 7", "é", "'s"),
      minLength: 1,
      maxLength: 6,
    });
    const seed = fc.integer({ min: 1, max: 9 });
    const { query } = fc.letrec<{ query: Query; group: Query; span: Query }>((tie) => ({
      query: fc.oneof(
        { maxDepth: 4, depthIdentifier: "query" },
        fc.tuple(fc.constantFrom(user, assistant, system), words).map(([role, text]) => role(text)),
        fc.constantFrom("a", "b", "c").map(fragment),
        fc.tuple(words, seed).map(([text, number]) => g(user(`inner ${text}`), { seed: number })),
        fc.array(tie("query"), { minLength: 2, maxLength: 3 }).map((parts) => seq(...parts)),
        tie("group"),
      ),
      group: fc
        .tuple(fc.option(tie("query"), { nil: undefined }), fc.array(tie("span"), { maxLength: 3 }))
        .map(([preamble, spans]) =>
          preamble === undefined ? plus(...spans) : behind(seq(user("p"), preamble), ...spans),
        ),
      span: fc.oneof(
        { maxDepth: 4, depthIdentifier: "query" },
        tie("query"),
        fc.tuple(tie("query"), seed, fc.integer({ min: 1, max: 2 })).map(([query, number, n]) => {
          const input = seq(user("q"), query);
          const generate = g(input, { seed: number, expose: "output" });
          return seq(input, n === 1 ? generate : repeat(n, generate));
        }),
        fc
          .tuple(tie("query"), seed)
          .map(([query, number]) => g(seq(user("q"), query), { seed: number, expose: "output" })),
      ),
    }));
    await fc.assert(
      fc.asyncProperty(query, async (one) => {
        await expectNaive(g(seq(system("s"), one, user("u"))));
      }),
      { numRuns: 150 },
    );
  });
});
