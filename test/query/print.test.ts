import { describe, expect, test } from "bun:test";
import { childrenOf, type Generate, type Query } from "../../gateway/query/ir.ts";
import { queryLimits } from "../../gateway/query/limits.ts";
import { parseQuery, parseQueryText } from "../../gateway/query/parse.ts";
import { canonicalKey, canonicalText, printQuery } from "../../gateway/query/print.ts";
import { fc } from "../support/fast-check.ts";
import { queryArbitrary } from "./arbitrary.ts";

const user = (text: string): Query => ({ kind: "message", role: "user", text });
const g = (input: Query, options: Partial<Generate["options"]> = {}): Generate => ({
  kind: "generate",
  options: { model: "m", maxTokens: 0, temperature: 0.6, ...options },
  input,
});

describe("parse(print(x)) = x", () => {
  test("for random queries, as a value and as text", () => {
    fc.assert(
      fc.property(queryArbitrary, (query) => {
        expect(parseQuery(printQuery(query))).toStrictEqual(query);
        expect(parseQueryText(canonicalText(query), "json")).toStrictEqual(query);
      }),
      { numRuns: 400 },
    );
  });

  test("every kind of node comes up", () => {
    const seen = new Set<string>();
    const visit = (query: Query): void => {
      seen.add(query.kind);
      for (const [, child] of childrenOf(query)) visit(child);
    };
    for (const query of fc.sample(queryArbitrary, { numRuns: 500 })) visit(query);
    expect([...seen].sort()).toEqual([
      ...["augment", "chat", "cross", "fragment", "generate", "map", "message", "monad", "par", "plus", "repeat"],
      ...["retrieve", "seq", "zip"],
    ]);
  });
});

describe("the canonical form", () => {
  test("writes defaults out, options in one order and the input last", () => {
    const query = parseQuery({ g: { input: { user: "hi" }, seed: 1, stop: "x", model: "m", top_p: 0.5, top_k: -1 } });
    expect(canonicalText(query)).toBe(
      '{"g":{"model":"m","max_tokens":0,"temperature":0.6,"top_p":0.5,"top_k":0,"seed":1,"stop":["x"],' +
        '"input":{"user":"hi"}}}',
    );
  });

  test("a plus is a list, with a preamble an object; a repeat has its g beside n", () => {
    const plain = { plus: [{ user: "a" }] };
    const led = { plus: { preamble: { system: "s" }, children: [{ user: "a" }] } };
    expect(printQuery(parseQuery({ plus: { children: [{ user: "a" }] } }))).toEqual(plain);
    expect(printQuery(parseQuery(led))).toEqual(led);
    const inner = { g: { model: "m", max_tokens: 0, temperature: 0.6, input: { user: "a" } } };
    expect(printQuery(parseQuery({ repeat: { n: 2, query: inner } }))).toEqual({ repeat: { n: 2, ...inner } });
  });

  test("what retrieval became prints as retrieved, which parse refuses", () => {
    const printed = printQuery({ kind: "retrieved", fragments: [{ kind: "fragment", id: "f" }] });
    expect(printed).toEqual({ retrieved: [{ fragment: { id: "f" } }] });
    expect(() => parseQuery(printed)).toThrow("$.retrieved: is no kind of node.");
  });
});

describe("canonicalKey", () => {
  test("is equal exactly where the text is", () => {
    const pair = fc.tuple(queryArbitrary, queryArbitrary);
    fc.assert(
      fc.property(pair, ([left, right]) => {
        expect(canonicalKey(left)).toBe(canonicalKey(structuredClone(left)));
        expect(canonicalKey(left) === canonicalKey(right)).toBe(canonicalText(left) === canonicalText(right));
      }),
      { numRuns: 200 },
    );
  });

  test("tells apart what differs in one field", () => {
    const seq = (...children: Query[]): Query => ({ kind: "seq", children });
    const plus = (children: Query[], preamble?: Query): Query => ({
      kind: "plus",
      children,
      ...(preamble === undefined ? {} : { preamble }),
    });
    const different: Query[] = [
      user("a"),
      user("b"),
      { kind: "message", role: "system", text: "a" },
      seq(user("a")),
      seq(user("a"), user("b")),
      seq(user("b"), user("a")),
      ...(["cross", "par"] as const).map((kind): Query => ({ kind, children: [user("a")] })),
      { kind: "chat", children: [user("a")] },
      { kind: "monad", child: user("a") },
      { kind: "retrieved", fragments: [user("a")] },
      { kind: "zip", first: user("a"), second: user("b") },
      plus([user("a"), user("b")]),
      plus([user("b")], user("a")),
      g(user("a")),
      g(user("a"), { temperature: 0 }),
      g(user("a"), { stop: ["x"] }),
      { kind: "repeat", n: 1, generate: g(user("a")) },
      { kind: "repeat", n: 2, generate: g(user("a")) },
      { kind: "fragment", id: "a" },
      { kind: "fragment", text: "a" },
      { kind: "fragment", text: "a", title: "t" },
      { kind: "retrieve", vectorStoreIds: ["v"], query: "a", maxResults: 1 },
      { kind: "retrieve", vectorStoreIds: ["v"], query: user("a"), maxResults: 1 },
      { kind: "retrieve", vectorStoreIds: ["v"], query: "a", maxResults: 1, filters: { type: "eq" } },
      { kind: "augment", embeddingModel: "", body: user("a"), doc: { name: "n", text: "t" } },
      { kind: "augment", embeddingModel: "", body: user("a"), doc: { name: "n", text: "u" } },
      { kind: "map", options: { model: "m", maxTokens: 0, temperature: 0 }, inputs: ["a", "b"] },
      { kind: "map", options: { model: "m", maxTokens: 0, temperature: 0 }, inputs: ["ab"] },
    ];
    expect(new Set(different.map((query) => canonicalKey(query))).size).toBe(different.length);
  });
});

describe("a graph whose tree is exponentially larger", () => {
  const twice = (query: Query, levels: number): Query =>
    levels === 0 ? query : twice({ kind: "seq", children: [query, query] }, levels - 1);

  test("prints in full while it is small", () => {
    const a = { seq: [{ user: "a" }, { user: "a" }] };
    expect(printQuery(twice(user("a"), 2))).toEqual({ seq: [a, a] });
  });

  test("prints later places of a shared node as its first path, and has a key", () => {
    const query = twice(user("a"), 60);
    const text = canonicalText(query);
    expect(text.length).toBeLessThan(queryLimits.printedNodes * 40);
    expect(text).toContain('{"shared":"$.seq[0]');
    expect(canonicalKey(query)).not.toBe(canonicalKey(twice(user("b"), 60)));
  });
});
