/** `ai` with `@ai-sdk/openai-compatible`, and with `@ai-sdk/openai` over responses and over chat. */
import { beforeAll, describe, expect, test } from "bun:test";
import { createOpenAI, type OpenAIProvider } from "@ai-sdk/openai";
import { createOpenAICompatible, type OpenAICompatibleProvider } from "@ai-sdk/openai-compatible";
import {
  APICallError,
  embed,
  embedMany,
  generateText,
  jsonSchema,
  type LanguageModel,
  Output,
  RetryError,
  streamText,
} from "ai";
import { z } from "zod";
import { createStore, openaiClient } from "../support/openai.ts";
import { answer, countingFetch, longSchema, prompt, question, type Suite, texts, thrownBy } from "./suite.ts";

const choice = z.object({
  answer: z.enum(["yes", "no"]),
  count: z.int().min(0).max(9),
  rating: z.number().min(0).max(1),
  day: z.iso.date(),
  code: z.string().regex(/^[A-Z]{2}\d{2}$/),
  place: z.discriminatedUnion("kind", [
    z.object({ kind: z.literal("room"), floor: z.int().positive().max(40) }),
    z.object({ kind: z.literal("home"), remote: z.boolean().nullable() }),
  ]),
});
const settings = { temperature: 0, maxOutputTokens: 40, maxRetries: 0 };

interface Providers {
  readonly compatible: OpenAICompatibleProvider;
  readonly openai: OpenAIProvider;
  readonly statuses: readonly number[];
}

