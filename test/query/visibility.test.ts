/** No rule changes what a text may see except as it says: held to the evaluator of visibility.ts. */
import { describe, expect, test } from "bun:test";
import { childrenOf, type Generate, type Query, type Repeat } from "../../gateway/query/ir.ts";
import { canonicalText } from "../../gateway/query/print.ts";
import { expandRules } from "../../gateway/query/rules/expand.ts";
import type { Rule } from "../../gateway/query/rules/rule.ts";
import { standardRules } from "../../gateway/query/rules/table.ts";
import { fc } from "../support/fast-check.ts";
import { rewrite } from "../support/span-queries.ts";
import { fragment, g, type Json, out, treeOf, user } from "./nodes.ts";
import { treeArbitrary, withoutReduce } from "./trees.ts";
import { type Prompt, Visibility } from "./visibility.ts";

const [a, b, c, d] = ["a", "b", "c", "d"].map(user);

const promptOf = (json: Json): Prompt => new Visibility().promptOf(treeOf(json));
/** `c:ab` says that c sees a and b. Outputs are called o. */
const relationOf = (json: Json): string[] => {
  const { texts } = promptOf(json);
  const name = (label: string) => (label.startsWith("output") ? "o" : (/"([a-z])"/.exec(label)?.[1] ?? label));
  return texts.map(
    ({ label, sees }) => `${name(label)}:${sees.map((index) => name(texts[index]?.label ?? "")).join("")}`,
  );
};

describe("the evaluator", () => {
  test.each([
    ["an ordered join is one chain", { seq: [a, { cross: [b, c] }] }, ["a:", "b:a", "c:ab"]],
    ["children of a plus do not see each other", { plus: [a, b, c] }, ["a:", "b:", "c:"]],
    [
      "nor what stands before, and are seen by what follows",
      { cross: [a, { plus: [b, c] }, d] },
      ["a:", "b:", "c:", "d:abc"],
    ],
    ["a child of many texts is one span", { plus: [{ seq: [a, b] }, c] }, ["a:", "b:a", "c:"]],
    ["a span with spans", { plus: [{ seq: [a, { plus: [b] }, c] }, d] }, ["a:", "b:", "c:ab", "d:"]],
    ["a preamble is seen by the children", { plus: { preamble: a, children: [b, c] } }, ["a:", "b:a", "c:a"]],
    ["an output in an ordered join", { seq: [a, g(b), c] }, ["a:", "o:a", "c:ao"]],
    ["an input too where asked for", { seq: [a, g(b, { expose: "both" })] }, ["a:", "b:a", "o:ab"]],
    ["a child of a plus shows input and output", { plus: [g(b), c] }, ["b:", "o:b", "c:"]],
    ["or its output alone", { plus: [out(b), c] }, ["o:", "c:"]],
    ["samples do not see each other", { plus: [{ repeat: { n: 2, ...g(a) } }] }, ["a:", "o:a", "o:a"]],
    ["but as words of a chain they follow each other", { seq: [{ repeat: { n: 2, ...g(a) } }] }, ["o:", "o:o"]],
    ["a monad puts nothing into the prompt", { seq: [a, { monad: g(b) }, c] }, ["a:", "c:a"]],
    ["retrieved fragments are spans", { seq: [a, { retrieved: [fragment("x"), fragment("y")] }] }, ["a:", "x:", "y:"]],
    ["a zip is its join", { zip: { first: a, second: { plus: [b, c] } } }, ["a:", "b:", "a:", "c:"]],
  ] as const)("%s", (_, json, relation) => {
    expect(relationOf(json)).toEqual([...relation]);
  });

  test("tells prompts apart by who sees whom and by order, not by the order within a plus", () => {
    const visibility = new Visibility();
    const digest = (json: Json) => visibility.promptOf(treeOf(json)).digest;
    expect(digest({ plus: [a, b, { plus: [c, d] }] })).toBe(digest({ plus: [d, c, b, a] }));
    const all = [
      { seq: [a, b] },
      { seq: [b, a] },
      { plus: [a, b] },
      { plus: [{ seq: [a, b] }] },
      { seq: [a, { plus: [b] }] },
    ];
    expect(new Set(all.map(digest)).size).toBe(all.length);
    expect(digest({ seq: [{ plus: [a] }, { plus: [b] }] })).not.toBe(digest({ seq: [{ plus: [b] }, { plus: [a] }] }));
    expect(digest({ plus: { preamble: d, children: [{ plus: [a, b] }] } })).not.toBe(
      digest({ plus: { preamble: d, children: [a, b] } }),
    );
    expect(digest(g(a))).not.toBe(digest(g(a, { temperature: 0.5 })));
  });

  test("counts a shared object as one run and equal ones as two", () => {
    const shown = treeOf(g(a));
    const meaning = (children: readonly Query[]) => new Visibility().meaningOf({ kind: "seq", children }).runs.length;
    expect(meaning([shown, shown])).toBe(1);
    expect(meaning([shown, treeOf(g(a))])).toBe(2);
  });
});

