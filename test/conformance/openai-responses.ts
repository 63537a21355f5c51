/** `openai`: responses, with file search, its events and citations, formats, stored ones and their items. */
import { beforeAll, describe, expect, test } from "bun:test";
import OpenAI from "openai";
import { createStore } from "../support/openai.ts";
import { answer, choiceSchema, longSchema, prompt, question, type Suite, texts, thrownBy } from "./suite.ts";

export function openaiResponses(suite: Suite): void {
  describe("openai: responses", () => {
    let client: OpenAI;
    let params: OpenAI.Responses.ResponseCreateParamsNonStreaming;
    let storeId: string;

    beforeAll(async () => {
      const { apiKey } = await suite.tenant("openai-responses");
      client = new OpenAI({ baseURL: `${suite.url}/v1`, apiKey, maxRetries: 0 });
      storeId = await createStore(client, "people", texts);
      params = {
        model: suite.model,
        input: question,
        temperature: 0,
        max_output_tokens: 40,
        tools: [{ type: "file_search", vector_store_ids: [storeId], max_num_results: 2 }],
        include: ["file_search_call.results"],
      };
    });

    test("searches, answers and cites", async () => {
      const response = await client.responses.create(params);
      expect(response).toMatchObject({
        object: "response",
        status: "completed",
        output_text: expect.stringContaining(answer),
      });
      const [search, message] = response.output;
      expect(search).toMatchObject({ type: "file_search_call", status: "completed", queries: [question] });
      expect(message).toMatchObject({
        content: [{ annotations: [{ type: "file_citation", filename: "vale.md", index: expect.any(Number) }] }],
      });
      expect(response.usage?.total_tokens).toBeGreaterThan(0);
    });

    test("events of a stream are numbered and add up", async () => {
      const stream = client.responses.stream({ ...params, stream: true });
      const kinds: string[] = [];
      const numbers: number[] = [];
      for await (const { type, sequence_number: number } of stream) {
        kinds.push(type);
        numbers.push(number);
      }
      expect(numbers).toEqual(numbers.map((_, index) => index));
      expect([kinds[0], kinds.at(-1)]).toEqual(["response.created", "response.completed"]);
      for (const kind of ["in_progress", "searching", "completed"]) {
        expect(kinds).toContain(`response.file_search_call.${kind}`);
      }
      expect((await stream.finalResponse()).output_text).toContain(answer);
    });

    test("formats are parsed by the client", async () => {
      const format = { type: "json_schema", name: "choice", strict: true, schema: choiceSchema } as const;
      const body = { model: suite.model, input: prompt, temperature: 0, max_output_tokens: 400 };
      const response = await client.responses.parse({ ...body, text: { format } });
      expect(["yes", "no"]).toContain((response.output_parsed as { answer: string } | null)?.answer ?? "");
      expect(response.text?.format).toMatchObject({ type: "json_schema", name: "choice" });
    });

    test("a conversation goes on by the earlier response, by its output, and by its items", async () => {
      const first = await client.responses.create(params);
      const input = "What is the extension of Mira Holt?";
      const followed = await client.responses.create({ ...params, input, previous_response_id: first.id });
      expect(followed.output_text).toContain("4821");
      const { include: _include, ...whole } = params;
      const messages: OpenAI.Responses.ResponseInput = [{ role: "user", content: question }];
      const sent = await client.responses.create({
        ...whole,
        input: [
          ...messages,
          ...(first.output as OpenAI.Responses.ResponseInputItem[]),
          { role: "user", content: input },
        ],
      });
      expect(sent.output_text).toBe(followed.output_text);
      const references = first.output.flatMap(({ id }) =>
        id === undefined ? [] : [{ type: "item_reference" as const, id }],
      );
      const referred = await client.responses.create({
        ...whole,
        input: [...messages, ...references, { role: "user", content: input }],
      });
      expect(referred.output_text).toBe(followed.output_text);
      const items = await Array.fromAsync(client.responses.inputItems.list(followed.id, { order: "asc", limit: 2 }));
      expect(new Set(items.map(({ id }) => id)).size).toBe(4);
    });

    test("the tokens of an input are counted as the response then has them", async () => {
      const { model, input, tools } = params;
      const body = { model: model ?? null, input: input ?? null, tools: tools ?? null, instructions: "Answer." };
      const { object, input_tokens: counted } = await client.responses.inputTokens.count(body);
      expect(object).toBe("response.input_tokens");
      const { usage } = await client.responses.create({ ...params, instructions: "Answer." });
      expect(counted).toBe(usage?.input_tokens as number);
    });

    test("probabilities of tokens, whole and streamed, and their answer in the next turn", async () => {
      const include: OpenAI.Responses.ResponseIncludable[] = ["message.output_text.logprobs"];
      const body = { ...params, input: prompt, tools: [], include, top_logprobs: 2 };
      const logprobsOf = ({ output }: OpenAI.Responses.Response) =>
        output.flatMap((item) =>
          item.type === "message"
            ? item.content.flatMap((part) => (part.type === "output_text" ? (part.logprobs ?? []) : []))
            : [],
        );
      const whole = await client.responses.create(body);
      const told = logprobsOf(whole);
      expect(told.map(({ token }) => token).join("")).toContain(answer);
      for (const { top_logprobs: top } of told) expect(top).toHaveLength(2);
      const stream = client.responses.stream({ ...body, stream: true });
      const heard: string[] = [];
      stream.on("response.output_text.delta", ({ logprobs }) => heard.push(...logprobs.map(({ token }) => token)));
      expect(logprobsOf(await stream.finalResponse()).map(({ token }) => token)).toEqual(
        told.map(({ token }) => token),
      );
      expect(heard).toEqual(told.slice(0, heard.length).map(({ token }) => token));
      expect(heard.join("")).toContain(answer);
      const turn = { role: "user" as const, content: question };
      const input = [turn, ...(whole.output as OpenAI.Responses.ResponseInputItem[]), turn];
      expect((await client.responses.create({ ...body, input })).status).toBe("completed");
    });

    test("stored ones are read, deleted, and gone", async () => {
      const { id } = await client.responses.create({ ...params, metadata: { a: "b" } });
      expect(await client.responses.retrieve(id)).toMatchObject({ id, metadata: { a: "b" } });
      expect(await thrownBy(client.responses.cancel(id))).toBeInstanceOf(OpenAI.BadRequestError);
      await client.responses.delete(id);
      expect(await thrownBy(client.responses.retrieve(id))).toBeInstanceOf(OpenAI.NotFoundError);
      const kept = await client.responses.create({ ...params, store: false });
      expect(await thrownBy(client.responses.retrieve(kept.id))).toBeInstanceOf(OpenAI.NotFoundError);
    });

    test("abort, and errors by their field", async () => {
      const text = { format: { type: "json_schema" as const, name: "numbers", schema: longSchema } };
      const stream = client.responses.stream({ ...params, stream: true, max_output_tokens: 5_000, text });
      stream.once("response.created", () => stream.abort());
      expect(await thrownBy(stream.finalResponse())).toBeInstanceOf(OpenAI.APIUserAbortError);
      await suite.untilNothingRuns();
      const unknown = { ...params, tools: [{ type: "file_search" as const, vector_store_ids: ["vs_nobody"] }] };
      expect(await thrownBy(client.responses.create(unknown))).toMatchObject({
        status: 404,
        param: "tools[0].vector_store_ids",
      });
      expect(await thrownBy(client.responses.create({ ...params, background: true }))).toMatchObject({
        status: 400,
        param: "background",
      });
    });
  });
}
