import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import Anthropic from "@anthropic-ai/sdk";
import { startTestServer, type TestServer } from "../support/server.ts";

// A server starts in each of these tests.
setDefaultTimeout(60_000);

const document = (data: string): Anthropic.DocumentBlockParam => {
  return { type: "document", source: { type: "text", media_type: "text/plain", data } };
};
const blocks: readonly Anthropic.ContentBlockParam[] = [
  document("- Mira Holt works as a baker.\n- The extension of Mira Holt is 4821."),
  document("- Jon Vale lives in Fairhaven.\n- The extension of Jon Vale is 3057."),
  document("- Ada Quill is in the research team.\n- The extension of Ada Quill is 7719."),
];
const question: Anthropic.TextBlockParam = { type: "text", text: "What is the extension of Jon Vale?" };

describe("messages through the official client", () => {
  let server: TestServer;
  let client: Anthropic;

  beforeAll(async () => {
    server = await startTestServer();
    const { apiKey } = await server.tenant("messages");
    client = new Anthropic({ baseURL: server.url, apiKey, maxRetries: 0, timeout: 60_000 });
  });
  afterAll(async () => await server[Symbol.asyncDispose]());

  // The client's types have no temperature: it is what we take beyond them.
  type Params = Anthropic.MessageCreateParamsNonStreaming & { readonly temperature: number };
  const params = (content: readonly Anthropic.ContentBlockParam[]): Params => ({
    model: server.model,
    max_tokens: 40,
    temperature: 0,
    messages: [{ role: "user", content: [...content, question] }],
  });
  const textOf = (message: Anthropic.Message): string =>
    message.content.map((block) => (block.type === "text" ? block.text : "")).join("");
  const errorOf = async (call: PromiseLike<unknown>): Promise<unknown> => {
    try {
      return await call;
    } catch (error) {
      return error;
    }
  };

  test("answers from the documents, and finds them again in another order", async () => {
    const first = await client.messages.create(params(blocks));
    expect(textOf(first)).toContain("3057");
    expect(first).toMatchObject({ type: "message", role: "assistant", stop_reason: "end_turn" });
    expect(first._request_id).toStartWith("req_");
    const again = await client.messages.create(params([...blocks].reverse()));
    expect(textOf(again)).toBe(textOf(first));
    expect(again.usage.cache_read_input_tokens).toBeGreaterThan(first.usage.cache_read_input_tokens ?? 0);
    const sum = ({ usage }: Anthropic.Message): number =>
      usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0);
    expect(sum(again)).toBe(sum(first));
    const { model, messages } = params(blocks);
    expect(await client.messages.countTokens({ model, messages })).toEqual({ input_tokens: sum(first) });
  });

  test("answers from a search result, with a system text and a cache breakpoint", async () => {
    const search: Anthropic.SearchResultBlockParam = {
      type: "search_result",
      source: "https://people.example/vale",
      title: "Jon Vale",
      content: [{ type: "text", text: "- Jon Vale lives in Fairhaven.\n- The extension of Jon Vale is 3057." }],
      cache_control: { type: "ephemeral", ttl: "1h" },
    };
    const system: Anthropic.TextBlockParam[] = [{ type: "text", text: "Answer from the documents." }];
    const answer = await client.messages.create({ ...params([search]), system });
    expect(textOf(answer)).toContain("3057");
    const { cache_creation_input_tokens: written, cache_creation: byTtl } = answer.usage;
    expect(written).toBeGreaterThan(0);
    expect(byTtl).toEqual({ ephemeral_1h_input_tokens: written ?? -1, ephemeral_5m_input_tokens: 0 });
  });

  test("a stream says the same as a whole answer", async () => {
    const whole = await client.messages.create(params(blocks));
    const stream = client.messages.stream(params(blocks));
    const texts: string[] = [];
    stream.on("text", (delta) => texts.push(delta));
    const message = await stream.finalMessage();
    expect(texts.length).toBeGreaterThan(1);
    expect(texts.join("")).toBe(textOf(whole));
    expect(textOf(message)).toBe(textOf(whole));
    expect(message.stop_reason).toBe(whole.stop_reason);
    expect(message.usage.output_tokens).toBe(whole.usage.output_tokens);
    expect(message.usage.cache_read_input_tokens).toBeGreaterThan(0);
    expect(message.usage.input_tokens).toBeLessThan(message.usage.cache_read_input_tokens ?? 0);
  });

  test("a stop sequence and max_tokens end it", async () => {
    const stopped = await client.messages.create({ ...params(blocks), stop_sequences: ["305"] });
    expect(stopped).toMatchObject({ stop_reason: "stop_sequence", stop_sequence: "305" });
    expect(textOf(stopped)).not.toContain("305");
    const short = await client.messages.create({ ...params(blocks), max_tokens: 1 });
    expect(short).toMatchObject({ stop_reason: "max_tokens", usage: { output_tokens: 1 } });
  });

  test("errors are the client's classes", async () => {
    const unknown = await errorOf(client.messages.create({ ...params([]), model: "nobody" }));
    expect(unknown).toBeInstanceOf(Anthropic.NotFoundError);
    const stranger = new Anthropic({ baseURL: server.url, apiKey: "sk-of-nobody", maxRetries: 0 });
    expect(await errorOf(stranger.messages.create(params([])))).toBeInstanceOf(Anthropic.AuthenticationError);
    const image: Anthropic.ImageBlockParam = { type: "image", source: { type: "url", url: "https://a.example/b.png" } };
    const refused = await errorOf(client.messages.create(params([image])));
    expect(refused).toBeInstanceOf(Anthropic.BadRequestError);
    expect(refused).toMatchObject({ type: "invalid_request_error", errorCode: "invalid_value" });
    expect((refused as Error).message).toContain("messages[0].content[0].type");
  });
});