/** Runs that merging may make one: nothing in them is a sample. */
function isGreedy(query: Query): boolean {
  const isSample = query.kind === "chat" || ("options" in query && query.options.temperature > 0);
  return !isSample && childrenOf(query).every(([, child]) => isGreedy(child));
}

interface Runs {
  readonly sampled: readonly string[];
  readonly greedy: readonly string[];
}

function runsOf(query: Query, visibility: Visibility, isMergeable = isGreedy): Runs {
  const all = new Set<Generate | Repeat>();
  const seen = new Set<Query>();
  const visit = (node: Query): void => {
    if (seen.has(node)) return;
    seen.add(node);
    if (node.kind === "generate" || node.kind === "repeat") all.add(node);
    // The generate in a repeat is what the repeat runs, no run beside it.
    if (node.kind === "repeat") return visit(node.generate.input);
    for (const [, child] of childrenOf(node)) visit(child);
  };
  visit(query);
  const { true: greedy = [], false: sampled = [] } = Object.groupBy(all, (run) => `${isMergeable(run)}` as const);
  const digests = (runs: readonly (Generate | Repeat)[]) => runs.map((run) => visibility.digestOf(run)).sort();
  return { sampled: digests(sampled), greedy: [...new Set(digests(greedy))] };
}

/** What `retrieved-to-plus` says that it adds: a run of one token for each fragment and model that reads it. */
function warmingOf(query: Query, visibility: Visibility): Set<string> {
  const warming = new Set<string>();
  const read = (node: Query, model: string): void => {
    if (node.kind === "seq" || node.kind === "cross" || node.kind === "par" || node.kind === "plus") {
      for (const [, child] of childrenOf(node)) read(child, model);
    }
    if (node.kind !== "retrieved") return;
    for (const input of node.fragments) {
      warming.add(visibility.digestOf({ kind: "generate", options: { model, maxTokens: 1, temperature: 0 }, input }));
    }
  };
  const visit = (node: Query): void => {
    if (node.kind === "generate") read(node.input, node.options.model);
    for (const [, child] of childrenOf(node.kind === "zip" ? visibility.joinOf(node) : node)) visit(child);
  };
  visit(query);
  return warming;
}

const rulesNamed = (...names: string[]): Rule[] => standardRules.filter(({ name }) => names.includes(name));
const trees = fc.sample(treeArbitrary, { numRuns: 1_500 }).map((tree) => withoutReduce(tree));
const told = ["retrieved-to-plus", "merge-greedy", "reduce-judge"];
const neutralRules = standardRules.filter(({ name }) => !told.includes(name));

/** A failing tree is shown as a client would send it. */
function expectSame(before: unknown, after: unknown, tree: Query): void {
  if (Bun.deepEquals(before, after)) return;
  expect({ tree: canonicalText(tree), meaning: after }).toEqual({ tree: canonicalText(tree), meaning: before });
}

describe("one rule alone, on 1,500 random trees", () => {
  test.each(neutralRules.map((rule) => [rule.name, rule] as const))("%s changes nothing", (_, rule) => {
    let fired = 0;
    for (const tree of trees) {
      const start = rule.phase === "expand" ? tree : rewrite(tree, {}, expandRules).query;
      const { query, steps } = rewrite(start, { bulkMap: rule.name !== "map-to-plus" }, [rule]);
      const visibility = new Visibility();
      expectSame(visibility.meaningOf(start), visibility.meaningOf(query), start);
      fired += steps.length;
    }
    // Whole queries of this one form are rare: the next test makes them.
    if (rule.name !== "plus-to-map") expect(fired).toBeGreaterThan(0);
  });

  test("plus-to-map changes nothing", () => {
    const generates = fc.array(fc.constantFrom(g(a), g(b), g(c), g(d, { max_tokens: 3 })), {
      minLength: 1,
      maxLength: 4,
    });
    for (const children of fc.sample(generates, { numRuns: 200 })) {
      const query = treeOf({ plus: children });
      const visibility = new Visibility();
      const after = rewrite(query, {}, rulesNamed("plus-to-map")).query;
      expect(visibility.meaningOf(after).answers).toEqual(visibility.meaningOf(query).answers);
    }
  });

  test("merge-greedy makes equal greedy runs one, and no samples", () => {
    for (const tree of trees) {
      const start = rewrite(tree, {}, expandRules).query;
      const visibility = new Visibility();
      const { query } = rewrite(start, {}, rulesNamed("merge-greedy"));
      expectSame(runsOf(start, visibility), runsOf(query, visibility), start);
      expectSame(visibility.meaningOf(start).answers, visibility.meaningOf(query).answers, start);
    }
  });

  test("retrieved-to-plus adds the runs that prepare, and nothing else", () => {
    for (const tree of trees) {
      const visibility = new Visibility();
      const { query } = rewrite(tree, {}, rulesNamed("retrieved-to-plus"));
      const before = visibility.meaningOf(tree);
      const after = visibility.meaningOf(query);
      const added = new Set(after.runs).difference(new Set(before.runs));
      expectSame([...warmingOf(tree, visibility).difference(new Set(before.runs))].sort(), [...added].sort(), tree);
      expectSame({ ...before, runs: [] }, { ...after, runs: [] }, tree);
    }
  });
});

