import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type OpenAI from "openai";
import { errorOf, openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

// A server starts in each of these tests.
setDefaultTimeout(60_000);

const messages = [{ role: "user" as const, content: "What is the extension of Jon Vale?" }];

describe("completions through the official client", () => {
  let server: TestServer;
  let client: OpenAI;

  beforeAll(async () => {
    server = await startTestServer({ model: "one-layer" });
    client = openaiClient(server.url, (await server.tenant("completions")).apiKey);
  });
  afterAll(async () => await server[Symbol.asyncDispose]());

  const complete = (fields: Partial<OpenAI.CompletionCreateParamsNonStreaming> = {}) =>
    client.completions.create({
      model: server.model,
      prompt: "Jon Vale lives in",
      temperature: 0,
      max_tokens: 12,
      ...fields,
    });
  // The routes of tokens are not the client's, which takes any path.
  const tokensOf = async (body: object) =>
    (await client.post(`${server.url}/tokenize`, { body })) as { tokens: number[]; count: number };

  test("the ids of a conversation go on as the conversation does", async () => {
    const chat = await client.chat.completions.create({
      model: server.model,
      messages,
      temperature: 0,
      max_tokens: 12,
    });
    const { tokens, count } = await tokensOf({ model: server.model, messages });
    const answer = await complete({ prompt: tokens });
    expect(answer.object).toBe("text_completion");
    expect(answer.choices[0]?.text).toBe(chat.choices[0]?.message.content ?? "");
    expect(answer.usage?.prompt_tokens).toBe(count);
    expect(chat.usage?.prompt_tokens).toBe(count);
  });

  test("texts come back from their tokens", async () => {
    const text = "Jon Vale lives in <|im_end|> Fairhaven. \u{1F600}";
    const { tokens } = await tokensOf({ prompt: text });
    expect(await client.post(`${server.url}/detokenize`, { body: { tokens } })).toEqual({ prompt: text });
  });

  test("several prompts are answered in their order, each as alone", async () => {
    const prompts = ["Jon Vale lives in", "The extension of"];
    const answer = await complete({ prompt: prompts });
    const alone = await Promise.all(prompts.map((prompt) => complete({ prompt })));
    expect(answer.choices.map(({ text }) => text)).toEqual(alone.map(({ choices }) => choices[0]?.text ?? ""));
    const tokens = alone.map(({ usage }) => usage?.prompt_tokens ?? 0);
    expect(answer.usage?.prompt_tokens).toBe((tokens[0] ?? 0) + (tokens[1] ?? 0));
  });

  test("logprobs name the tokens and their places; a stream says the same", async () => {
    const { tokens: prompt } = await tokensOf({ messages });
    const whole = await complete({ prompt, logprobs: 2 });
    const { text = "", logprobs } = whole.choices[0] ?? {};
    const {
      tokens = [],
      text_offset: offsets = [],
      token_logprobs: values = [],
      top_logprobs: top = [],
    } = logprobs ?? {};
    expect(tokens.length).toBeGreaterThan(3);
    for (const [index, token] of tokens.entries()) {
      const offset = offsets[index] ?? -1;
      if (offset < text.length) expect(text.slice(offset, offset + token.length)).toBe(token);
      expect(values[index]).toBeLessThanOrEqual(0);
      expect(top[index]).toHaveProperty([token], values[index]);
    }
    const stream = await client.completions.create({
      model: server.model,
      prompt,
      temperature: 0,
      max_tokens: 12,
      logprobs: 2,
      stream: true,
      stream_options: { include_usage: true },
    });
    let streamed = "";
    const streamedOffsets: number[] = [];
    let usage: OpenAI.CompletionUsage | undefined;
    for await (const chunk of stream) {
      streamed += chunk.choices[0]?.text ?? "";
      streamedOffsets.push(...(chunk.choices[0]?.logprobs?.text_offset ?? []));
      usage = chunk.usage ?? usage;
    }
    expect(streamed).toBe(text);
    expect(streamedOffsets).toEqual(offsets);
    expect(usage?.completion_tokens).toBe(whole.usage?.completion_tokens ?? -1);
  });

  test("what is not supported is named", async () => {
    expect(await errorOf(complete({ echo: true }))).toMatchObject({ status: 400, param: "echo" });
    expect(await errorOf(complete({ prompt: "" }))).toMatchObject({ status: 400, param: "prompt" });
  });
});
