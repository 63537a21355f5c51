/** The driver: fixpoint, bounds, sharing, places, steps. */
import { describe, expect, test } from "bun:test";
import { childrenOf, type Query } from "../../../gateway/query/ir.ts";
import { checkLegal } from "../../../gateway/query/legality.ts";
import { parseQuery } from "../../../gateway/query/parse.ts";
import { printQuery } from "../../../gateway/query/print.ts";
import { maxSteps, rewriteInSteps } from "../../../gateway/query/rules/rewrite.ts";
import { ruleOn } from "../../../gateway/query/rules/rule.ts";
import { fc } from "../../support/fast-check.ts";
import { rewrite } from "../../support/span-queries.ts";
import { g, out, treeOf, user } from "../nodes.ts";
import { treeArbitrary } from "../trees.ts";

const [a, b, c] = ["a", "b", "c"].map(user);
const greedy = { temperature: 0 };
const at = (query: Query, ...indices: number[]): Query => {
  let node = query;
  for (const index of indices) {
    const child = childrenOf(node)[index]?.[1];
    if (child === undefined) throw new Error(`no child ${index} of a ${node.kind}`);
    node = child;
  }
  return node;
};

describe("10,000 random trees", () => {
  const trees = fc.sample(treeArbitrary, { numRuns: 10_000 });

  test("end far below the bounds, legal after every pass, at a fixpoint", () => {
    let mostPasses = 0;
    const fired = new Set<string>();
    for (const tree of trees) {
      let passes = 0;
      const afterPass = (query: Query) => {
        passes += 1;
        checkLegal(query, "resolved");
      };
      const { query, steps } = rewrite(tree, { afterPass });
      mostPasses = Math.max(mostPasses, passes);
      for (const { rule } of steps) fired.add(rule);
      if (rewrite(query).query !== query) throw new Error(`rules fire again on ${JSON.stringify(printQuery(query))}`);
    }
    expect(mostPasses).toBeLessThanOrEqual(8);
    // The seventeenth fires on a whole query of one form only; rules.test.ts has it.
    expect(fired.size).toBeGreaterThanOrEqual(16);
  }, 60_000);

  test("the same for an engine without spans, without maps, and with a server's arity", () => {
    for (const tree of trees.slice(0, 1_000)) {
      const options = { spans: false, bulkMap: false, reduceArity: 2 };
      const { query } = rewrite(tree, options);
      expect(rewrite(query, options).query).toBe(query);
    }
  });
});