test.each([
  ["", {}],
  [", without spans", { spans: false }],
  [", without maps", { bulkMap: false }],
])("the whole table changes nothing but what its rules say%s", (_, options) => {
  for (const tree of trees) {
    const visibility = new Visibility();
    const expanded = rewrite(tree, options, expandRules).query;
    const { query } = rewrite(tree, options);
    const before = visibility.meaningOf(tree);
    const after = visibility.meaningOf(query);
    expectSame({ ...before, runs: [] }, { ...after, runs: [] }, tree);
    if (query.kind !== "map") expectSame(runsOf(expanded, visibility), runsOf(query, visibility), tree);
  }
});

test("to a reader that sees outputs alone, distribution adds exactly the inner input", () => {
  const before = relationOf({ seq: [d, { plus: [out({ seq: [a, b] })] }, c] });
  const distributed = rewrite(treeOf(g({ seq: [d, { plus: [g({ seq: [a, b] })] }, c] }))).query;
  if (distributed.kind !== "generate") throw new Error("a g stays a g");
  const { texts } = new Visibility().promptOf(distributed.input);
  expect(before).toEqual(["d:", "o:", "c:do"]);
  expect(texts.map(({ sees }) => [...sees])).toEqual([[], [], [1], [1, 2], [0, 1, 2, 3]]);
});

/** Generates that stand in a prompt, in its order. */
function generatesIn(query: Query): readonly Generate[] {
  if (query.kind === "generate") return [query];
  return childrenOf(query).flatMap(([, child]) => generatesIn(child));
}

describe("reduce-judge", () => {
  const judges = fc.record({
    count: fc.integer({ min: 1, max: 60 }),
    arity: fc.integer({ min: 2, max: 7 }),
    before: fc.boolean(),
    after: fc.boolean(),
  });

  test("shows every child to exactly one first judge, and every judge's output to exactly one above", () => {
    fc.assert(
      fc.property(judges, ({ count, arity, before, after }) => {
        const children = Array.from({ length: count }, (_, index) => user(`child ${index}`));
        const messages = (isThere: boolean) => (isThere ? [user("message")] : []);
        const input = { seq: [...messages(before), { plus: children }, ...messages(after)] };
        const outer = rewrite(treeOf(g(input, { reduce: { arity } }))).query;
        const visibility = new Visibility();
        const seen: string[] = [];
        const outputs: number[] = [];
        const visit = (judge: Query): number => {
          if (judge.kind !== "generate") throw new Error("a judge is a generate");
          const { texts } = visibility.promptOf(judge.input);
          const own = texts.filter(({ label }) => label.includes("child"));
          const given = texts.filter(({ label }) => label.startsWith("output"));
          expect(texts.length).toBe(own.length + given.length + Number(before) + Number(after));
          expect(own.length + given.length).toBeLessThanOrEqual(arity);
          // Children do not see each other; answers stand one after the other, behind what stands before them.
          expect(own.every(({ sees }) => sees.length === 0)).toBe(true);
          expect(given.every((text) => text.sees.length === texts.indexOf(text))).toBe(true);
          // The message behind the plus sees all of it.
          if (after) expect(texts.at(-1)?.sees.length).toBe(texts.length - 1);
          seen.push(...own.map(({ label }) => label));
          outputs.push(given.length);
          const inner = generatesIn(judge.input);
          expect(inner.length).toBe(given.length);
          expect(inner.every(({ options }) => options.expose === "output" && options.model === "m")).toBe(true);
          return 1 + Math.max(0, ...inner.map(visit));
        };
        const levels = visit(outer);
        expect(seen.sort()).toEqual(children.map(({ user: text }) => `user ${JSON.stringify(text)}`).sort());
        // No level more than it takes.
        const needed = (width: number): number => (width <= arity ? 1 : 1 + needed(Math.ceil(width / arity)));
        expect(levels).toBe(needed(count));
      }),
      { numRuns: 150 },
    );
  });
});
