/** The exported client and `spangate query` against a real server with the shipped model. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { type BulkLine, piecesOf, q, SpanQueryClient, textsOf } from "spangate/query";
import { runSpangate } from "../support/command-line.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

setDefaultTimeout(60_000);

const facts = ["The extension of Nora Lind is 5512.", "The extension of Tom Berg is 1207."];
const options = { max_tokens: 12, temperature: 0 };
const judge = q.g(
  options,
  q.cross(
    q.system("You answer from the documents."),
    q.plus(...facts.map((text) => q.fragment({ text })), q.repeat(2, q.g({ ...options, max_tokens: 4 }, "Say hello."))),
    q.user("What is the extension of Tom Berg?"),
  ),
);

describe("a span query", () => {
  let server: TestServer;
  let client: SpanQueryClient;
  let apiKey = "";
  beforeAll(async () => {
    server = await startTestServer();
    apiKey = (await server.tenant("query-client")).apiKey;
    client = new SpanQueryClient({ url: server.url, apiKey });
  });
  afterAll(async () => await server[Symbol.asyncDispose]());

  test("is explained, prepared, run, and streamed with the same text", async () => {
    const explained = await client.explain(judge);
    expect(explained.steps.map(({ rule }) => rule)).toContain("distribute-plus");
    expect(explained.drawing.after.svg).toStartWith("<svg");

    const prepared = await client.prepare(judge);
    expect(prepared.computed_tokens).toBeGreaterThan(0);
    expect((await client.prepare(judge)).computed_tokens).toBe(0);

    const answer = await client.execute(judge);
    expect(answer.object).toBe("chat.completion");
    expect(answer.spangate.generates).toHaveLength(3);
    expect(answer.spangate.spans.filter(({ source }) => source !== "computed").length).toBeGreaterThanOrEqual(2);

    const chunks = await Array.fromAsync(client.stream(judge));
    const streamed = chunks.flatMap(piecesOf).map(({ text }) => text);
    expect([streamed.join("")]).toEqual([...textsOf(answer)]);
    expect(chunks.at(-1)?.usage?.completion_tokens).toBe(answer.usage.completion_tokens);
  });

  test("that is a map has a text for each input", async () => {
    const map = q.map({ ...options, max_tokens: 3 }, ["Say hello.", "Say hello."]);
    const answer = await client.execute(map);
    expect(answer.object).toBe("text_completion");
    const [first, second] = textsOf(answer);
    expect(first).toBe(second ?? "");
    expect(first).not.toBe("");
  });

  test("comes back from a bulk by its id, and a bad one with its path", async () => {
    const lines: BulkLine[] = await Array.fromAsync(
      client.bulk([
        { id: "good", query: judge },
        { id: "bad", query: q.g({ max_tokens: -1 }, "x") },
      ]),
    );
    const byId = new Map(lines.flatMap((line) => ("bulk" in line ? [] : [[line.id, line] as const])));
    expect(byId.get("good")).toMatchObject({ response: { object: "chat.completion" } });
    expect(byId.get("bad")).toMatchObject({ error: { code: "invalid_value", param: "$.g.max_tokens" } });
    expect(lines.at(-1)).toMatchObject({
      bulk: { status: "completed", counts: { total: 2, completed: 1, failed: 1 } },
    });
  });

  test("is refused with the path that the server found", async () => {
    const refused = client.execute(q.g({ model: "no-such-model" }, "x"));
    expect(await refused.catch((error: unknown) => error)).toMatchObject({
      status: 404,
      code: "model_not_found",
      path: "$.g.model",
    });
  });

  test("runs from the command line", async () => {
    const { output, errors, code } = await runSpangate(["query", "-", "--stats"], {
      env: { PATH: process.env.PATH ?? "", SPANGATE_URL: server.url, SPANGATE_API_KEY: apiKey },
      stdin: JSON.stringify(judge),
    });
    expect({ output: [output], code }).toEqual({
      output: [...textsOf(await client.execute(judge))],
      code: 0,
    });
    expect(errors).toContain("$.g.input.cross[1].plus[2].repeat #1 · prompt");
  });
});
