/** Every client, in the middle of a stream whose worker is lost: it throws, and its next call is answered. */
import { describe, expect, test } from "bun:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { ChatOpenAI } from "@langchain/openai";
import { OpenAI as LlamaIndexOpenAI } from "@llamaindex/openai";
import { streamText } from "ai";
import OpenAI from "openai";
import type { ChatStreamParams } from "../support/openai.ts";
import { answer, longSchema, prompt, type Suite, thrownBy } from "./suite.ts";

export function lostWorker(suite: Suite): void {
  describe("a worker that is lost", () => {
    test("ends every client's stream with an error, and nobody's next call", async () => {
      const { apiKey } = await suite.tenant("lost worker");
      const baseURL = `${suite.url}/v1`;
      const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
      const { model } = suite;
      const [maxTokens, messages] = [20_000, [{ role: "user" as const, content: "Names:" }]];
      const endless = { ignore_eos: true };
      const begun: Promise<void>[] = [];
      /** Reads until it throws; `begun` knows when the first text has come. */
      const read = <Chunk>(open: () => Promise<AsyncIterable<Chunk>>, isText: (chunk: Chunk) => boolean) => {
        const { promise, resolve } = Promise.withResolvers<void>();
        begun.push(promise);
        const reading = async () => {
          for await (const chunk of await open()) if (isText(chunk)) resolve();
        };
        return thrownBy(reading());
      };
      const chat: ChatStreamParams = { model, messages, max_tokens: maxTokens, stream: true, ...endless };
      const compatible = createOpenAICompatible({ name: "spangate", baseURL, apiKey });
      const langchain = new ChatOpenAI({
        model,
        apiKey,
        maxTokens,
        maxRetries: 0,
        configuration: { baseURL },
        modelKwargs: endless,
      });
      const llamaindex = new LlamaIndexOpenAI({
        model,
        apiKey,
        baseURL,
        maxTokens,
        maxRetries: 0,
        additionalChatOptions: endless as object,
      });
      const ends = [
        read(
          () => client.chat.completions.create(chat),
          ({ choices }) => Boolean(choices[0]?.delta.content),
        ),
        read(
          () =>
            client.responses.create({
              ...{ model, input: "Names:", max_output_tokens: maxTokens, stream: true },
              text: { format: { type: "json_schema", name: "numbers", schema: longSchema } },
            }),
          ({ type }) => type === "response.output_text.delta",
        ),
        read(
          async () => {
            const providerOptions = { spangate: endless };
            const options = { model: compatible(model), messages, maxOutputTokens: maxTokens, maxRetries: 0 };
            const { fullStream } = streamText({ ...options, providerOptions, onError: () => undefined });
            return fullStream;
          },
          (part) => {
            if (part.type === "error") throw part.error;
            return part.type === "text-delta";
          },
        ),
        read(
          () => langchain.stream("Names:"),
          ({ text }) => text !== "",
        ),
        read(
          () => llamaindex.chat({ messages, stream: true }),
          ({ delta }) => delta !== "",
        ),
      ];
      await Promise.all(begun);
      const workers = await suite.server.admin.json<{ data: { pid: number }[] }>("GET", "/admin/v1/workers");
      for (const { pid } of workers.data) process.kill(pid, "SIGKILL");
      for (const end of ends) expect(String(await end)).toMatch(/worker|lost/i);
      const next = { model, messages: [{ role: "user" as const, content: prompt }], temperature: 0, max_tokens: 40 };
      expect((await client.chat.completions.create(next)).choices[0]?.message.content).toContain(answer);
      await suite.untilNothingRuns();
    });
  });
}
