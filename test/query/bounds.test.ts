/** Queries that are too large in one way each: refused with a path, and just below it read. */
import { describe, expect, test } from "bun:test";
import { limits as chatLimits } from "../../gateway/config.ts";
import { corpusLimits } from "../../gateway/corpus/base/limits.ts";
import { QueryError } from "../../gateway/query/errors.ts";
import { queryLimits } from "../../gateway/query/limits.ts";
import { parseQuery, parseQueryText } from "../../gateway/query/parse.ts";
import { limits as contractLimits } from "../../worker/contract/limits.ts";

function refusalOf(read: () => unknown): { code: string; path: string } | undefined {
  try {
    read();
  } catch (error) {
    if (error instanceof QueryError) return { code: error.code, path: error.path };
    throw error;
  }
  return undefined;
}

const refusal = (value: unknown) => refusalOf(() => parseQuery(value));
const user = { user: "a" };
const nested = (levels: number, wrap: (inner: object) => object): object => {
  let value: object = user;
  for (let level = 0; level < levels; level++) value = wrap(value);
  return value;
};
const seqOf = (count: number, child: object): { seq: object[] } => ({
  seq: Array.from({ length: count }, () => child),
});

test("the bounds agree with those of chat requests, of retrieval and of the worker", () => {
  expect(queryLimits.textChars).toBe(chatLimits.bodyBytes);
  expect(queryLimits.stopStrings).toBe(chatLimits.stopStrings);
  expect(queryLimits.stopChars).toBe(chatLimits.stopChars);
  expect(queryLimits.modelChars).toBe(chatLimits.shortStringChars);
  expect(queryLimits.titleChars).toBe(chatLimits.titleChars);
  expect(queryLimits.topK).toBe(chatLimits.topK);
  expect(queryLimits.retrievedFragments).toBe(chatLimits.retrievedFragments);
  expect(queryLimits.vectorStoresPerRetrieve).toBe(chatLimits.vectorStoresPerSearch);
  expect(queryLimits.searchChars).toBe(corpusLimits.maxQueryChars);
  expect(queryLimits.maxTokens).toBe(contractLimits.maxRequestTokens);
  expect(queryLimits.childrenPerJoin).toBe(contractLimits.maxSegmentsPerRun);
  expect(queryLimits.maxSeed + queryLimits.repeats).toBe(Number.MAX_SAFE_INTEGER);
});

describe("depth", () => {
  test("of nodes, whatever they are", () => {
    const wraps: readonly ((inner: object) => object)[] = [
      (inner) => ({ seq: [inner] }),
      (inner) => ({ plus: { children: [inner] } }),
      (inner) => ({ g: { input: inner } }),
      (inner) => ({ monad: inner }),
      (inner) => ({ zip: { first: inner, second: user } }),
      (inner) => ({ retrieve: { vector_store_ids: ["v"], query: inner } }),
      (inner) => ({ augment: { body: inner, doc: ["n", { Text: "t" }] } }),
    ];
    for (const wrap of wraps) {
      expect(refusal(nested(queryLimits.treeDepth - 1, wrap))).toBeUndefined();
      expect(refusal(nested(queryLimits.treeDepth, wrap))?.code).toBe("nesting_too_deep");
    }
  });

  test("the seq that a list stands for, and the g of a repeat, are nodes", () => {
    expect(refusal(nested(32, (inner) => ({ g: { input: [inner] } })))?.code).toBe("nesting_too_deep");
    expect(refusal(nested(32, (inner) => ({ repeat: { n: 1, g: { input: inner } } })))?.code).toBe("nesting_too_deep");
    expect(refusal(nested(31, (inner) => ({ repeat: { n: 1, query: { g: { input: inner } } } })))).toBeUndefined();
  });

  test("of a text of 100,000 levels, before it is parsed", () => {
    for (const text of ['{"seq":['.repeat(100_000), "[".repeat(100_000), '{"a":'.repeat(100_000)]) {
      expect(refusalOf(() => parseQueryText(text, "json"))).toEqual({ code: "nesting_too_deep", path: "$" });
    }
    expect(refusalOf(() => parseQueryText("[".repeat(100_000), "yaml"))?.code).toBe("nesting_too_deep");
    const block = Array.from({ length: 500 }, (_, level) => `${" ".repeat(level)}monad:\n`).join("");
    expect(refusalOf(() => parseQueryText(block, "yaml"))?.code).toBe("nesting_too_deep");
  });

  test("brackets within strings do not count", () => {
    const text = `\\"${"[{".repeat(1_000)}\\\\`;
    expect(parseQueryText(`{"user":"${text}"}`, "json")).toMatchObject({ text: JSON.parse(`"${text}"`) });
  });

  test("of a value that holds itself", () => {
    const cyclic: { seq: unknown[] } = { seq: [] };
    cyclic.seq.push(cyclic, cyclic);
    expect(refusal(cyclic)?.code).toBe("nesting_too_deep");
    expect(refusalOf(() => parseQueryText("&a {seq: [*a, *a]}", "yaml"))?.code).toBe("nesting_too_deep");
    const filters = "retrieve: {vector_store_ids: [v], query: q, filters: &a {x: *a}}";
    expect(refusalOf(() => parseQueryText(filters, "yaml"))?.code).toBe("nesting_too_deep");
  });
});

