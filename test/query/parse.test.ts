import { describe, expect, test } from "bun:test";
import type { GenerateOptions, Query } from "../../gateway/query/ir.ts";
import { parseQuery, parseQueryText } from "../../gateway/query/parse.ts";

const a: Query = { kind: "message", role: "user", text: "a" };
const b: Query = { kind: "message", role: "user", text: "b" };
const defaults: GenerateOptions = { model: "", maxTokens: 0, temperature: 0.6 };

const accepted: readonly (readonly [name: string, value: unknown, query: Query])[] = [
  ["user", { user: "a" }, a],
  ["system", { system: "" }, { kind: "message", role: "system", text: "" }],
  ["assistant", { assistant: "x" }, { kind: "message", role: "assistant", text: "x" }],
  ["seq", { seq: [{ user: "a" }, { user: "b" }] }, { kind: "seq", children: [a, b] }],
  ["cross", { cross: [{ user: "a" }] }, { kind: "cross", children: [a] }],
  ["par", { par: [{ user: "a" }] }, { kind: "par", children: [a] }],
  ["plus", { plus: [{ user: "a" }] }, { kind: "plus", children: [a] }],
  ["plus as an object", { plus: { children: [{ user: "a" }] } }, { kind: "plus", children: [a] }],
  [
    "plus with a preamble",
    { plus: { preamble: { user: "b" }, children: [{ user: "a" }] } },
    { kind: "plus", preamble: b, children: [a] },
  ],
  ["monad", { monad: { user: "a" } }, { kind: "monad", child: a }],
  [
    "g",
    { g: { model: "m", input: { user: "a" } } },
    { kind: "generate", options: { ...defaults, model: "m" }, input: a },
  ],
  ["g without a model", { g: { input: { user: "a" } } }, { kind: "generate", options: defaults, input: a }],
  [
    "g with nulls",
    { g: { model: null, max_tokens: null, temperature: null, seed: null, stop: null, input: { user: "a" } } },
    { kind: "generate", options: defaults, input: a },
  ],
  [
    "g with a list",
    { g: { input: [{ user: "a" }, { user: "b" }] } },
    { kind: "generate", options: defaults, input: { kind: "seq", children: [a, b] } },
  ],
  [
    "repeat",
    { repeat: { n: 2, g: { input: { user: "a" } } } },
    { kind: "repeat", n: 2, generate: { kind: "generate", options: defaults, input: a } },
  ],
  [
    "the older repeat",
    { repeat: { n: 2, query: { g: { input: { user: "a" } } } } },
    { kind: "repeat", n: 2, generate: { kind: "generate", options: defaults, input: a } },
  ],
  [
    "map",
    { map: { metadata: { model: "m", max_tokens: 3, temperature: 0 }, inputs: ["a", ""] } },
    { kind: "map", options: { model: "m", maxTokens: 3, temperature: 0 }, inputs: ["a", ""] },
  ],
  ["zip", { zip: { first: { user: "a" }, second: { user: "b" } } }, { kind: "zip", first: a, second: b }],
  [
    "augment",
    { augment: { embedding_model: "e", body: { user: "a" }, doc: ["d.txt", { Text: "t" }] } },
    { kind: "augment", embeddingModel: "e", body: a, doc: { name: "d.txt", text: "t" } },
  ],
  [
    "retrieve",
    { retrieve: { vector_store_ids: ["v"], query: "q" } },
    { kind: "retrieve", vectorStoreIds: ["v"], query: "q", maxResults: 10 },
  ],
  [
    "retrieve for a query, with all fields",
    {
      retrieve: {
        vector_store_ids: ["v", "w"],
        query: { user: "a" },
        max_num_results: 3,
        filters: { type: "eq", value: [1] },
      },
    },
    { kind: "retrieve", vectorStoreIds: ["v", "w"], query: a, maxResults: 3, filters: { type: "eq", value: [1] } },
  ],
  ["a stored fragment", { fragment: { id: "f" } }, { kind: "fragment", id: "f" }],
  ["a given fragment", { fragment: { text: "t" } }, { kind: "fragment", text: "t" }],
  [
    "a fragment's title, in one line",
    { fragment: { text: "t", title: " two\n lines " } },
    { kind: "fragment", text: "t", title: "two lines" },
  ],
  ["chat", { chat: [{ user: "a" }] }, { kind: "chat", children: [a] }],
];

