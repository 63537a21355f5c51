import { describe, expect, test } from "bun:test";
import { post, readyRig, refusalOf } from "../query-rig.ts";

/** What is refused is refused with a status, however long a busy machine takes to find it. */
const patient = { firstEventMs: 60_000 };
const user = (text: string) => ({ user: text });
const g = (input: unknown, fields: object = {}) => ({
  g: { model: "", max_tokens: 4, temperature: 0, ...fields, input },
});
const retrieve = (store: string) => ({ retrieve: { vector_store_ids: [store], query: "Anna", max_num_results: 2 } });

describe("bad input is 400 with its path, and nothing runs", () => {
  const deep = (depth: number): string => `${'{"g":{"model":"","input":'.repeat(depth)}{}${"}}".repeat(depth)}`;
  const table: readonly (readonly [name: string, body: unknown, param: RegExp | null, code?: string])[] = [
    ["no JSON", "{", null, "invalid_json"],
    ["not an object", "[]", /^\$$/],
    ["a root without an answer", { plus: [g(user("a")), user("b")] }, /^\$$/, "invalid_value"],
    ["a message alone", user("a"), /^\$$/, "invalid_value"],
    ["an unknown node", g({ nope: [] }), /^\$\.g\.input/],
    ["an unknown field", g(user("a"), { nope: 1 }), /^\$\.g\.nope$/, "unknown_field"],
    ["a huge count", g(user("a"), { max_tokens: 1e12 }), /^\$\.g\.max_tokens$/],
    ["a negative count", { repeat: { n: -1, ...g(user("a")) } }, /^\$\.repeat\.n$/],
    ["ten thousand repeats", { repeat: { n: 10_000, ...g(user("a")) } }, /^\$\.repeat\.n$/],
    ["no temperature", g(user("a"), { temperature: "hot" }), /^\$\.g\.temperature$/],
    ["a tree that is 100,000 deep", deep(100_000), null],
    [
      "another model",
      g({ seq: [g(user("a"), { model: "gpt" })] }),
      /^\$\.g\.input\.seq\[0\]\.g\.model$/,
      "model_not_found",
    ],
    [
      "a filter of no type",
      g({ retrieve: { vector_store_ids: ["vs_1"], query: "x", filters: { type: "like" } } }),
      /^\$\.g\.input\.retrieve\.filters/,
    ],
    ["an unknown store", g(retrieve("vs_9")), /^\$\.g\.input\.retrieve\.vector_store_ids$/, "not_found"],
    ["an unknown fragment", g({ fragment: { id: "frag_9" } }), /^\$\.g\.input\.fragment\.id$/, "not_found"],
    ["an empty prompt", g({ seq: [] }), /^\$\.g\.input/],
    ["min_tokens beyond max_tokens", g(user("a"), { min_tokens: 5 }), /^\$\.g\.min_tokens$/, "invalid_value"],
    ["a prompt beyond the context", g(user("word ".repeat(9_000))), /^\$\.g\.input$/, "context_length_exceeded"],
  ];
  for (const [name, body, param, code] of table) {
    test(name, async () => {
      const rig = await readyRig(patient);
      for (const path of ["execute", "execute?stream=true", "prepare", "explain"]) {
        // Tokens are counted by those alone who generate.
        if (name.startsWith("min_tokens") && !path.startsWith("execute")) continue;
        const refusal = await refusalOf(post(rig, path, body));
        expect([400, 404]).toContain(refusal.status);
        if (code !== undefined) expect(refusal.code).toBe(code);
        if (param !== null) expect(refusal.param).toMatch(param);
      }
      expect(rig.submits()).toEqual([]);
      expect(rig.limiter.running("tenant_a")).toBe(0);
    });
  }

  test("in YAML: an anchor that holds itself", async () => {
    const rig = await readyRig(patient);
    const refusal = await refusalOf(
      post(rig, "execute", "g: &a\n  model: ''\n  input:\n    seq: [*a]\n", { type: "text/yaml" }),
    );
    expect(refusal.status).toBe(400);
    expect(rig.submits()).toEqual([]);
  });

  test("parameters of the URL", async () => {
    const rig = await readyRig(patient);
    for (const search of ["?stream=yes", "?reuse=1", "?nope=true"]) {
      expect((await refusalOf(post(rig, `execute${search}`, g(user("a"))))).status).toBe(400);
    }
    expect((await refusalOf(post(rig, "explain?stream=true", g(user("a"))))).status).toBe(400);
  });
});
