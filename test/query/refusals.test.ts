/** Bad input: every refusal has a code and the path of what is wrong. */
import { describe, expect, test } from "bun:test";
import { QueryError } from "../../gateway/query/errors.ts";
import { parseQuery, parseQueryText } from "../../gateway/query/parse.ts";
import { fc } from "../support/fast-check.ts";

type Read = () => unknown;

/** "code path" of what is thrown. */
function refusalOf(read: Read): string {
  try {
    read();
  } catch (error) {
    if (error instanceof QueryError) return `${error.code} ${error.path}`;
    throw error;
  }
  return "accepted";
}

const refusal = (value: unknown): string => refusalOf(() => parseQuery(value));
const textRefusal = (text: string, format: "json" | "yaml" = "json"): string =>
  refusalOf(() => parseQueryText(text, format));
const g = (options: object): object => ({ g: { ...options, input: { user: "a" } } });

const nodeRefusals: readonly (readonly [value: unknown, refusal: string])[] = [
  [null, "invalid_value $"],
  ["hello", "invalid_value $"],
  [[{ user: "a" }], "invalid_value $"],
  [{}, "invalid_value $"],
  [{ user: "a", system: "b" }, "invalid_value $"],
  [{ User: "a" }, "unknown_field $.User"],
  [{ "a b": "a" }, 'unknown_field $["a b"]'],
  [JSON.parse('{"__proto__": {"user": "a"}}'), "unknown_field $.__proto__"],
  [JSON.parse('{"constructor": []}'), "unknown_field $.constructor"],
  [{ retrieved: [{ user: "a" }] }, "unknown_field $.retrieved"],
  [{ shared: "$" }, "unknown_field $.shared"],
  [{ seq: [{ user: "a" }, { print: "x" }] }, "unsupported_field $.seq[1].print"],
  [{ cross: [{ ask: "x" }] }, "unsupported_field $.cross[0].ask"],
  [{ monad: { file: "./x" } }, "unsupported_field $.monad.file"],
  [{ user: 1 }, "invalid_value $.user"],
  [{ user: "a\ud800" }, "invalid_value $.user"],
  [{ seq: [] }, "invalid_value $.seq"],
  [{ cross: [] }, "invalid_value $.cross"],
  [{ par: {} }, "invalid_value $.par"],
  [{ chat: [] }, "invalid_value $.chat"],
  [{ plus: [] }, "invalid_value $.plus"],
  [{ plus: {} }, "missing_field $.plus.children"],
  [{ plus: { children: [] } }, "invalid_value $.plus.children"],
  [{ plus: { children: [{ user: 1 }] } }, "invalid_value $.plus.children[0].user"],
  [{ plus: { preamble: "p", children: [{ user: "a" }] } }, "invalid_value $.plus.preamble"],
  [{ plus: { children: [{ user: "a" }], order: 1 } }, "unknown_field $.plus.order"],
  [{ seq: [{ seq: [{ user: "a" }] }, [{ user: "a" }]] }, "invalid_value $.seq[1]"],
  // biome-ignore lint/suspicious/noSparseArray: a hole is what is tested
  [{ seq: [, { user: "a" }] }, "invalid_value $.seq[0]"],
  [{ repeat: { g: { input: { user: "a" } } } }, "missing_field $.repeat.n"],
  [{ repeat: { n: 2 } }, "missing_field $.repeat.g"],
  [{ repeat: { n: 0, g: { input: { user: "a" } } } }, "invalid_value $.repeat.n"],
  [{ repeat: { n: -1, g: { input: { user: "a" } } } }, "invalid_value $.repeat.n"],
  [{ repeat: { n: 10_000, g: { input: { user: "a" } } } }, "invalid_value $.repeat.n"],
  [{ repeat: { n: 1.5, g: { input: { user: "a" } } } }, "invalid_value $.repeat.n"],
  [{ repeat: { n: "{n}", g: { input: { user: "a" } } } }, "invalid_value $.repeat.n"],
  [{ repeat: { n: 2, query: { user: "a" } } }, "unknown_field $.repeat.query.user"],
  [{ repeat: { n: 2, query: {} } }, "missing_field $.repeat.query.g"],
  [{ repeat: { n: 2, query: { g: { input: { user: 1 } } } } }, "invalid_value $.repeat.query.g.input.user"],
  [{ repeat: { n: 2, g: { input: { user: "a" } }, query: {} } }, "invalid_value $.repeat.query"],
  [{ map: { metadata: { model: "m" } } }, "missing_field $.map.inputs"],
  [{ map: { inputs: ["a"] } }, "missing_field $.map.metadata"],
  [{ map: { metadata: {}, inputs: [] } }, "invalid_value $.map.inputs"],
  [{ map: { metadata: {}, inputs: ["a", 1] } }, "invalid_value $.map.inputs[1]"],
  [{ map: { metadata: { input: { user: "a" } }, inputs: ["a"] } }, "unknown_field $.map.metadata.input"],
  [{ map: { metadata: { temperature: 3 }, inputs: ["a"] } }, "invalid_value $.map.metadata.temperature"],
  [{ zip: { first: { user: "a" } } }, "missing_field $.zip.second"],
  [{ zip: [{ user: "a" }, { user: "b" }] }, "invalid_value $.zip"],
];
test.each(nodeRefusals)("node %j: %s", (value, expected) => expect(refusal(value)).toBe(expected));

