/** Span queries on the shipped model, through HTTP and the real workers. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { QueryAnswer } from "../http/query-rig.ts";
import { createStore, openaiClient } from "../support/openai.ts";
import { runningRequests } from "../support/operator.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";
import { until } from "../support/until.ts";

setDefaultTimeout(60_000);

const user = (text: string) => ({ user: text });
const system = (text: string) => ({ system: text });
const g = (input: unknown, fields: object = {}) => ({
  g: { model: "", max_tokens: 16, temperature: 0, ...fields, input },
});
const facts = [
  "- The extension of Nora Lind is 5512.\n- Nora Lind likes rowing.",
  "- The extension of Tom Berg is 1207.\n- Tom Berg lives in Oslo.",
  "- The extension of Anna Holm is 3381.\n- Anna Holm likes the sea.",
  "- The extension of Ivar Moe is 9040.\n- Ivar Moe plays chess.",
];
const writers = (fields: object = {}) =>
  facts.map((fact) =>
    g({ seq: [user(fact), user("Repeat what you know.")] }, { ignore_eos: true, min_tokens: 16, ...fields }),
  );
const question = "What is the extension of Tom Berg?";
const judge = (children: readonly unknown[], fields: object = {}) =>
  g({ seq: [system("You answer from the documents."), { plus: children }, user(question)] }, fields);

describe("a server with the shipped model", () => {
  let server: TestServer;
  let tenant: TestTenant;
  beforeAll(async () => {
    server = await startTestServer();
    tenant = await server.tenant("queries");
  });
  afterAll(async () => await server[Symbol.asyncDispose]());

  const post = (path: string, body: string | object, type = "application/json", signal?: AbortSignal) =>
    fetch(`${server.url}/v1/query/${path}`, {
      method: "POST",
      headers: { authorization: `Bearer ${tenant.apiKey}`, "content-type": type },
      body: typeof body === "string" ? body : JSON.stringify(body),
      ...(signal === undefined ? {} : { signal }),
    });
  const ask = async (query: string | object, search = "", type?: string): Promise<QueryAnswer> => {
    const response = await post(`execute${search}`, query, type);
    const body = (await response.json()) as QueryAnswer;
    if (response.status !== 200) throw new Error(JSON.stringify(body));
    return body;
  };
  const outerOf = ({ spangate }: QueryAnswer) => {
    const outer = spangate.generates.at(-1);
    if (outer?.path !== "$") throw new Error("the outer generate is not the last");
    return outer;
  };
  const textOf = (answer: QueryAnswer) => answer.choices[0]?.message?.content;

  test("a judge computes its own question only, whatever its writers wrote", async () => {
    const few = await ask(judge(writers({ temperature: 0.5 }).slice(0, 2)));
    const all = await ask(judge(writers({ temperature: 0.5, seed: 7 })));
    expect(all.spangate.generates.slice(0, -1).map(({ completion_tokens }) => completion_tokens)).toEqual([
      16, 16, 16, 16,
    ]);
    expect(all.spangate.spans.every(({ source }) => source === "device")).toBe(true);
    const computed = [few, all].map((answer) => outerOf(answer).prompt_tokens - outerOf(answer).cached_tokens);
    // The question and the start of the answer: the same for two writers and for four.
    expect(computed[1]).toBe(computed[0] ?? 0);
    const alone = await ask(g(user(question)), "?reuse=false");
    expect(computed[1]).toBeLessThanOrEqual(outerOf(alone).prompt_tokens);
  });

  test("temperature 0: nested answers are those of a computation without reuse", async () => {
    for (const expose of ["both", "output"]) {
      const query = judge(writers({ expose }), { max_tokens: 12 });
      const reused = await ask(query);
      const computed = await ask(query, "?reuse=false");
      expect(outerOf(computed).cached_tokens).toBe(0);
      expect(outerOf(reused).cached_tokens).toBeGreaterThan(64);
      expect(textOf(computed)).toBe(textOf(reused) ?? "");
    }
  });

  test("the same documents in another order are one hit to the end, with the same answer", async () => {
    const query = (texts: readonly string[]) =>
      g({
        seq: [
          system("You answer from the documents."),
          { plus: texts.map((text) => ({ fragment: { text } })) },
          user(question),
        ],
      });
    const first = await ask(query(facts));
    expect(textOf(first)).toContain("1207");
    const again = await ask(query(facts.toReversed()));
    expect(textOf(again)).toBe(textOf(first) ?? "");
    // The open start of the answer is no whole block.
    expect(outerOf(again).prompt_tokens - outerOf(again).cached_tokens).toBeLessThan(16);
  });

  test("YAML in, SSE out", async () => {
    const yaml = `g:\n  model: ""\n  max_tokens: 12\n  temperature: 0\n  input:\n    seq:\n      - fragment: {text: "${facts[1]?.replaceAll("\n", "\\n")}"}\n      - user: ${question}\n`;
    const whole = await ask(yaml, "", "application/yaml");
    const response = await post("execute?stream=true", yaml, "text/yaml");
    const text = await response.text();
    expect(text.trimEnd()).toEndWith("data: [DONE]");
    const chunks = text
      .split("\n\n")
      .flatMap((event) =>
        event.startsWith("data: {")
          ? [JSON.parse(event.slice(6)) as { choices: { delta: { content?: string } }[] }]
          : [],
      );
    expect(chunks.flatMap(({ choices }) => choices.map(({ delta }) => delta.content ?? "")).join("")).toBe(
      textOf(whole) ?? "",
    );
  });

  test("what is prepared is found, by search and by id, and by its tenant alone", async () => {
    const client = openaiClient(server.url, tenant.apiKey);
    const store = await createStore(client, "facts", { "facts.md": facts.join("\n\n") });
    const retrieve = { retrieve: { vector_store_ids: [store], query: question, max_num_results: 4 } };
    const query = g({ seq: [retrieve, user(question)] });
    const prepared = (await (await post("prepare", query)).json()) as {
      spans: { id: string; source: string }[];
      tokens: number;
      computed_tokens: number;
    };
    expect(prepared.spans.length).toBeGreaterThan(0);
    expect(prepared.computed_tokens).toBe(prepared.tokens);
    const answer = await ask(query);
    expect(textOf(answer)).toContain("1207");
    expect(outerOf(answer).cached_tokens).toBe(prepared.tokens);
    expect(answer.spangate.spans.map(({ id, source }) => [id, source])).toEqual(
      prepared.spans.map(({ id }) => [id, "device"]),
    );
    const [span] = prepared.spans;
    const byId = await ask(g({ seq: [{ plus: [{ fragment: { id: span?.id ?? "" } }] }, user("Who?")] }));
    expect(byId.spangate.spans).toMatchObject([{ id: span?.id, source: "device" }]);
    const other = await server.tenant("another");
    const theirs = await fetch(`${server.url}/v1/query/execute`, {
      method: "POST",
      headers: { authorization: `Bearer ${other.apiKey}`, "content-type": "application/json" },
      body: JSON.stringify(g({ fragment: { id: span?.id ?? "" } })),
    });
    expect(theirs.status).toBe(404);
  });

  test("a failing inner generate ends the query with its path", async () => {
    const response = await post("execute", judge([...writers(), g(user("x"), { max_tokens: 100_000 })]));
    expect(response.status).toBe(400);
    expect((await response.json()) as object).toMatchObject({
      error: { code: "context_length_exceeded", param: "$.g.input.seq[1].plus[4].g.max_tokens" },
    });
  });

  test("a client that leaves: nothing of its tree runs on", async () => {
    const client = new AbortController();
    const long = { max_tokens: 1_000, ignore_eos: true, min_tokens: 1_000, temperature: 1 };
    const answering = post("execute", judge(writers(long)), "application/json", client.signal);
    answering.catch(() => undefined);
    await until(async () => (await runningRequests(server)) >= 4, "four requests run");
    client.abort();
    await until(async () => (await runningRequests(server)) === 0, "nothing runs");
  });
});
