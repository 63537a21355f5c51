/** Each law refuses what breaks it, by name and path, and takes what comes near it. */
import { describe, expect, test } from "bun:test";
import type { Generate, Query } from "../../gateway/query/ir.ts";
import { checkLegal, IllegalQueryError, type Stage } from "../../gateway/query/legality.ts";
import { parseQuery } from "../../gateway/query/parse.ts";
import { rewrite } from "../support/span-queries.ts";
import { fragment, g, treeOf, user } from "./nodes.ts";

const [a, b] = ["a", "b"].map(user);

function lawBroken(query: Query, stage: Stage): string | undefined {
  try {
    checkLegal(query, stage);
    return undefined;
  } catch (error) {
    if (error instanceof IllegalQueryError) return `${error.law} at ${error.path}`;
    throw error;
  }
}

const withOptions = (more: object): Query => {
  const generate = treeOf(g(a)) as Generate;
  return { kind: "seq", children: [{ ...generate, options: { ...generate.options, ...more } }] };
};
const nested = (depth: number): Query => {
  let query = treeOf(a);
  for (let level = 1; level < depth; level++) query = { kind: "monad", child: query };
  return query;
};

describe("resolved", () => {
  const retrieve = parseQuery({ g: { input: { seq: [a, { retrieve: { vector_store_ids: ["v"], query: "q" } }] } } });
  const retrieved = (inner: Query): Query => ({ kind: "retrieved", fragments: [inner] });
  const cases: readonly (readonly [Query, string | undefined])[] = [
    [retrieve, "retrieval-resolved at $.g.input.seq[1]"],
    [retrieved(treeOf({ seq: [a] })), "retrieved-texts at $"],
    [retrieved(treeOf(fragment("f"))), undefined],
    [withOptions({ temperature: Number.NaN }), "option-ranges at $.seq[0]"],
    [withOptions({ temperature: -1 }), "option-ranges at $.seq[0]"],
    [withOptions({ maxTokens: 0.5 }), "option-ranges at $.seq[0]"],
    [withOptions({ recomputeRatio: 1.1 }), "option-ranges at $.seq[0]"],
    [withOptions({ reduce: { arity: 1 } }), "option-ranges at $.seq[0]"],
    [withOptions({ temperature: 0, recomputeRatio: 1, reduce: { arity: 2 } }), undefined],
    [{ kind: "repeat", n: 0, generate: treeOf(g(a)) as Generate }, "repeat-count at $"],
    [treeOf({ chat: [a, { zip: { first: a, second: b } }] }), undefined],
    [nested(1_024), undefined],
    [nested(1_025), `depth at $${".monad".repeat(1_024)}`],
  ];
  test.each(cases.map(([query, law], index) => [index, query, law] as const))("case %d", (_, query, law) => {
    expect(lawBroken(query, "resolved")).toBe(law);
  });

  test("a node that contains itself", () => {
    const children: Query[] = [treeOf(a)];
    const circle: Query = { kind: "seq", children };
    children.push({ kind: "monad", child: circle });
    expect(lawBroken({ kind: "par", children: [circle] }, "resolved")).toBe("acyclic at $.par[0].seq[1].monad");
    const shared = treeOf(a);
    expect(lawBroken({ kind: "par", children: [shared, shared] }, "resolved")).toBeUndefined();
  });
});

describe("rewritten", () => {
  const map = { map: { metadata: {}, inputs: ["a"] } };
  const cases: readonly (readonly [unknown, string | undefined])[] = [
    [{ seq: [{ chat: [a] }] }, "joins-and-generates-only at $.seq[0]"],
    [{ zip: { first: a, second: b } }, "joins-and-generates-only at $"],
    [g({ retrieved: [] }), "joins-and-generates-only at $.g.input"],
    [{ repeat: { n: 1, ...g(a) } }, "joins-and-generates-only at $"],
    [{ repeat: { n: 2, ...g(a) } }, undefined],
    [g({ plus: [map] }), "map-outside-prompts at $.g.input.plus[0]"],
    [{ seq: [map, a] }, undefined],
    [g({ seq: [a, { cross: [a, b] }] }), "flat-prompts at $.g.input"],
    [{ seq: [a, { cross: [a, b] }] }, undefined],
    [g({ seq: [a, { plus: [] }] }), "no-empty-children at $.g.input"],
    [g({ seq: [] }), undefined],
    [g({ seq: [a, { plus: { preamble: a, children: [] } }] }), undefined],
  ];
  test.each(cases.map(([json, law], index) => [index, json, law] as const))("case %d", (_, json, law) => {
    expect(lawBroken(treeOf(json), "rewritten")).toBe(law);
    if (law !== undefined) expect(lawBroken(treeOf(json), "resolved")).toBeUndefined();
  });

  test("what only expansion removes is refused as soon as that is done", () => {
    expect(lawBroken(treeOf(g({ plus: [map] })), "expanded")).toBe("map-outside-prompts at $.g.input.plus[0]");
    expect(lawBroken(treeOf({ chat: [a] }), "expanded")).toBe("joins-and-generates-only at $");
    expect(lawBroken(treeOf(g({ seq: [a, { cross: [a, b] }] })), "expanded")).toBeUndefined();
  });
});

test("rewriting refuses a query that is not resolved", () => {
  const query = parseQuery({ retrieve: { vector_store_ids: ["v"], query: "q" } });
  expect(() => rewrite(query)).toThrow("retrieval-resolved");
});