describe("one object is one run", () => {
  const inner = treeOf(g(a));
  const options = { model: "m", maxTokens: 0, temperature: 0.6 };
  const over = (kind: "plus" | "seq", children: readonly Query[]): Query => ({
    kind: "generate",
    options,
    input: { kind, children },
  });

  test("an inner generate at two places stays one object, in a plus and elsewhere", () => {
    const children = [
      over("plus", [inner]),
      over("seq", [treeOf(c), inner]),
      { kind: "monad", child: inner } as const,
      inner,
    ];
    const query: Query = { kind: "par", children: [...children] };
    const rewritten = rewrite(query).query;
    const shown = at(rewritten, 0, 0, 0, 1);
    expect(printQuery(shown)).toEqual(printQuery(treeOf(out(a))));
    expect(at(rewritten, 1, 0, 1)).toBe(shown);
    expect(at(rewritten, 2, 0)).toBe(shown);
    expect(at(rewritten, 3)).toBe(shown);
  });

  test("also where it is read at one place and answered at another", () => {
    const nested = treeOf(g({ seq: [a, { seq: [b, c] }] }));
    const query: Query = { kind: "par", children: [over("seq", [treeOf(c), nested]), nested] };
    const rewritten = rewrite(query).query;
    expect(printQuery(at(rewritten, 1))).toEqual(printQuery(treeOf(g({ seq: [a, b, c] }))));
    expect(at(rewritten, 0, 0, 1)).toBe(at(rewritten, 1));
  });

  test("and is no entry of a map when it is shown twice", () => {
    const query: Query = { kind: "plus", children: [inner, inner, treeOf(g(b))] };
    expect(rewrite(query).query).toBe(query);
  });

  test("and so does a repeat", () => {
    const sampled = treeOf({ repeat: { n: 2, ...g(a) } });
    const both: Query = { kind: "par", children: [over("plus", [sampled]), over("seq", [treeOf(b), sampled])] };
    const rewritten = rewrite(both).query;
    expect(at(rewritten, 0, 0, 0, 1)).toBe(at(rewritten, 1, 0, 1));
  });

  test("its prompt is the object that is shown", () => {
    const rewritten = rewrite(treeOf(g({ plus: [g({ seq: [a, { plus: [b] }] })] }))).query;
    const span = at(rewritten, 0, 0);
    expect(at(span, 1)).toBe(at(span, 2, 0, 1));
  });

  test("two equal samples stay two runs, two equal greedy ones become one", () => {
    const samples = rewrite(treeOf({ par: [g(a), g(a)] })).query;
    expect(at(samples, 0)).not.toBe(at(samples, 1));
    const same = rewrite(treeOf({ par: [g(a, greedy), g(a, greedy)] })).query;
    expect(at(same, 0)).toBe(at(same, 1));
    const overSamples = rewrite(treeOf({ par: [g({ seq: [b, g(a)] }, greedy), g({ seq: [b, g(a)] }, greedy)] })).query;
    expect(at(overSamples, 0)).not.toBe(at(overSamples, 1));
  });

  test("equal sets in different orders are equal runs", () => {
    const query = treeOf({ par: [g({ plus: [a, b, c] }, greedy), g({ plus: [c, a, b] }, greedy)] });
    const rewritten = rewrite(query).query;
    expect(at(rewritten, 0)).toBe(at(rewritten, 1));
  });

  test("a repeat of one is a run of its own beside its generate", () => {
    if (inner.kind !== "generate") throw new Error("a g is a generate");
    const query: Query = { kind: "par", children: [{ kind: "repeat", n: 1, generate: inner }, inner] };
    const rewritten = rewrite(query).query;
    expect(at(rewritten, 0)).toEqual(at(rewritten, 1));
    expect(at(rewritten, 0)).not.toBe(at(rewritten, 1));
  });
});

test("runs that become equal by distribution are one, with the runs inside of them", () => {
  const map = (expose: "both" | undefined, inputs: readonly string[]) => ({
    map: { metadata: { model: "m", max_tokens: 8, temperature: 0, ...(expose && { expose }) }, inputs },
  });
  const greedy = { model: "m", max_tokens: 8, temperature: 0 };
  const inner = { g: { ...greedy, input: map(undefined, ["b", "c"]) } };
  const tree = parseQuery({ g: { ...greedy, expose: "both", input: { seq: [map("both", ["b", "a", "b"]), inner] } } });
  const { query } = rewrite(tree);
  expect(rewrite(query).query).toBe(query);
});

describe("what does not change", () => {
  test("is the same object", () => {
    const query = treeOf(g({ seq: [a, { plus: [{ seq: [b, c] }] }, { seq: [c, b] }] }));
    const rewritten = rewrite(query).query;
    expect(at(rewritten, 0, 1)).toBe(at(query, 0, 1));
    expect(at(rewritten, 0, 2)).toBe(at(query, 0, 2, 0));
  });

  test("a query that no rule fires on", () => {
    const query = treeOf(g({ seq: [a, { plus: [b] }] }));
    expect(rewrite(query)).toEqual({ query, steps: [] });
    expect(rewrite(query).query).toBe(query);
  });
});

test("a judge's tree does not depend on the order of what it judges", () => {
  const letters = [..."abcdefghijk"].map(user);
  const judge = (children: unknown[]) => g({ seq: [user("which?"), { plus: children }] }, { reduce: { arity: 3 } });
  for (const children of [letters, letters.map((letter) => g(letter))]) {
    const forward = rewrite(treeOf(judge(children))).query;
    const backward = rewrite(treeOf(judge(children.toReversed()))).query;
    expect(printQuery(backward)).toEqual(printQuery(forward));
  }
});

