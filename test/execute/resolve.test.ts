import { describe, expect, test } from "bun:test";
import { ApiError } from "../../gateway/base/errors.ts";
import { Pace } from "../../gateway/base/pace.ts";
import { rank } from "../../gateway/execute/augment.ts";
import { Resolver, type Search, type Sources } from "../../gateway/execute/resolve.ts";
import type { Query } from "../../gateway/query/ir.ts";
import { queryLimits } from "../../gateway/query/limits.ts";
import { parseQuery } from "../../gateway/query/parse.ts";
import { canonicalText } from "../../gateway/query/print.ts";
import { storedFragments } from "../http/query-rig.ts";

function resolver(changes: Partial<Sources> = {}, signal = new AbortController().signal) {
  const searches: Search[] = [];
  const readings: (readonly string[])[] = [];
  const generated: string[] = [];
  const sources: Sources = {
    retrieve: (search) => {
      searches.push(search);
      if (search.vectorStoreIds[0] !== "vs_1") {
        throw new ApiError("not_found", { param: "vector_store_ids", message: "No such vector store." });
      }
      return storedFragments.slice(0, search.maxResults);
    },
    fragments: (ids) => {
      readings.push(ids);
      return ids.map((id) => storedFragments.find((one) => one.id === id));
    },
    augment: { maxTokens: 8, maxFragments: 2, countTokens: (text) => text.split(/\s+/).filter(Boolean).length },
    maxAugmentChars: 1_000,
    generated: ({ path }) => {
      generated.push(path);
      return Promise.resolve(["who is", "the manager"]);
    },
    ...changes,
  };
  const made = new Resolver(sources, signal);
  const resolve = (value: unknown): Promise<Query> => made.resolve(parseQuery(value));
  return { resolve, made, searches, readings, generated };
}

const g = (input: unknown) => ({ g: { model: "", input } });
const retrieve = (query: unknown, fields: object = {}) => ({
  retrieve: { vector_store_ids: ["vs_1"], query, max_num_results: 2, ...fields },
});
const inputOf = (query: Query): Query => (query.kind === "generate" ? query.input : query);

async function errorOf(promise: Promise<unknown>): Promise<{ code: string; param: string | undefined }> {
  try {
    await promise;
  } catch (error) {
    if (error instanceof ApiError) return { code: error.code, param: error.param };
    throw error;
  }
  throw new Error("it went well");
}

test("a node that stands in two places is resolved once, and stays one: it runs once", async () => {
  const { made, searches } = resolver();
  const inner = parseQuery(g(retrieve("Who manages Anna?")));
  const outer = parseQuery(g({ user: "?" }));
  if (outer.kind !== "generate") throw new Error("not a generate");
  const resolved = inputOf(await made.resolve({ ...outer, input: { kind: "plus", children: [inner, inner] } }));
  if (resolved.kind !== "plus") throw new Error("not a plus");
  expect(resolved.children[0]).not.toBe(inner);
  expect(resolved.children[0]).toBe(resolved.children[1] as Query);
  expect(searches).toHaveLength(1);
});

describe("a retrieve", () => {
  test("becomes what is found, best first; its texts and salts are the corpus'", async () => {
    const { resolve, made, searches } = resolver();
    const query = await resolve(g({ seq: [retrieve("Who manages Anna?"), { user: "?" }] }));
    expect(searches).toEqual([
      { vectorStoreIds: ["vs_1"], query: "Who manages Anna?", maxResults: 2, filters: undefined },
    ]);
    expect(inputOf(query)).toMatchObject({
      children: [{ kind: "retrieved", fragments: [{ id: "frag_1" }, { id: "frag_2" }] }, {}],
    });
    const { id, text, salt } = storedFragments[0] ?? {};
    expect(made.fragments.get("frag_1")).toEqual({ id, text, salt } as never);
    expect(made.found.map((fragment) => fragment.id)).toEqual(["frag_1", "frag_2"]);
  });

  test("given as a query searches for the text of its messages", async () => {
    const { resolve, searches } = resolver();
    await resolve(g(retrieve({ seq: [{ user: "Who manages" }, { monad: { user: "no" } }, { user: "Anna?" }] })));
    expect(searches[0]?.query).toBe("Who manages\nAnna?");
  });

  test("with a generate in its question runs it first and searches for what it said", async () => {
    const { resolve, searches, generated } = resolver();
    await resolve(g(retrieve({ seq: [{ user: "Question:" }, { repeat: { n: 2, ...g({ user: "Ask." }) } }] })));
    expect(generated).toEqual(["$.g.input.retrieve.query.seq[1].repeat"]);
    expect(searches[0]?.query).toBe("Question:\nwho is\nthe manager");
  });

  test("names its place when a store is unknown, or there is nothing to search for", async () => {
    const unknown = resolver().resolve(g({ seq: [{ user: "x" }, retrieve("x", { vector_store_ids: ["vs_2"] })] }));
    expect(await errorOf(unknown)).toEqual({
      code: "not_found",
      param: "$.g.input.seq[1].retrieve.vector_store_ids",
    });
    const blank = resolver().resolve(g(retrieve({ user: "  " })));
    expect(await errorOf(blank)).toEqual({ code: "invalid_value", param: "$.g.input.retrieve.query" });
  });
});