describe("size", () => {
  test("of a join", () => {
    expect(refusal(seqOf(queryLimits.childrenPerJoin, user))).toBeUndefined();
    expect(refusal(seqOf(queryLimits.childrenPerJoin + 1, user))).toEqual({ code: "invalid_value", path: "$.seq" });
  });

  test("of all nodes together", () => {
    const ninth = seqOf(1_110, user);
    expect(refusal(seqOf(9, ninth))).toBeUndefined();
    expect(refusal(seqOf(10, ninth))).toEqual({ code: "invalid_value", path: "$.seq[9]" });
  });

  test("of what stands for a node without being written as one", () => {
    const all = seqOf(9, seqOf(1_110, user));
    const most = { seq: [...Array.from({ length: 8 }, () => seqOf(1_110, user)), seqOf(1_109, user)] };
    expect(refusal(all)).toBeUndefined();
    expect(refusal({ g: { input: most } })).toBeUndefined();
    expect(refusal({ g: { input: all.seq } })?.code).toBe("invalid_value");
    expect(refusal({ repeat: { n: 1, g: { input: most } } })?.code).toBe("invalid_value");
  });

  test("of shared objects, each place counted: a billion laughs", () => {
    const lines = ["seq:", "- &l0 {seq: [{user: ha}, {user: ha}, {user: ha}]}"];
    for (let level = 1; level < 9; level++) {
      lines.push(`- &l${level} {seq: [${Array.from({ length: 3 }, () => `*l${level - 1}`).join(", ")}]}`);
    }
    expect(refusalOf(() => parseQueryText(lines.join("\n"), "yaml"))?.code).toBe("invalid_value");
    const laugh = nested(13, (inner) => ({ plus: [inner, inner] }));
    expect(refusal(laugh)?.code).toBe("invalid_value");
  });

  test("of all texts together, a repeated one each time", () => {
    const quarter = { user: "x".repeat(queryLimits.textChars / 4) };
    expect(refusal(seqOf(4, quarter))).toBeUndefined();
    expect(refusal(seqOf(5, quarter))).toEqual({ code: "invalid_value", path: "$.seq[4].user" });
    const inputs = Array.from({ length: 5 }, () => quarter.user);
    expect(refusal({ map: { metadata: {}, inputs } })).toEqual({ code: "invalid_value", path: "$.map.inputs[4]" });
  });

  test("of the text itself, in characters and in small values", () => {
    const json = `{"user":"${" ".repeat(queryLimits.textChars)}"}`;
    expect(refusalOf(() => parseQueryText(json, "json"))).toEqual({ code: "invalid_value", path: "$" });
    const yaml = `user: "${" ".repeat(queryLimits.yamlChars)}"`;
    expect(refusalOf(() => parseQueryText(yaml, "yaml"))).toEqual({ code: "invalid_value", path: "$" });
    expect(() => parseQueryText(`[${'"",'.repeat(200_000)}`, "json")).toThrow("$: has too many small values.");
  });

  test("of filters", () => {
    const retrieve = (filters: object) => ({ retrieve: { vector_store_ids: ["v"], query: "q", filters } });
    const path = "$.retrieve.filters";
    const many = { in: Array.from({ length: 1_000 }, () => 1) };
    expect(refusal(retrieve(many))).toBeUndefined();
    expect(refusal(retrieve({ and: [many, many] }))).toEqual({ code: "invalid_value", path });
    expect(refusal(retrieve({ key: "x".repeat(5_000) }))).toEqual({ code: "invalid_value", path: `${path}.key` });
  });
});