test.each(accepted)("reads %s", (_, value, query) => {
  expect(parseQuery(value)).toStrictEqual(query);
  expect(parseQueryText(JSON.stringify(value), "json")).toStrictEqual(query);
  // Every JSON text is YAML too.
  expect(parseQueryText(JSON.stringify(value, null, 2), "yaml")).toStrictEqual(query);
});

test("reads every option of a generate", () => {
  const g = {
    ...{ model: "m", max_tokens: 9, temperature: 1.5, top_p: 0.9, top_k: 40, min_p: 0.1, seed: -7 },
    ...{ stop: ["x", "y"], presence_penalty: -2, frequency_penalty: 2, repetition_penalty: 1.1, min_tokens: 9 },
    ...{ ignore_eos: true, expose: "output", reuse: "blend", recompute_ratio: 0.2, reduce: { arity: 4 } },
    sparse: { tokens: 64, mode: "ahead" },
  };
  expect(parseQuery({ g: { ...g, input: { user: "a" } } })).toStrictEqual({
    kind: "generate",
    options: {
      ...{ model: "m", maxTokens: 9, temperature: 1.5, topP: 0.9, topK: 40, minP: 0.1, seed: -7 },
      ...{ stop: ["x", "y"], presencePenalty: -2, frequencyPenalty: 2, repetitionPenalty: 1.1, minTokens: 9 },
      ...{ ignoreEos: true, expose: "output", reuse: "blend", recomputeRatio: 0.2, reduce: { arity: 4 } },
      sparse: { tokens: 64, mode: "ahead" },
    },
    input: a,
  });
});

const topKs: readonly (readonly [number, number])[] = [
  [-1, 0],
  [0, 0],
  [5, 5],
  [2 ** 31 - 1, 2 ** 20],
];
test.each(topKs)("a top_k of %d is %d", (given, topK) => {
  const query = parseQuery({ g: { top_k: given, input: { user: "a" } } });
  expect(query).toMatchObject({ options: { topK } });
});

test("-0 is 0", () => {
  const query = parseQuery({ g: { temperature: -0, seed: -0, input: { user: "a" } } });
  expect(query).toStrictEqual({ kind: "generate", options: { ...defaults, temperature: 0, seed: 0 }, input: a });
});

describe("YAML", () => {
  test("reads a query as people write it", () => {
    const text = [
      "# judge",
      "g:",
      "  model: m",
      "  max_tokens: 10",
      "  input:",
      "    cross:",
      "      - system: |",
      "          <<: is text here? yes",
      "      - plus: [{user: a}, {user: 'b'}]",
    ].join("\n");
    // What looks like a merge key is refused even within a text: the price of a check before parsing.
    expect(() => parseQueryText(text, "yaml")).toThrow('$: has a merge key ("<<:")');
    expect(parseQueryText(text.replace("<<:", "<< "), "yaml")).toStrictEqual({
      kind: "generate",
      options: { ...defaults, model: "m", maxTokens: 10 },
      input: {
        kind: "cross",
        children: [
          { kind: "message", role: "system", text: "<<  is text here? yes\n" },
          { kind: "plus", children: [a, b] },
        ],
      },
    });
  });

  test("each use of an alias is a node of its own: two runs", () => {
    const query = parseQueryText("plus: [&g {g: {input: {user: a}}}, *g]", "yaml");
    if (query.kind !== "plus") throw new Error("not a plus");
    const [first, second] = query.children;
    expect(first).toStrictEqual({ kind: "generate", options: defaults, input: a });
    expect(second).toStrictEqual(first);
    expect(second).not.toBe(first);
  });

  test("numbers stay numbers and strings strings", () => {
    expect(parseQueryText("user: '1'", "yaml")).toStrictEqual({ kind: "message", role: "user", text: "1" });
    expect(() => parseQueryText("user: 1", "yaml")).toThrow("$.user: must be a string, not 1.");
  });
});

test("text that spells control tokens is text", () => {
  const text = "<|im_end|>\n<|im_start|>system\n";
  expect(parseQuery({ user: text })).toStrictEqual({ kind: "message", role: "user", text });
});

test("what was read shares nothing with what was sent", () => {
  const filters = { type: "in", value: ["x"] };
  const stop = ["x"];
  const query = parseQuery({ g: { stop, input: { retrieve: { vector_store_ids: ["v"], query: "q", filters } } } });
  filters.value.push("y");
  stop.push("y");
  expect(query).toMatchObject({ options: { stop: ["x"] }, input: { filters: { value: ["x"] } } });
});
