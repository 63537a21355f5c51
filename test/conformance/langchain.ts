/** `@langchain/openai` with `@langchain/core`: chat models, structured output, embeddings, batches, a small retrieval. */
import { beforeAll, describe, expect, test } from "bun:test";
import { Document } from "@langchain/core/documents";
import { AIMessage, HumanMessage, SystemMessage } from "@langchain/core/messages";
import { StringOutputParser } from "@langchain/core/output_parsers";
import { ChatPromptTemplate } from "@langchain/core/prompts";
import { RunnablePassthrough, RunnableSequence } from "@langchain/core/runnables";
import { ChatOpenAI, OpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { z } from "zod";
import { answer, documents, prompt, question, type Suite, texts, thrownBy } from "./suite.ts";

const choice = z.object({ answer: z.enum(["yes", "no"]), count: z.int().min(0).max(9) });

export function langchain(suite: Suite): void {
  describe("@langchain/openai", () => {
    let fields: ConstructorParameters<typeof ChatOpenAI>[0] & object;

    beforeAll(async () => {
      const { apiKey } = await suite.tenant("langchain");
      const configuration = { baseURL: `${suite.url}/v1` };
      fields = { model: suite.model, apiKey, configuration, temperature: 0, maxTokens: 60, maxRetries: 0 };
    });

    test("invoke, with messages and usage, over chat and over responses", async () => {
      for (const useResponsesApi of [false, true]) {
        const chat = new ChatOpenAI({ ...fields, useResponsesApi });
        const said = await chat.invoke(prompt);
        expect(said.text).toContain(answer);
        expect(said.usage_metadata?.output_tokens).toBeGreaterThan(1);
        const next = await chat.invoke([
          new SystemMessage("Answer from the documents."),
          new HumanMessage(prompt),
          said,
          new HumanMessage("What is the extension of Mira Holt?"),
        ]);
        expect(next.text).not.toBe("");
        expect(
          (await chat.invoke([new HumanMessage("Hi"), new AIMessage("Hello."), new HumanMessage(prompt)])).text,
        ).toContain(answer);
      }
    });

    test("stream, with usage at its end, over chat and over responses", async () => {
      for (const useResponsesApi of [false, true]) {
        const chat = new ChatOpenAI({ ...fields, useResponsesApi, streamUsage: true });
        const chunks = await Array.fromAsync(await chat.stream(prompt));
        expect(chunks.length).toBeGreaterThan(2);
        expect(chunks.map(({ text }) => text).join("")).toContain(answer);
        const whole = chunks.slice(1).reduce((sum, chunk) => sum.concat(chunk), chunks[0] as (typeof chunks)[number]);
        expect(whole.usage_metadata?.output_tokens).toBeGreaterThan(1);
      }
    });

    test("batch and parallel calls", async () => {
      const said = await new ChatOpenAI({ ...fields, maxConcurrency: 2 }).batch([prompt, "Hi", prompt]);
      expect(said.map(({ text }) => text.includes(answer))).toEqual([true, false, true]);
    });

    test("structured output by schema and by JSON mode", async () => {
      for (const useResponsesApi of [false, true]) {
        const chat = new ChatOpenAI({ ...fields, useResponsesApi, maxTokens: 400 });
        const structured = chat.withStructuredOutput(choice, { method: "jsonSchema", name: "choice", strict: true });
        expect(choice.parse(await structured.invoke("Is it?"))).toBeDefined();
        const raw = chat.withStructuredOutput(choice, { method: "jsonSchema", includeRaw: true });
        expect((await raw.invoke("Is it?")).parsed).toBeDefined();
      }
      const mode = new ChatOpenAI({ ...fields, modelKwargs: { response_format: { type: "json_object" } } });
      expect((await mode.invoke("Is it?")).text.trimStart()).toStartWith("{");
    });

    test("sampling fields, stops, log probabilities, documents beside the conversation", async () => {
      const chat = new ChatOpenAI({
        ...fields,
        topP: 0.9,
        presencePenalty: 0.1,
        frequencyPenalty: 0.1,
        logprobs: true,
        topLogprobs: 2,
        stop: ["zzz"],
        modelKwargs: { documents, seed: 3 },
      });
      const said = await chat.invoke(question);
      expect(said.text).toContain(answer);
      expect(said.response_metadata.logprobs).toMatchObject({ content: expect.any(Array) });
    });

    test("a retrieval chain over its own embeddings", async () => {
      const { apiKey, configuration } = fields;
      const embeddings = new OpenAIEmbeddings({
        model: suite.model,
        apiKey: apiKey as string,
        configuration: configuration ?? {},
      });
      const passages = Object.entries(texts).map(
        ([source, text]) => new Document({ pageContent: text, metadata: { source } }),
      );
      const vectors = await embeddings.embedDocuments(passages.map(({ pageContent }) => pageContent));
      const retrieve = async (text: string): Promise<string> => {
        const wanted = await embeddings.embedQuery(text);
        const dot = (vector: readonly number[] = []) =>
          vector.reduce((sum, value, i) => sum + value * (wanted[i] ?? 0), 0);
        const ranked = passages.toSorted(
          (a, b) => dot(vectors[passages.indexOf(b)]) - dot(vectors[passages.indexOf(a)]),
        );
        return ranked
          .slice(0, 2)
          .map(({ pageContent }) => pageContent)
          .join("\n");
      };
      const chain = RunnableSequence.from([
        { context: retrieve, question: new RunnablePassthrough<string>() },
        ChatPromptTemplate.fromMessages([["human", "{context}\n\n{question}"]]),
        new ChatOpenAI(fields),
        new StringOutputParser(),
      ]);
      expect(await chain.invoke(question)).toContain(answer);
      expect((await Array.fromAsync(await chain.stream(question))).join("")).toContain(answer);
    });

    test("text completions", async () => {
      const llm = new OpenAI({ ...fields, maxTokens: 8 });
      expect(typeof (await llm.invoke("The extension of Jon Vale is"))).toBe("string");
    });

    test("aborts and errors", async () => {
      const controller = new AbortController();
      const chat = new ChatOpenAI({ ...fields, maxTokens: 20_000, modelKwargs: { ignore_eos: true } });
      const stream = await chat.stream(prompt, { signal: controller.signal });
      const call = thrownBy(
        (async () => {
          for await (const _ of stream) controller.abort();
        })(),
      );
      expect(await call).toBeInstanceOf(Error);
      await suite.untilNothingRuns();
      const long = thrownBy(new ChatOpenAI({ ...fields, maxTokens: 10_000_000 }).invoke(prompt));
      expect(await long).toMatchObject({ name: "ContextOverflowError" });
      const stranger = thrownBy(new ChatOpenAI({ ...fields, apiKey: "sk-nobody" }).invoke(prompt));
      expect(await stranger).toMatchObject({ status: 401 });
    });

    test("a 429 is tried again", async () => {
      const tenant = await suite.tenant("langchain limited");
      await suite.limit(tenant, { concurrency: 1 });
      const chat = new ChatOpenAI({ ...fields, apiKey: tenant.apiKey, maxRetries: 6 });
      const said = await Promise.all([chat.invoke(prompt), chat.invoke(prompt), chat.invoke(prompt)]);
      for (const { text } of said) expect(text).toContain(answer);
    });
  });
}