test("a single answer goes up a judge's tree as it is", () => {
  const query = treeOf(g({ seq: [user("which?"), { plus: [..."abcde"].map(user) }] }, { reduce: { arity: 2 } }));
  const countJudges = (node: Query): number =>
    (node.kind === "generate" ? 1 : 0) + childrenOf(node).reduce((sum, [, child]) => sum + countJudges(child), 0);
  // Over a | b c | d e, over the answers of the last two, and over that and the first.
  expect(countJudges(rewrite(query).query)).toBe(5);
});

test("steps say which rule made what of what, and where", () => {
  const { query, steps } = rewrite(treeOf({ par: [a, g({ plus: [g(b)] })] }));
  expect(steps.map(({ rule, path }) => `${rule} ${path}`)).toEqual(["distribute-plus $.par[1]"]);
  expect(steps[0]?.before).toEqual(treeOf(g({ plus: [g(b)] })));
  expect(steps[0]?.after).toBe(at(query, 1));
});

describe("bounds", () => {
  const flip = ruleOn(["message"], "flip", "message -> message", (message) => ({ ...message }));

  test("a rule that always fires is an error that names where", () => {
    expect(() => rewrite(treeOf({ seq: [a, b] }), {}, [flip])).toThrow("at $.seq[0]");
  });

  test("and so is one that fires in every pass", () => {
    let count = 0;
    const grow = ruleOn(["seq"], "grow", "seq -> seq of more", (seq) =>
      seq.children.length === 0 ? { ...seq, children: [{ kind: "seq", children: [] }] } : undefined,
    );
    const afterPass = () => {
      count += 1;
    };
    expect(() => rewrite({ kind: "seq", children: [] }, { afterPass }, [grow])).toThrow("grow");
    expect(count).toBeGreaterThan(8);
  });

  test("steps are bounded in number", () => {
    const children = Array.from({ length: 2 * maxSteps }, () => treeOf({ seq: [a] }));
    const { query, steps } = rewrite({ kind: "par", children });
    expect(steps.length).toBe(maxSteps);
    expect(childrenOf(query).every(([, child]) => child.kind === "message")).toBe(true);
  });

  test("an arity that is no whole number from 2 is refused", () => {
    for (const reduceArity of [1, 0, -2, 2.5, Number.NaN]) {
      expect(() => rewrite(treeOf(a), { reduceArity })).toThrow("reduceArity");
    }
  });

  test("nesting that shows each level twice takes time in the nodes, not in the paths", () => {
    let query = treeOf(g(a));
    for (let depth = 0; depth < 30; depth++) {
      query = {
        kind: "generate",
        options: { model: "", maxTokens: 1, temperature: 0 },
        input: { kind: "plus", children: [query, treeOf(b)] },
      };
    }
    const nodes = new Set<Query>();
    const visit = (node: Query): void => {
      if (nodes.has(node)) return;
      nodes.add(node);
      for (const [, child] of childrenOf(node)) visit(child);
    };
    visit(rewrite(query).query);
    expect(nodes.size).toBeLessThan(5_000);
  });
});

test("a rewriting that is done in steps ends with the same query, after a step for each pass and check", () => {
  const query = treeOf(g({ seq: [a, { seq: [b, { plus: [g(a), g(c)] }] }] }));
  let passes = 0;
  const afterPass = () => {
    passes += 1;
  };
  const inSteps = rewriteInSteps(query, { afterPass });
  let steps = 0;
  for (let next = inSteps.next(); ; next = inSteps.next(), steps++) {
    if (!next.done) continue;
    expect(printQuery(next.value.query)).toEqual(printQuery(rewrite(query).query));
    break;
  }
  // Each phase has a pass that changes nothing, and a check behind it; one more is before both.
  expect(steps).toBe(passes + 5);
});

test("a wide query is rewritten a few nodes at a time", () => {
  const wide = treeOf(g({ plus: Array.from({ length: 1_000 }, (_, at) => g({ user: `${at}` })) }));
  let passes = 0;
  const afterPass = () => {
    passes += 1;
  };
  const steps = [...rewriteInSteps(wide, { afterPass })].length;
  // A pass visits each generate and its message; the two that change nothing are not told.
  expect(steps).toBeGreaterThan(((passes + 2) * 2_000) / 128);
});
