/** `llamaindex` with `@llamaindex/openai`: chat, streams, embeddings, and its own index and query engine over both. */
import { beforeAll, describe, expect, test } from "bun:test";
import { OpenAI, OpenAIEmbedding, OpenAIResponses } from "@llamaindex/openai";
import { Document, Settings, VectorStoreIndex } from "llamaindex";
import { z } from "zod";
import { answer, documents, prompt, question, type Suite, texts, thrownBy } from "./suite.ts";

const choice = z.object({ answer: z.enum(["yes", "no"]) });

export function llamaindex(suite: Suite): void {
  describe("llamaindex", () => {
    let fields: {
      model: string;
      apiKey: string;
      baseURL: string;
      temperature: number;
      maxTokens: number;
      maxRetries: number;
    };
    let embedModel: OpenAIEmbedding;

    beforeAll(async () => {
      const { apiKey } = await suite.tenant("llamaindex");
      const baseURL = `${suite.url}/v1`;
      fields = { model: suite.model, apiKey, baseURL, temperature: 0, maxTokens: 60, maxRetries: 0 };
      embedModel = new OpenAIEmbedding({ model: suite.model, apiKey, baseURL, maxRetries: 0 });
    });

    test("chat, streamed chat, completion", async () => {
      const llm = new OpenAI(fields);
      const messages = [
        { role: "system" as const, content: "Answer from the documents." },
        { role: "user" as const, content: [{ type: "text" as const, text: prompt }] },
      ];
      expect((await llm.chat({ messages })).message.content).toContain(answer);
      const chunks = await Array.fromAsync(await llm.chat({ messages, stream: true }));
      expect(chunks.map(({ delta }) => delta).join("")).toContain(answer);
      expect((await llm.complete({ prompt })).text).toContain(answer);
      const completed = await Array.fromAsync(await llm.complete({ prompt, stream: true }));
      expect(completed.map(({ text }) => text).join("")).toContain(answer);
    });

    test("responses, whole and streamed", async () => {
      const { maxTokens: maxOutputTokens, ...rest } = fields;
      // It does not send its temperature: only the first token is in so small a share.
      const llm = new OpenAIResponses({ ...rest, topP: 0.01, maxOutputTokens });
      const messages = [{ role: "user" as const, content: prompt }];
      expect((await llm.chat({ messages })).message.content).toContain(answer);
      const chunks = await Array.fromAsync(await llm.chat({ messages, stream: true }));
      expect(chunks.map(({ delta }) => delta).join("")).toContain(answer);
    });

    test("a format, and fields of our own", async () => {
      const llm = new OpenAI({ ...fields, maxTokens: 400 });
      const messages = [{ role: "user" as const, content: "Is it?" }];
      const { message } = await llm.chat({ messages, responseFormat: choice });
      expect(choice.parse(JSON.parse(String(message.content)))).toBeDefined();
      const beside = new OpenAI({ ...fields, additionalChatOptions: { documents } as object });
      const said = await beside.chat({ messages: [{ role: "user", content: question }] });
      expect(said.message.content).toContain(answer);
    });

    test("embeddings, one and many", async () => {
      const one = await embedModel.getTextEmbedding("Mira Holt");
      const many = await embedModel.getTextEmbeddings(["Mira Holt", "Jon Vale"]);
      expect(many).toHaveLength(2);
      expect(many[0]).toEqual(one);
    });

    test("an index, its query engine, whole and streamed, and a chat engine", async () => {
      const passages = Object.entries(texts).map(([name, text]) => new Document({ text, id_: name }));
      await Settings.withLLM(new OpenAI(fields), () =>
        Settings.withEmbedModel(embedModel, async () => {
          const index = await VectorStoreIndex.fromDocuments(passages);
          const engine = index.asQueryEngine({ similarityTopK: 1 });
          const found = await engine.query({ query: "Where does Jon Vale live?" });
          expect(found.message.content).toContain("Fairhaven");
          expect(found.sourceNodes).toHaveLength(1);
          const chunks = await Array.fromAsync(
            await engine.query({ query: "Where does Jon Vale live?", stream: true }),
          );
          expect(chunks.map(({ delta }) => delta).join("")).toContain("Fairhaven");
          const chat = index.asChatEngine({ similarityTopK: 1 });
          expect((await chat.chat({ message: question })).message.content).not.toBe("");
        }),
      );
    });

    test("errors have their status", async () => {
      const messages = [{ role: "user" as const, content: prompt }];
      const long = new OpenAI({ ...fields, maxTokens: 10_000_000 });
      expect(await thrownBy(long.chat({ messages }))).toMatchObject({ status: 400, code: "context_length_exceeded" });
      const stranger = new OpenAI({ ...fields, apiKey: "sk-nobody" });
      expect(await thrownBy(stranger.chat({ messages }))).toMatchObject({ status: 401 });
    });

    test("a 429 is tried again", async () => {
      const tenant = await suite.tenant("llamaindex limited");
      await suite.limit(tenant, { concurrency: 1 });
      const llm = new OpenAI({ ...fields, apiKey: tenant.apiKey, maxRetries: 6 });
      const messages = [{ role: "user" as const, content: prompt }];
      const said = await Promise.all([llm.chat({ messages }), llm.chat({ messages })]);
      for (const { message } of said) expect(message.content).toContain(answer);
    });
  });
}