describe("fragments by id", () => {
  test("are read together, before anything is searched", async () => {
    const { resolve, made, readings } = resolver();
    await resolve(
      g({ plus: [{ fragment: { id: "frag_2" } }, { fragment: { id: "frag_1" } }, { fragment: { id: "frag_2" } }] }),
    );
    expect(readings).toEqual([["frag_2", "frag_1"]]);
    expect([...made.fragments.keys()]).toEqual(["frag_2", "frag_1"]);
  });

  test("that are unknown end the query at their place", async () => {
    const { resolve, searches } = resolver();
    const resolved = resolve(
      g({ seq: [retrieve("x"), { plus: [{ fragment: { id: "frag_1" } }, { fragment: { id: "frag_9" } }] }] }),
    );
    expect(await errorOf(resolved)).toEqual({ code: "not_found", param: "$.g.input.seq[1].plus[1].fragment.id" });
    expect(searches).toEqual([]);
  });

  test("given as text stay the caller's own", async () => {
    const { resolve, made } = resolver();
    const query = await resolve(g({ plus: [{ fragment: { text: "mine" } }] }));
    expect(canonicalText(inputOf(query))).toContain("mine");
    expect(made.fragments.size).toBe(0);
  });
});

describe("an augment", () => {
  const text = "Anna lives in Oslo. Tom likes the sea very much. The manager of Anna is Tom. Rain falls on the hills.";
  const augment = (question: string, name = "docs/people.txt", content = text) =>
    g({ augment: { embedding_model: "any", body: { user: question }, doc: [name, { Text: content }] } });

  test("becomes the document's best parts as spnl writes them, the same for every question", async () => {
    const partsFor = async (question: string): Promise<string[]> => {
      const query = inputOf(await resolver().resolve(augment(question)));
      if (query.kind !== "retrieved") throw new Error(query.kind);
      return query.fragments.map((part) => (part.kind === "message" ? part.text : ""));
    };
    const [best] = await partsFor("Who is the manager of Anna?");
    expect(best).toBe("Relevant Document @base-people.txt-2: The manager of Anna is Tom.");
    expect(await partsFor("Whose manager is Tom?")).toContain(best ?? "");
    expect((await partsFor("rain"))[0]).toBe("Relevant Document @base-people.txt-3: Rain falls on the hills.");
  });

  test("refuses a document that is too long, naming it", async () => {
    const resolved = resolver().resolve(augment("x", "a.txt", "x ".repeat(600)));
    expect(await errorOf(resolved)).toEqual({ code: "invalid_value", param: "$.g.input.augment.doc[1]" });
  });

  test("ranks by rare words first, then by the order of the text", async () => {
    const texts = ["the sea and the town", "the town", "nothing here", "the hill"];
    expect(await rank(texts, "Where is THE séa?", new Pace())).toEqual([0, 1, 3, 2]);
    expect(await rank(texts, "unknown words", new Pace())).toEqual([0, 1, 2, 3]);
  });

  test("looks at the begin of a long question alone, as a search of a corpus does", async () => {
    const partsFor = async (question: string): Promise<Query> => inputOf(await resolver().resolve(augment(question)));
    const filler = "x ".repeat(queryLimits.searchChars / 2);
    expect(await partsFor(`${filler}rain falls`)).toEqual(await partsFor("unknown"));
    expect(await partsFor(`rain falls ${filler}`)).toEqual(await partsFor("rain falls"));
  });
});

describe("searches of one query", () => {
  const twice = g({ seq: [retrieve("first"), retrieve("second")] });

  test("leave turns to others between them", async () => {
    const order: string[] = [];
    const { resolve } = resolver({
      retrieve: ({ query }) => {
        order.push(query);
        setImmediate(() => order.push("another request"));
        return [];
      },
    });
    await resolve(twice);
    expect(order).toEqual(["first", "another request", "second"]);
  });

  test("end with the query", async () => {
    const gone = new AbortController();
    const asked: string[] = [];
    const { resolve } = resolver(
      {
        retrieve: ({ query }) => {
          asked.push(query);
          gone.abort();
          return [];
        },
      },
      gone.signal,
    );
    await expect(resolve(twice)).rejects.toThrow(expect.objectContaining({ name: "AbortError" }));
    expect(asked).toEqual(["first"]);
  });

  test("split a document no further when the query has ended", async () => {
    const gone = new AbortController();
    let counted = 0;
    const countTokens = (text: string): number => {
      counted += 1;
      gone.abort();
      return text.length;
    };
    const { resolve } = resolver({ augment: { maxTokens: 8, maxFragments: 2, countTokens } }, gone.signal);
    const doc = ["a.txt", { Text: "One two. ".repeat(100) }];
    const resolved = resolve(g({ augment: { embedding_model: "any", body: { user: "x" }, doc } }));
    await expect(resolved).rejects.toThrow(expect.objectContaining({ name: "AbortError" }));
    expect(counted).toBeLessThan(20);
  });
});

test("what needs no reading stays the same object", async () => {
  const { made } = resolver();
  const query = parseQuery(g({ seq: [{ user: "a" }, { plus: [g({ user: "b" })] }] }));
  expect(await made.resolve(query)).toBe(query);
});
