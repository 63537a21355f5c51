/** `@anthropic-ai/sdk`: messages whole and streamed, documents and search results with citations, caching, tokens, errors. */
import { beforeAll, describe, expect, test } from "bun:test";
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";
import { answer, choiceSchema, countingFetch, longSchema, question, type Suite, texts, thrownBy } from "./suite.ts";

const document = (data: string, fields: Partial<Anthropic.DocumentBlockParam> = {}): Anthropic.DocumentBlockParam => ({
  type: "document",
  source: { type: "text", media_type: "text/plain", data },
  ...fields,
});

export function anthropic(suite: Suite): void {
  describe("@anthropic-ai/sdk", () => {
    let client: Anthropic;
    // The client's types have no temperature: it is what the server takes beyond them.
    type Params = Anthropic.MessageCreateParamsNonStreaming & { readonly temperature: number };
    const params = (
      blocks: readonly Anthropic.ContentBlockParam[],
      fields: Partial<Anthropic.MessageCreateParamsNonStreaming> = {},
    ): Params => ({
      model: suite.model,
      max_tokens: 40,
      temperature: 0,
      messages: [{ role: "user", content: [...blocks, { type: "text", text: question }] }],
      ...fields,
    });
    const textOf = ({ content }: Anthropic.Message): string =>
      content.map((block) => (block.type === "text" ? block.text : "")).join("");
    const citationsOf = ({ content }: Anthropic.Message): readonly Anthropic.TextCitation[] =>
      content.flatMap((block) => (block.type === "text" ? (block.citations ?? []) : []));
    const cited = { citations: { enabled: true } };

    beforeAll(async () => {
      const { apiKey } = await suite.tenant("anthropic");
      client = new Anthropic({ baseURL: suite.url, apiKey, maxRetries: 0 });
    });

    test("documents with citations, whole and streamed, and the next turn with both", async () => {
      const blocks = Object.entries(texts).map(([title, text]) => document(text, { title, ...cited }));
      const first = await client.messages.create(params(blocks));
      expect(textOf(first)).toContain(answer);
      expect(first).toMatchObject({ type: "message", role: "assistant", stop_reason: "end_turn" });
      expect(first._request_id).toStartWith("req_");
      const [citation, ...others] = citationsOf(first);
      expect(others).toEqual([]);
      expect(citation).toMatchObject({ type: "char_location", document_index: 1, document_title: "vale.md" });
      if (citation?.type !== "char_location") throw new Error("no citation of characters");
      const { start_char_index: start, end_char_index: end } = citation;
      expect(texts["vale.md"].slice(start, end)).toBe(citation.cited_text);
      const stream = client.messages.stream(params(blocks));
      const deltas: string[] = [];
      const heard: Anthropic.TextCitation[] = [];
      stream.on("text", (delta) => deltas.push(delta)).on("citation", (each) => heard.push(each));
      const final = await stream.finalMessage();
      expect(deltas.length).toBeGreaterThan(1);
      expect(deltas.join("")).toBe(textOf(first));
      expect(heard).toEqual([...citationsOf(first)]);
      expect(citationsOf(final)).toEqual(citationsOf(first));
      expect(final.usage.cache_read_input_tokens).toBeGreaterThan(0);
      const { messages, ...rest } = params(blocks);
      const next = await client.messages.create({
        ...rest,
        messages: [
          ...messages,
          { role: "assistant", content: first.content },
          { role: "user", content: "What is the extension of Mira Holt?" },
        ],
      });
      expect(textOf(next)).toContain("4821");
    });

    test("search results, content documents, a system text, breakpoints with a ttl", async () => {
      const results = Object.entries(texts).map(([title, text]): Anthropic.SearchResultBlockParam => {
        const source = `https://people.example/${title}`;
        return { type: "search_result", source, title, content: [{ type: "text", text }], ...cited };
      });
      const system: Anthropic.TextBlockParam[] = [
        { type: "text", text: "Answer from the documents.", cache_control: { type: "ephemeral", ttl: "1h" } },
      ];
      const found = await client.messages.create(params(results, { system, metadata: { user_id: "u" } }));
      expect(textOf(found)).toContain(answer);
      expect(citationsOf(found)).toMatchObject([
        { type: "search_result_location", search_result_index: 1, source: "https://people.example/vale.md" },
      ]);
      expect(found.usage.cache_creation?.ephemeral_1h_input_tokens).toBe(found.usage.cache_creation_input_tokens ?? -1);
      const again = await client.messages.create(params(results.toReversed(), { system }));
      expect(again.usage.cache_read_input_tokens).toBeGreaterThan(found.usage.cache_read_input_tokens ?? 0);
      const content = Object.values(texts).map((text) => ({ type: "text" as const, text }));
      const parts = await client.messages.create(
        params([document("", { source: { type: "content", content }, ...cited })]),
      );
      expect(citationsOf(parts)).toMatchObject([
        { type: "content_block_location", start_block_index: 1, end_block_index: 2 },
      ]);
    });

    test("formats are parsed by the client, whole, streamed and by its beta", async () => {
      const schema = z.object({ answer: z.enum(["yes", "no"]), day: z.iso.date(), count: z.int().nullable() });
      const body = { ...params([], { max_tokens: 300 }), output_config: { format: zodOutputFormat(schema) } };
      const whole = await client.messages.parse(body);
      expect(schema.parse(whole.parsed_output)).toEqual(JSON.parse(textOf(whole)));
      const streamed = await client.messages.stream(body).finalMessage();
      expect(streamed.parsed_output).toEqual(whole.parsed_output);
      const format = { type: "json_schema" as const, schema: choiceSchema };
      const plain = await client.beta.messages.create({ ...body, output_config: { format } });
      const [block] = plain.content;
      expect(block?.type === "text" ? Object.keys(JSON.parse(block.text)) : []).toEqual(["answer", "count"]);
      const beta = await client.beta.messages.parse(body);
      expect(beta.parsed_output).toEqual(whole.parsed_output);
    });

    test("tokens are counted as a message has them", async () => {
      const blocks = Object.values(texts).map((text) => document(text));
      const { model, messages } = params(blocks);
      const { input_tokens: counted } = await client.messages.countTokens({ model, messages, system: "Answer." });
      const { usage } = await client.messages.create({ ...params(blocks), system: "Answer." });
      const { input_tokens: rest, cache_read_input_tokens: read, cache_creation_input_tokens: written } = usage;
      expect(counted).toBe(rest + (read ?? 0) + (written ?? 0));
    });

    test("raw events of a stream, stop sequences and max_tokens", async () => {
      const blocks = Object.values(texts).map((text) => document(text));
      const stream = await client.messages.create({ ...params(blocks), stream: true });
      const kinds = (await Array.fromAsync(stream)).map(({ type }) => type);
      expect(kinds.slice(0, 2)).toEqual(["message_start", "content_block_start"]);
      expect(kinds.slice(-3)).toEqual(["content_block_stop", "message_delta", "message_stop"]);
      const stopped = await client.messages.create(params(blocks, { stop_sequences: ["305"] }));
      expect(stopped).toMatchObject({ stop_reason: "stop_sequence", stop_sequence: "305" });
      const short = await client.messages.create(params(blocks, { max_tokens: 1 }));
      expect(short).toMatchObject({ stop_reason: "max_tokens", usage: { output_tokens: 1 } });
    });

    test("aborts free the worker", async () => {
      const format = { type: "json_schema" as const, schema: longSchema };
      const endless = { ...params([], { max_tokens: 20_000 }), output_config: { format } };
      const stream = client.messages.stream(endless);
      stream.once("text", () => stream.abort());
      expect(await thrownBy(stream.finalMessage())).toBeInstanceOf(Anthropic.APIUserAbortError);
      const left = await client.messages.create({ ...endless, stream: true });
      for await (const _ of left) break;
      await suite.untilNothingRuns();
    });

    test("errors are the client's classes", async () => {
      const unknown = await thrownBy(client.messages.create({ ...params([]), model: "nobody" }));
      expect(unknown).toBeInstanceOf(Anthropic.NotFoundError);
      expect(unknown).toMatchObject({ type: "not_found_error", requestID: expect.stringMatching(/^req_/) });
      const stranger = client.withOptions({ apiKey: "sk-of-nobody" });
      expect(await thrownBy(stranger.messages.create(params([])))).toBeInstanceOf(Anthropic.AuthenticationError);
      const image = { type: "image", source: { type: "url", url: "https://a.example/b.png" } } as const;
      const refused = await thrownBy(client.messages.create(params([image])));
      expect(refused).toBeInstanceOf(Anthropic.BadRequestError);
      expect((refused as Error).message).toContain("messages[0].content[0].type");
      const long = client.messages.stream(params([], { max_tokens: 10_000_000 }));
      expect(await thrownBy(long.finalMessage())).toMatchObject({ status: 400, type: "invalid_request_error" });
    });

    test("a 429 is tried again until there is room", async () => {
      const tenant = await suite.tenant("anthropic limited");
      await suite.limit(tenant, { concurrency: 1 });
      const { fetch, statuses } = countingFetch();
      const limited = new Anthropic({ baseURL: suite.url, apiKey: tenant.apiKey, maxRetries: 5, fetch });
      using release = await suite.occupyStill(tenant);
      const refused = await thrownBy(limited.messages.create(params([]), { maxRetries: 0 }));
      expect(refused).toBeInstanceOf(Anthropic.RateLimitError);
      const waiting = limited.messages.create(params([document(texts["vale.md"])]));
      while (statuses.filter((status) => status === 429).length < 2) await Bun.sleep(5);
      release();
      expect(textOf(await waiting)).toContain(answer);
      await suite.untilNothingRuns();
    });

    test("the model is listed", async () => {
      const models = await Array.fromAsync(client.models.list());
      expect(models.map(({ id }) => id)).toContain(suite.model);
      const info = await client.models.retrieve(suite.model);
      expect(info).toMatchObject({ id: suite.model, type: "model", display_name: suite.model });
      expect(Date.parse(info.created_at)).toBeLessThanOrEqual(Date.now());
      expect(info.max_input_tokens).toBeGreaterThan(1_000);
      expect(await thrownBy(client.models.retrieve("nobody"))).toBeInstanceOf(Anthropic.NotFoundError);
    });
  });
}
