import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type OpenAI from "openai";
import { createStore, errorOf, openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

// A server starts in each of these tests.
setDefaultTimeout(60_000);

const texts = {
  "holt.md": "- Mira Holt works as a baker.\n- The extension of Mira Holt is 4821.",
  "vale.md": "- Jon Vale lives in Fairhaven.\n- The extension of Jon Vale is 3057.",
};
const question = "What is the extension of Jon Vale?";

describe("responses through the official client", () => {
  let server: TestServer;
  let client: OpenAI;
  let params: OpenAI.Responses.ResponseCreateParamsNonStreaming;

  beforeAll(async () => {
    server = await startTestServer();
    client = openaiClient(server.url, (await server.tenant("responses")).apiKey);
    const storeId = await createStore(client, "people", texts);
    params = {
      model: server.model,
      input: question,
      temperature: 0,
      max_output_tokens: 40,
      tools: [{ type: "file_search", vector_store_ids: [storeId], max_num_results: 2 }],
      include: ["file_search_call.results"],
    };
  });
  afterAll(async () => await server[Symbol.asyncDispose]());

  const citationsOf = (response: OpenAI.Responses.Response) =>
    response.output.flatMap((item) =>
      item.type === "message"
        ? item.content.flatMap((part) => (part.type === "output_text" ? part.annotations : []))
        : [],
    );

  test("searches, answers and cites the file that the answer is from", async () => {
    const response = await client.responses.create(params);
    expect(response.status).toBe("completed");
    expect(response.output_text).toContain("3057");
    expect(citationsOf(response)).toMatchObject([{ type: "file_citation", filename: "vale.md" }]);
    const [call] = response.output;
    if (call?.type !== "file_search_call") throw new Error("no search was told");
    expect(call.queries).toEqual([question]);
    expect(call.results?.map(({ filename }) => filename)).toContain("vale.md");
    const again = await client.responses.create(params);
    expect(again.output_text).toBe(response.output_text);
    expect(again.usage?.input_tokens_details.cached_tokens).toBeGreaterThan(0);
    expect(again.usage?.input_tokens).toBe(response.usage?.input_tokens ?? -1);
  });

  test("a stream's typed events add up to the same response", async () => {
    const whole = await client.responses.create(params);
    const stream = client.responses.stream({ ...params, stream: true });
    const kinds: string[] = [];
    const numbers: number[] = [];
    let text = "";
    for await (const event of stream) {
      kinds.push(event.type);
      numbers.push(event.sequence_number);
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    expect(numbers).toEqual(numbers.map((_, index) => index));
    expect(kinds[0]).toBe("response.created");
    expect(kinds).toContain("response.file_search_call.completed");
    expect(kinds).toContain("response.output_text.annotation.added");
    expect(kinds.at(-1)).toBe("response.completed");
    expect(text).toBe(whole.output_text);
    const final = await stream.finalResponse();
    expect(final.output_text).toBe(whole.output_text);
    expect(citationsOf(final)).toEqual(citationsOf(whole));
  });

  test("a stored response is retrieved, followed, listed and deleted", async () => {
    const first = await client.responses.create(params);
    expect((await client.responses.retrieve(first.id)).output_text).toBe(first.output_text);
    const next = await client.responses.create({
      ...params,
      input: "What is the extension of Mira Holt?",
      previous_response_id: first.id,
    });
    expect(next.previous_response_id).toBe(first.id);
    const ids: string[] = [];
    for await (const item of client.responses.inputItems.list(next.id, { order: "asc", limit: 2 }))
      ids.push(item.id ?? "");
    expect(ids).toHaveLength(4);
    expect(new Set(ids).size).toBe(4);
    expect((await errorOf(client.responses.cancel(first.id))).status).toBe(400);
    await client.responses.delete(first.id);
    expect((await errorOf(client.responses.retrieve(first.id))).status).toBe(404);
    expect((await client.responses.retrieve(next.id)).id).toBe(next.id);
    const kept = await client.responses.create({ ...params, store: false });
    expect((await errorOf(client.responses.retrieve(kept.id))).status).toBe(404);
  });
});
