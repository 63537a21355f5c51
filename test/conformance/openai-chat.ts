/** `openai`: chat and text completions, whole and streamed, aborted, refused and tried again. */
import { describe, expect, test } from "bun:test";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import type { ChatParams, ChatStreamParams } from "../support/openai.ts";
import { answer, choiceSchema, countingFetch, documents, question, type Suite, thrownBy } from "./suite.ts";

type ApiFailure = InstanceType<typeof OpenAI.APIError>;

export function openaiChat(suite: Suite): void {
  const clientOf = async (name: string): Promise<OpenAI> =>
    new OpenAI({ baseURL: `${suite.url}/v1`, apiKey: (await suite.tenant(name)).apiKey, maxRetries: 0 });
  const params = (fields: Partial<ChatParams> = {}): ChatParams => ({
    model: suite.model,
    messages: [{ role: "user", content: question }],
    temperature: 0,
    max_tokens: 40,
    documents,
    ...fields,
  });
  const endless = (): ChatStreamParams => ({
    ...params({ max_tokens: 20_000, ignore_eos: true }),
    stream: true,
  });

  describe("openai: chat completions", () => {
    test("models, whole answers, usage and the request's id", async () => {
      const client = await clientOf("openai-chat");
      const models = await client.models.list();
      expect(models.data.map(({ id }) => id)).toContain(suite.model);
      expect(await client.models.retrieve(suite.model)).toMatchObject({ id: suite.model, object: "model" });
      const { data, response, request_id: requestId } = await client.chat.completions.create(params()).withResponse();
      expect(data.choices[0]?.message).toMatchObject({ role: "assistant", content: expect.stringContaining(answer) });
      expect(data.usage?.total_tokens).toBe((data.usage?.prompt_tokens ?? 0) + (data.usage?.completion_tokens ?? 0));
      expect(requestId).toStartWith("req_");
      expect(response.headers.get("x-request-id")).toBe(requestId);
      const again = await client.chat.completions.create(params());
      expect(again.usage?.prompt_tokens_details?.cached_tokens).toBeGreaterThan(0);
    });

    test("a conversation, with parts, names of roles and every sampling field", async () => {
      const client = await clientOf("openai-turns");
      // What some clients send of all that they know.
      const unset: object = { functions: null, audio: null, prediction: null, web_search_options: null, tools: null };
      const said = await client.chat.completions.create(
        params({
          messages: [
            { role: "developer", content: [{ type: "text", text: "Answer from the documents." }] },
            { role: "user", content: "What is the extension of Mira Holt?" },
            { role: "assistant", content: "The extension of Mira Holt is 4821." },
            { role: "user", content: [{ type: "text", text: question }] },
          ],
          n: 2,
          top_p: 0.9,
          presence_penalty: 0.1,
          frequency_penalty: 0.1,
          seed: 3,
          stop: ["\n\n"],
          logit_bias: { "5": -1 },
          logprobs: true,
          top_logprobs: 2,
          user: "u",
          metadata: { a: "b" },
          service_tier: "auto",
          reasoning_effort: "none",
          verbosity: "medium",
          ...unset,
        }),
      );
      expect(said.choices).toHaveLength(2);
      for (const { message, logprobs } of said.choices) {
        expect(message.content).toContain(answer);
        expect(logprobs?.content?.[0]?.top_logprobs).toHaveLength(2);
      }
    });

    test("the stream helper's events add up to the whole answer", async () => {
      const client = await clientOf("openai-stream");
      const whole = await client.chat.completions.create(params());
      const body: ChatStreamParams = { ...params(), stream: true, stream_options: { include_usage: true } };
      const stream = client.chat.completions.stream(body);
      const deltas: string[] = [];
      stream.on("content.delta", ({ delta }) => deltas.push(delta));
      const final = await stream.finalChatCompletion();
      expect(deltas.length).toBeGreaterThan(1);
      expect(deltas.join("")).toBe(whole.choices[0]?.message.content ?? "");
      expect(final.choices[0]?.message.content).toBe(whole.choices[0]?.message.content ?? "");
      expect(final.usage?.completion_tokens).toBe(whole.usage?.completion_tokens as number);
    });

    test("formats: json_schema parsed by the client, json_object", async () => {
      const client = await clientOf("openai-json");
      const format = {
        type: "json_schema",
        json_schema: { name: "choice", strict: true, schema: choiceSchema },
      } as const;
      const parsed = await client.chat.completions.parse(params({ response_format: { ...format }, max_tokens: 400 }));
      expect(["yes", "no"]).toContain((parsed.choices[0]?.message.parsed as { answer: string } | null)?.answer ?? "");
      const schema = z.object({
        answer: z.enum(["yes", "no"]),
        day: z.iso.date(),
        count: z.int().min(0).max(9).nullable(),
      });
      const typed = await client.chat.completions.parse({
        ...params({ max_tokens: 400 }),
        response_format: zodResponseFormat(schema, "choice"),
      });
      expect(schema.parse(typed.choices[0]?.message.parsed)).toBeDefined();
      const object = await client.chat.completions.create(
        params({ response_format: { type: "json_object" }, max_tokens: 5, logit_bias: {} }),
      );
      expect(object.choices[0]?.message.content?.trimStart()).toStartWith("{");
    });

    test("a stream that is aborted, one that is left, and a time-out free the worker", async () => {
      const client = await clientOf("openai-abort");
      const controller = new AbortController();
      const aborted = await client.chat.completions.create(endless(), { signal: controller.signal });
      await aborted[Symbol.asyncIterator]().next();
      controller.abort();
      const left = await client.chat.completions.create(endless());
      for await (const _ of left) break;
      const { stream: _stream, ...whole } = endless();
      const late = await thrownBy(client.chat.completions.create(whole, { timeout: 200 }));
      expect(late).toBeInstanceOf(OpenAI.APIConnectionTimeoutError);
      const early = new AbortController();
      const call = thrownBy(client.chat.completions.create(whole, { signal: early.signal }));
      setTimeout(() => early.abort(), 50);
      expect(await call).toBeInstanceOf(OpenAI.APIUserAbortError);
      await suite.untilNothingRuns();
    });

    test("errors are the client's classes, with code, param and request id", async () => {
      const client = await clientOf("openai-errors");
      const bad = await thrownBy(client.chat.completions.create(params({ temperature: 9 })));
      expect(bad).toBeInstanceOf(OpenAI.BadRequestError);
      expect(bad).toMatchObject({
        status: 400,
        code: "invalid_value",
        param: "temperature",
        type: "invalid_request_error",
      });
      expect((bad as ApiFailure).requestID).toStartWith("req_");
      const long = await thrownBy(client.chat.completions.create(params({ max_tokens: 10_000_000 })));
      expect(long).toMatchObject({ code: "context_length_exceeded" });
      expect(await thrownBy(client.models.retrieve("nobody"))).toBeInstanceOf(OpenAI.NotFoundError);
      expect(await thrownBy(client.chat.completions.create(params({ model: "nobody" })))).toMatchObject({
        status: 404,
        code: "model_not_found",
      });
      const stranger = client.withOptions({ apiKey: "sk-of-nobody" });
      expect(await thrownBy(stranger.models.list())).toBeInstanceOf(OpenAI.AuthenticationError);
      const platform = client.withOptions({ apiKey: suite.server.adminKey });
      expect(await thrownBy(platform.chat.completions.create(params()))).toBeInstanceOf(OpenAI.PermissionDeniedError);
    });

    test("a 429 is tried again until there is room", async () => {
      const tenant = await suite.tenant("openai-retries");
      await suite.limit(tenant, { concurrency: 1 });
      const { fetch, statuses } = countingFetch();
      const client = new OpenAI({ baseURL: `${suite.url}/v1`, apiKey: tenant.apiKey, maxRetries: 5, fetch });
      using release = await suite.occupyStill(tenant);
      const refused = await thrownBy(client.chat.completions.create(params(), { maxRetries: 0 }));
      expect(refused).toBeInstanceOf(OpenAI.RateLimitError);
      expect((refused as ApiFailure).headers?.get("retry-after")).toMatch(/^\d+$/);
      const waiting = client.chat.completions.create(params());
      while (statuses.filter((status) => status === 429).length < 2) await Bun.sleep(5);
      release();
      expect((await waiting).choices[0]?.message.content).toContain(answer);
      expect(statuses.at(-1)).toBe(200);
      await suite.untilNothingRuns();
    });
  });

  describe("openai: completions", () => {
    test("texts, several, token ids and streams", async () => {
      const client = await clientOf("openai-texts");
      const body = { model: suite.model, temperature: 0, max_tokens: 8 };
      const one = await client.completions.create({
        ...body,
        prompt: "The extension of Jon Vale is",
        logprobs: 2,
        seed: 1,
      });
      expect(one.object).toBe("text_completion");
      // The token that ends an answer is counted and has no probability here.
      const ends = one.choices[0]?.finish_reason === "stop" ? 1 : 0;
      expect(one.choices[0]?.logprobs?.tokens).toHaveLength((one.usage?.completion_tokens as number) - ends);
      const several = await client.completions.create({
        ...body,
        prompt: ["The extension of Jon Vale is", "Mira"],
        n: 2,
      });
      expect(several.choices.map(({ index }) => index)).toEqual([0, 1, 2, 3]);
      const ids = await client.completions.create({ ...body, prompt: [10, 20, 30] });
      expect(ids.usage?.prompt_tokens).toBe(3);
      const stream = await client.completions.create({
        ...body,
        prompt: "The extension of Jon Vale is",
        stream: true,
        stream_options: { include_usage: true },
      });
      const chunks = await Array.fromAsync(stream);
      expect(chunks.map(({ choices }) => choices[0]?.text ?? "").join("")).toBe(one.choices[0]?.text ?? "");
      expect(chunks.at(-1)?.usage?.total_tokens).toBe(one.usage?.total_tokens as number);
      expect(await thrownBy(client.completions.create({ ...body, prompt: "a", suffix: "b" }))).toMatchObject({
        status: 400,
        param: "suffix",
      });
    });
  });

  describe("openai: embeddings", () => {
    test("the client's base64 and plain floats are the same vectors", async () => {
      const client = await clientOf("openai-embeddings");
      const input = [texts("Mira"), texts("Jon")];
      const packed = await client.embeddings.create({ model: suite.model, input });
      const plain = await client.embeddings.create({ model: suite.model, input, encoding_format: "float" });
      expect(packed.data).toHaveLength(2);
      for (const [i, { embedding }] of packed.data.entries()) {
        const exact = plain.data[i]?.embedding ?? [];
        expect(embedding).toHaveLength(exact.length);
        for (const [at, value] of embedding.entries()) expect(value).toBeCloseTo(exact[at] as number, 6);
      }
      expect(packed.usage.prompt_tokens).toBeGreaterThan(0);
      expect(await thrownBy(client.embeddings.create({ model: suite.model, input: "" }))).toMatchObject({
        param: "input",
      });
    });
  });
}

const texts = (name: string): string => `${name} works as a baker.`;