const sourceRefusals: readonly (readonly [value: object, refusal: string])[] = [
  [{ augment: { body: { user: "a" } } }, "missing_field $.augment.doc"],
  [{ augment: { body: { user: "a" }, doc: ["n"] } }, "invalid_value $.augment.doc"],
  [{ augment: { body: { user: "a" }, doc: ["n", "text"] } }, "invalid_value $.augment.doc[1]"],
  [{ augment: { body: { user: "a" }, doc: ["n", {}] } }, "missing_field $.augment.doc[1].Text"],
  [{ augment: { body: { user: "a" }, doc: ["n", { Binary: [1] }] } }, "unsupported_field $.augment.doc[1].Binary"],
  [{ augment: { body: { user: "a" }, doc: [1, { Text: "t" }] } }, "invalid_value $.augment.doc[0]"],
  [{ augment: { doc: ["n", { Text: "t" }] } }, "missing_field $.augment.body"],
  [{ retrieve: { query: "q" } }, "missing_field $.retrieve.vector_store_ids"],
  [{ retrieve: { vector_store_ids: [], query: "q" } }, "invalid_value $.retrieve.vector_store_ids"],
  [{ retrieve: { vector_store_ids: ["v", 2], query: "q" } }, "invalid_value $.retrieve.vector_store_ids[1]"],
  [{ retrieve: { vector_store_ids: ["v"] } }, "missing_field $.retrieve.query"],
  [{ retrieve: { vector_store_ids: ["v"], query: "" } }, "invalid_value $.retrieve.query"],
  [{ retrieve: { vector_store_ids: ["v"], query: { usr: "a" } } }, "unknown_field $.retrieve.query.usr"],
  [
    { retrieve: { vector_store_ids: ["v"], query: "q", max_num_results: 51 } },
    "invalid_value $.retrieve.max_num_results",
  ],
  [
    { retrieve: { vector_store_ids: ["v"], query: "q", ranking_options: {} } },
    "unsupported_field $.retrieve.ranking_options",
  ],
  [{ retrieve: { vector_store_ids: ["v"], query: "q", filters: [] } }, "invalid_value $.retrieve.filters"],
  [
    { retrieve: { vector_store_ids: ["v"], query: "q", filters: { a: [1, Number.NaN] } } },
    "invalid_value $.retrieve.filters.a[1]",
  ],
  [
    { retrieve: { vector_store_ids: ["v"], query: "q", filters: JSON.parse('{"__proto__": 1}') } },
    "unknown_field $.retrieve.filters.__proto__",
  ],
  [{ fragment: {} }, "missing_field $.fragment"],
  [{ fragment: { id: "f", text: "t" } }, "invalid_value $.fragment.text"],
  [{ fragment: { id: "f", title: "t" } }, "invalid_value $.fragment.title"],
  [{ fragment: { text: "" } }, "invalid_value $.fragment.text"],
  [{ fragment: "f" }, "invalid_value $.fragment"],
];
test.each(sourceRefusals)("source %j: %s", (value, expected) => expect(refusal(value)).toBe(expected));

