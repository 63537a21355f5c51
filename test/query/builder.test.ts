/** Imported as clients import it: by the package's name. */
import { expect, test } from "bun:test";
import { parseQuery, printQuery, type QueryJson, q } from "spangate/query";

const plain = { model: "m", max_tokens: 0, temperature: 0.6 };

test("a judge over fragments and candidates", () => {
  const candidate = q.g({ model: "m", temperature: 0.5, max_tokens: 128 }, q.user("write one"));
  const judge = q.g(
    { model: "m", reduce: { arity: 4 } },
    q.cross(q.system("judge"), q.plus(q.repeat(4, candidate), q.fragment({ id: "f" })), q.user("best?")),
  );
  const inner = { model: "m", temperature: 0.5, max_tokens: 128, input: { user: "write one" } };
  expect(judge).toEqual({
    g: {
      model: "m",
      reduce: { arity: 4 },
      input: {
        cross: [
          { system: "judge" },
          { plus: [{ repeat: { n: 4, g: inner } }, { fragment: { id: "f" } }] },
          { user: "best?" },
        ],
      },
    },
  });
});

const built: readonly (readonly [name: string, query: QueryJson, printed: object])[] = [
  ["user", q.user("a"), { user: "a" }],
  ["system", q.system("a"), { system: "a" }],
  ["assistant", q.assistant("a"), { assistant: "a" }],
  ["seq", q.seq("a", q.system("b")), { seq: [{ user: "a" }, { system: "b" }] }],
  ["cross", q.cross("a"), { cross: [{ user: "a" }] }],
  ["par", q.par("a"), { par: [{ user: "a" }] }],
  ["plus", q.plus("a", "b"), { plus: [{ user: "a" }, { user: "b" }] }],
  ["plusAfter", q.plusAfter(q.system("p"), "a"), { plus: { preamble: { system: "p" }, children: [{ user: "a" }] } }],
  ["monad", q.monad("a"), { monad: { user: "a" } }],
  ["g", q.g({ model: "m" }, "a"), { g: { ...plain, input: { user: "a" } } }],
  ["g of several", q.g({ model: "m" }, "a", "b"), { g: { ...plain, input: { seq: [{ user: "a" }, { user: "b" }] } } }],
  ["repeat", q.repeat(2, q.g({ model: "m" }, "a")), { repeat: { n: 2, g: { ...plain, input: { user: "a" } } } }],
  ["map", q.map({ model: "m" }, ["a", "b"]), { map: { metadata: plain, inputs: ["a", "b"] } }],
  ["zip", q.zip("a", "b"), { zip: { first: { user: "a" }, second: { user: "b" } } }],
  ["chat", q.chat("a"), { chat: [{ user: "a" }] }],
  [
    "augment",
    q.augment("a", { name: "n", text: "t", embeddingModel: "e" }),
    { augment: { embedding_model: "e", body: { user: "a" }, doc: ["n", { Text: "t" }] } },
  ],
  [
    "retrieve",
    q.retrieve({ vector_store_ids: ["v"], query: q.user("a"), filters: { type: "eq", key: "k", value: 1 } }),
    {
      retrieve: {
        vector_store_ids: ["v"],
        query: { user: "a" },
        max_num_results: 10,
        filters: { type: "eq", key: "k", value: 1 },
      },
    },
  ],
  ["fragment", q.fragment({ text: "t", title: "x" }), { fragment: { title: "x", text: "t" } }],
];
test.each(built)("what %s builds is what the server reads", (_, query, printed) => {
  expect(printQuery(parseQuery(query))).toEqual(printed as never);
});