export function aiSdk(suite: Suite): void {
  const providersOf = (apiKey: string): Providers => {
    const { fetch, statuses } = countingFetch();
    const baseURL = `${suite.url}/v1`;
    const compatible = createOpenAICompatible({
      name: "spangate",
      baseURL,
      apiKey,
      fetch,
      includeUsage: true,
      supportsStructuredOutputs: true,
    });
    return { compatible, openai: createOpenAI({ baseURL, apiKey, fetch }), statuses };
  };

  const models: Readonly<Record<string, (providers: Providers) => LanguageModel>> = {
    "@ai-sdk/openai-compatible": ({ compatible }) => compatible(suite.model),
    "@ai-sdk/openai over responses": ({ openai }) => openai(suite.model),
    "@ai-sdk/openai over chat": ({ openai }) => openai.chat(suite.model),
  };
  for (const [name, modelOf] of Object.entries(models)) {
    describe(`ai with ${name}`, () => {
      let providers: Providers;
      let model: LanguageModel;
      let apiKey: string;
      beforeAll(async () => {
        // The SDK tells what it leaves out of a request; the suite looks at the requests.
        Object.assign(globalThis, { AI_SDK_LOG_WARNINGS: false });
        apiKey = (await suite.tenant(name)).apiKey;
        providers = providersOf(apiKey);
        model = modelOf(providers);
      });

      test("generateText: text, usage, reason, and the next turn", async () => {
        const first = await generateText({ ...settings, model, prompt });
        expect(first.text).toContain(answer);
        expect(first.finishReason).toBe("stop");
        expect(first.usage.totalTokens).toBe((first.usage.inputTokens ?? 0) + (first.usage.outputTokens ?? 0));
        const second = await generateText({
          ...settings,
          model,
          system: "Answer from the documents.",
          messages: [
            { role: "user", content: prompt },
            ...first.response.messages,
            { role: "user", content: [{ type: "text", text: "What is the extension of Mira Holt?" }] },
          ],
          topP: 0.9,
        });
        expect(second.text).not.toBe("");
        const short = await generateText({ ...settings, model, prompt, maxOutputTokens: 1 });
        expect(short.finishReason).toBe("length");
        const again = await generateText({ ...settings, model, prompt });
        expect(again.usage.inputTokenDetails.cacheReadTokens).toBeGreaterThan(0);
      });

      test("streamText: deltas, usage, reason", async () => {
        const stream = streamText({ ...settings, model, prompt });
        const deltas = await Array.fromAsync(stream.textStream);
        expect(deltas.length).toBeGreaterThan(1);
        expect(deltas.join("")).toBe((await generateText({ ...settings, model, prompt })).text);
        expect((await stream.usage).outputTokens).toBeGreaterThan(1);
        expect(await stream.finishReason).toBe("stop");
      });

      test("objects, whole and as they come", async () => {
        const output = Output.object({ schema: choice });
        const options = { ...settings, maxOutputTokens: 400, model, prompt: "Is it?", output };
        expect(choice.parse((await generateText(options)).output)).toBeDefined();
        const stream = streamText(options);
        expect((await Array.fromAsync(stream.partialOutputStream)).length).toBeGreaterThan(0);
        expect(choice.parse(await stream.output)).toBeDefined();
      });

      test("an abort ends the call and frees the worker", async () => {
        const controller = new AbortController();
        const abortSignal = controller.signal;
        const output = Output.object({ schema: jsonSchema<{ numbers: number[] }>(longSchema) });
        const endless = { ...settings, model, prompt: "Names:", maxOutputTokens: 20_000, output };
        const call = thrownBy(generateText({ ...endless, abortSignal }));
        setTimeout(() => controller.abort(), 10);
        expect(await call).toMatchObject({ name: "AbortError" });
        const left = new AbortController();
        const stream = streamText({ ...endless, abortSignal: left.signal, onError: () => undefined });
        for await (const _ of stream.textStream) left.abort();
        await suite.untilNothingRuns();
      });

      test("errors keep status, body and whether to try again", async () => {
        const refused = await thrownBy(generateText({ ...settings, model, prompt, maxOutputTokens: 10_000_000 }));
        if (!APICallError.isInstance(refused)) throw refused;
        expect(refused).toMatchObject({ statusCode: 400, isRetryable: false });
        expect(refused.message).toContain("maximum context length");
        expect(refused.data).toMatchObject({ error: { code: "context_length_exceeded" } });
        const stranger = await thrownBy(
          generateText({ ...settings, model: modelOf(providersOf("sk-nobody")), prompt }),
        );
        expect(stranger).toMatchObject({ statusCode: 401, isRetryable: false });
      });

      test("a 429 is tried again after the time that it names", async () => {
        const tenant = await suite.tenant(`${name} limited`);
        await suite.limit(tenant, { requests_per_minute: 60 });
        const limited = providersOf(tenant.apiKey);
        const short = { ...settings, model: modelOf(limited), prompt, maxOutputTokens: 1 };
        // The limit is taken at once by requests that cost nothing.
        const headers = { authorization: `Bearer ${tenant.apiKey}` };
        const spend = () => fetch(`${suite.url}/v1/chat/completions`, { method: "POST", headers });
        while ((await spend()).status !== 429);
        const refused = await thrownBy(generateText(short));
        expect(refused).toMatchObject({ statusCode: 429, isRetryable: true });
        const spent = await thrownBy(generateText({ ...short, maxRetries: 0 }));
        expect(RetryError.isInstance(spent) || APICallError.isInstance(spent)).toBe(true);
        expect((await generateText({ ...short, maxRetries: 4 })).text).not.toBe("");
        expect(limited.statuses.slice(2)).toEqual(expect.arrayContaining([429, 200]));
      });
    });
  }

  describe("ai: what a provider has of its own", () => {
    test("embed and embedMany", async () => {
      const { compatible, openai } = providersOf((await suite.tenant("ai embeddings")).apiKey);
      for (const model of [compatible.embeddingModel(suite.model), openai.embeddingModel(suite.model)]) {
        const one = await embed({ model, value: "Mira Holt", maxRetries: 0 });
        expect(one.usage.tokens).toBeGreaterThan(0);
        const { embeddings } = await embedMany({ model, values: ["Mira Holt", "Jon Vale"], maxRetries: 0 });
        expect(embeddings).toHaveLength(2);
        expect(embeddings[0]).toEqual(one.embedding);
      }
    });

    test("completions", async () => {
      const { compatible, openai } = providersOf((await suite.tenant("ai completions")).apiKey);
      for (const model of [compatible.completionModel(suite.model), openai.completion(suite.model)]) {
        const whole = await generateText({ ...settings, model, prompt });
        const stream = streamText({ ...settings, model, prompt });
        expect((await Array.fromAsync(stream.textStream)).join("")).toBe(whole.text);
      }
    });

    test("file search, its citations as sources", async () => {
      const { apiKey } = await suite.tenant("ai file search");
      const { openai } = providersOf(apiKey);
      const storeId = await createStore(openaiClient(suite.url, apiKey), "people", texts);
      const tools = { file_search: openai.tools.fileSearch({ vectorStoreIds: [storeId], maxNumResults: 2 }) };
      const providerOptions = { openai: { include: ["file_search_call.results"] } };
      const options = { ...settings, model: openai(suite.model), tools, providerOptions, prompt: question };
      const found = await generateText(options);
      expect(found.text).toContain(answer);
      const vale = expect.objectContaining({ sourceType: "document", filename: "vale.md" });
      expect(found.sources).toContainEqual(vale);
      const stream = streamText(options);
      expect((await Array.fromAsync(stream.textStream)).join("")).toBe(found.text);
      expect(await stream.sources).toContainEqual(vale);
      const next = await generateText({
        ...options,
        prompt: undefined as never,
        messages: [
          { role: "user", content: question },
          ...found.response.messages,
          { role: "user", content: "What is the extension of Mira Holt?" },
        ],
      });
      expect(next.text).toContain("4821");
    });

    test("probabilities of tokens, over responses and over chat", async () => {
      const { openai } = providersOf((await suite.tenant("ai logprobs")).apiKey);
      const providerOptions = { openai: { logprobs: 2 } };
      for (const model of [openai(suite.model), openai.chat(suite.model)]) {
        const said = await generateText({ ...settings, model, prompt, providerOptions });
        expect(JSON.stringify(said.providerMetadata?.openai?.logprobs)).toContain("top_logprobs");
      }
    });

    test("documents beside the conversation, as a field of the compatible provider", async () => {
      const { compatible } = providersOf((await suite.tenant("ai documents")).apiKey);
      const documents = Object.values(texts).map((text) => ({ text }));
      const providerOptions = { spangate: { documents } };
      const said = await generateText({
        ...settings,
        model: compatible(suite.model),
        prompt: question,
        providerOptions,
      });
      expect(said.text).toContain(answer);
    });
  });
}