const optionRefusals: readonly (readonly [options: object, refusal: string])[] = [
  [{ max_tokens: -1 }, "invalid_value $.g.max_tokens"],
  [{ max_tokens: 1.5 }, "invalid_value $.g.max_tokens"],
  [{ max_tokens: 131_073 }, "invalid_value $.g.max_tokens"],
  [{ max_tokens: "{max_tokens}" }, "invalid_value $.g.max_tokens"],
  [{ temperature: Number.NaN }, "invalid_value $.g.temperature"],
  [{ temperature: Number.POSITIVE_INFINITY }, "invalid_value $.g.temperature"],
  [{ temperature: 2.01 }, "invalid_value $.g.temperature"],
  [{ temperature: "0.5" }, "invalid_value $.g.temperature"],
  [{ top_p: 0 }, "invalid_value $.g.top_p"],
  [{ top_p: Number.NaN }, "invalid_value $.g.top_p"],
  [{ top_k: -2 }, "invalid_value $.g.top_k"],
  [{ min_p: 1.1 }, "invalid_value $.g.min_p"],
  [{ seed: 2 ** 53 }, "invalid_value $.g.seed"],
  [{ seed: Number.MAX_SAFE_INTEGER }, "invalid_value $.g.seed"],
  [{ stop: "" }, "invalid_value $.g.stop"],
  [{ stop: ["a", ""] }, "invalid_value $.g.stop[1]"],
  [{ stop: Array.from({ length: 17 }, String) }, "invalid_value $.g.stop"],
  [{ stop: "x".repeat(257) }, "invalid_value $.g.stop"],
  [{ presence_penalty: 2.1 }, "invalid_value $.g.presence_penalty"],
  [{ frequency_penalty: -2.1 }, "invalid_value $.g.frequency_penalty"],
  [{ repetition_penalty: 0 }, "invalid_value $.g.repetition_penalty"],
  [{ min_tokens: 5, max_tokens: 4 }, "invalid_value $.g.min_tokens"],
  [{ ignore_eos: 1 }, "invalid_value $.g.ignore_eos"],
  [{ expose: "all" }, "invalid_value $.g.expose"],
  [{ reuse: "" }, "invalid_value $.g.reuse"],
  [{ recompute_ratio: 1.5 }, "invalid_value $.g.recompute_ratio"],
  [{ reduce: {} }, "missing_field $.g.reduce.arity"],
  [{ reduce: { arity: 1 } }, "invalid_value $.g.reduce.arity"],
  [{ reduce: { arity: 2, depth: 1 } }, "unknown_field $.g.reduce.depth"],
  [{ reduce: 2 }, "invalid_value $.g.reduce"],
  [{ model: 1 }, "invalid_value $.g.model"],
  [{ model: "x".repeat(513) }, "invalid_value $.g.model"],
  [{ sparse: 1 }, "invalid_value $.g.sparse"],
  [{ sparse: "now" }, "invalid_value $.g.sparse"],
  [{ sparse: { tokens: 0 } }, "invalid_value $.g.sparse.tokens"],
  [{ sparse: { tokens: -1 } }, "invalid_value $.g.sparse.tokens"],
  [{ sparse: { tokens: 20.5 } }, "invalid_value $.g.sparse.tokens"],
  [{ sparse: { mode: "paper" } }, "invalid_value $.g.sparse.mode"],
  [{ sparse: { tokens: 64, rate: 4 } }, "unknown_field $.g.sparse.rate"],
  [{ logprobs: true }, "unsupported_field $.g.logprobs"],
  [{ tools: [] }, "unsupported_field $.g.tools"],
  [{ response_format: { type: "json_object" } }, "unsupported_field $.g.response_format"],
  [{ n: 2 }, "unsupported_field $.g.n"],
  [{ Temperature: 1 }, "unknown_field $.g.Temperature"],
  [JSON.parse('{"__proto__": {"max_tokens": 5}}'), "unknown_field $.g.__proto__"],
];
test.each(optionRefusals)("options %j: %s", (options, expected) => expect(refusal(g(options))).toBe(expected));