describe("work", () => {
  const repeat = (n: number, maxTokens = 0) => ({ repeat: { n, g: { max_tokens: maxTokens, input: user } } });

  test("of generations, each sample counted", () => {
    expect(refusal({ plus: [repeat(256), repeat(256), repeat(256), repeat(256)] })).toBeUndefined();
    const over = { plus: [repeat(256), repeat(256), repeat(256), repeat(256), { chat: [user] }] };
    expect(refusal(over)).toEqual({ code: "invalid_value", path: "$.plus[4].chat" });
    const inputs = Array.from({ length: 1_024 }, () => "a");
    expect(refusal({ map: { metadata: {}, inputs } })).toBeUndefined();
    expect(refusal({ g: { input: { map: { metadata: {}, inputs } } } })?.path).toBe("$.g.input.map");
  });

  test("of asked tokens, each sample counted", () => {
    expect(refusal({ plus: [repeat(256, 2_048), repeat(256, 2_048)] })).toBeUndefined();
    expect(refusal({ plus: [repeat(256, 2_048), repeat(256, 2_049)] })?.path).toBe("$.plus[1].repeat.g");
    const inputs = Array.from({ length: 1_024 }, () => "a");
    expect(refusal({ map: { metadata: { max_tokens: 1_025 }, inputs } })?.path).toBe("$.map");
  });

  test("of judges that a reduced one becomes", () => {
    const judge = (count: number, more: object = {}) => ({
      g: { reduce: { arity: 2 }, ...more, input: { seq: [user, { plus: seqOf(count, user).seq }] } },
    });
    expect(refusal(judge(1_000))).toBeUndefined();
    expect(refusal(judge(1_100))).toEqual({ code: "invalid_value", path: "$.g.reduce" });
    expect(refusal(judge(1_100, { reduce: { arity: 3 } }))).toBeUndefined();
    expect(refusal(judge(17, { max_tokens: 60_000 }))?.path).toBe("$.g.reduce");
    expect(refusal(judge(2, { max_tokens: 131_072 }))).toBeUndefined();
    const nested = { plus: [{ plus: seqOf(600, user).seq }, { seq: [{ plus: seqOf(600, user).seq }] }] };
    expect(refusal({ g: { reduce: { arity: 2 }, input: nested } })?.path).toBe("$.g.reduce");
    const spans = { plus: Array.from({ length: 4 }, () => ({ seq: [user, { plus: seqOf(600, user).seq }] })) };
    expect(refusal({ g: { reduce: { arity: 2 }, input: spans } })).toBeUndefined();
    const found = { retrieve: { vector_store_ids: ["v"], query: "q", max_num_results: 50 } };
    const searches = { plus: Array.from({ length: 30 }, () => found) };
    expect(refusal({ g: { reduce: { arity: 2 }, input: searches } })?.path).toBe("$.g.reduce");
    const zipped = { zip: { first: { plus: seqOf(3, user).seq }, second: { plus: seqOf(300, user).seq } } };
    expect(refusal({ g: { reduce: { arity: 2 }, input: zipped } })?.path).toBe("$.g.reduce");
    const behind = { plus: { preamble: user, children: seqOf(600, user).seq } };
    expect(refusal({ g: { reduce: { arity: 2 }, input: { plus: [behind, behind, behind] } } })).toBeUndefined();
    const wide = (count: number) => ({ seq: [...seqOf(count, user).seq, { plus: seqOf(1_000, user).seq }] });
    expect(refusal({ g: { reduce: { arity: 2 }, input: wide(30) } })).toBeUndefined();
    expect(refusal({ g: { reduce: { arity: 2 }, input: wide(40) } })?.path).toBe("$.g.reduce");
  });

  test("of inputs that are shown again at every level", () => {
    const shown = (levels: number, count: number, expose?: string) => {
      const inside = nested(levels, (inner) => ({ g: { expose, input: { seq: [inner, seqOf(count, user)] } } }));
      return { g: { input: inside } };
    };
    expect(refusal(shown(30, 50, "both"))).toBeUndefined();
    expect(refusal(shown(30, 300, "output"))).toBeUndefined();
    expect(refusal(shown(30, 300))).toBeUndefined();
    expect(refusal(shown(30, 300, "both"))?.path).toMatch(/^\$\.g\.input\.g\.input\.seq\[0\].*\.g\.expose$/);
  });

  test("of searches", () => {
    const retrieve = { retrieve: { vector_store_ids: ["v"], query: "q" } };
    expect(refusal(seqOf(64, retrieve))).toBeUndefined();
    expect(refusal(seqOf(65, retrieve))?.path).toBe("$.seq[64].retrieve");
    const augment = { augment: { body: user, doc: ["n", { Text: "t" }] } };
    expect(refusal({ par: [seqOf(64, retrieve), augment] })?.path).toBe("$.par[1].augment");
  });

  test("of a search's words", () => {
    const retrieve = (query: string) => ({ retrieve: { vector_store_ids: ["v"], query } });
    expect(refusal(retrieve("x".repeat(queryLimits.searchChars)))).toBeUndefined();
    expect(refusal(retrieve("x".repeat(queryLimits.searchChars + 1)))?.path).toBe("$.retrieve.query");
  });

  test("of zips written out: each within another doubles what it holds", () => {
    const zipped = (inner: object) => ({ zip: { first: user, second: inner } });
    const join = seqOf(4, user);
    const eight = [1, 2, 3, 4, 5, 6, 7, 8].reduce(zipped, join);
    expect(refusal(eight)).toBeUndefined();
    const forty = Array.from({ length: 40 }).reduce<object>(zipped, join);
    expect(refusal(forty)?.code).toBe("invalid_value");
    expect(refusal(forty)?.path).toMatch(/^\$(\.zip\.second){28,29}\.zip$/);
    const thousand = { map: { metadata: {}, inputs: Array.from({ length: 1_000 }, () => "a") } };
    expect(refusal({ zip: { first: seqOf(8, user), second: thousand } })).toEqual({
      code: "invalid_value",
      path: "$.zip",
    });
    expect(refusal({ zip: { first: user, second: thousand } })).toBeUndefined();
    const found = { retrieve: { vector_store_ids: ["v"], query: "q", max_num_results: 50 } };
    expect(refusal({ zip: { first: seqOf(250, user), second: found } })?.path).toBe("$.zip");
    const augment = { augment: { body: user, doc: ["n", { Text: "t" }] } };
    expect(refusal({ zip: { first: seqOf(250, user), second: augment } })?.path).toBe("$.zip");
    const long = { zip: { first: { user: "x".repeat(1024 * 1024) }, second: seqOf(9, user) } };
    expect(refusal(long)).toEqual({ code: "invalid_value", path: "$.zip" });
  });
});

test("a path that the caller made long is shown in part", () => {
  const key = "x".repeat(100_000);
  expect(refusal({ [key]: 1 })?.path).toBe(`$["${"x".repeat(64)}"]`);
  const deep = refusal(
    nested(queryLimits.treeDepth, (inner) => ({ augment: { body: inner, doc: ["n", { Text: "t" }] } })),
  );
  expect(deep?.path).toHaveLength(513);
  expect(deep?.path).toEndWith("…");
});