test("a generate needs its input", () => {
  expect(refusal({ g: { model: "m" } })).toBe("missing_field $.g.input");
  expect(refusal({ g: { input: null } })).toBe("invalid_value $.g.input");
  expect(refusal({ g: { input: [] } })).toBe("invalid_value $.g.input");
  expect(refusal({ g: { input: [{ user: "a" }, { user: 1 }] } })).toBe("invalid_value $.g.input[1].user");
});

test("the path leads through everything that lies above", () => {
  const inner = { g: { max_tokens: -5, input: { user: "a" } } };
  const query = {
    g: { input: { plus: [{ user: "a" }, { par: [{ monad: { zip: { first: inner, second: inner } } }] }] } },
  };
  expect(refusal(query)).toBe("invalid_value $.g.input.plus[1].par[0].monad.zip.first.g.max_tokens");
  expect(() => parseQuery(query)).toThrow(
    /^\$\.g\.input.*max_tokens: must be a whole number from 0 to 131072, not -5\.$/,
  );
});

describe("texts that are no query", () => {
  test.each(["", "{", '{"user": "a"} x', '{"user": "a}', "{\"user\": 'a'}", "NaN"])("JSON %j", (text) => {
    expect(textRefusal(text)).toBe("invalid_json $");
  });

  test.each(["{a", "user: *nowhere", "- - - :\n\t- x: ]"])("YAML %j", (text) => {
    expect(textRefusal(text, "yaml")).toBe("invalid_json $");
  });

  test.each(["", "hello", "user: a\n---\nuser: b\n", "- user: a"])("YAML of another shape %j", (text) => {
    expect(textRefusal(text, "yaml")).toBe("invalid_value $");
  });

  test("a list in YAML may be several documents, and is told so", () => {
    for (const text of ["- user: a", "user: a\n---\nuser: b"]) {
      expect(() => parseQueryText(text, "yaml")).toThrow("$: must be one YAML document that is a mapping.");
    }
  });

  test.each([
    "<<: *x",
    '"<<": *x',
    "'<<' : *x",
    '"\\x3c<": *x',
    '"\\u003C\\u003c": *x',
    "? <<\n: *x",
    "? &m '<<'\n: *x",
  ])("YAML with a merge key %j", (line) =>
    expect(() => parseQueryText(`base: &x {a: 1}\n${line}`, "yaml")).toThrow("has a merge key"),
  );
});

test("any JSON is read or refused, and nothing else is ever thrown", () => {
  const keys = fc.constantFrom(
    ...[
      "user",
      "seq",
      "plus",
      "g",
      "input",
      "repeat",
      "n",
      "query",
      "map",
      "metadata",
      "inputs",
      "zip",
      "first",
      "second",
    ],
    ...[
      "augment",
      "doc",
      "body",
      "retrieve",
      "fragment",
      "text",
      "chat",
      "monad",
      "max_tokens",
      "stop",
      "__proto__",
      "x",
    ],
  );
  const { value } = fc.letrec((tie) => ({
    value: fc.oneof(
      { depthSize: "medium" },
      fc.constantFrom<unknown>("a", "", 0, -1, 2, 0.5, 1e300, true, null, Number.NaN, undefined),
      fc.array(tie("value"), { maxLength: 3 }),
      fc.uniqueArray(fc.tuple(keys, tie("value")), { maxLength: 2, selector: ([key]) => key }).map(Object.fromEntries),
    ),
  }));
  fc.assert(
    fc.property(value, (random) => void refusal(random)),
    { numRuns: 2_000 },
  );
});
