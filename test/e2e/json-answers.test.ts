/** `response_format` through the official client: answers of the demo model, which was never taught JSON. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { Ajv } from "ajv";
import type OpenAI from "openai";
import { type ChatParams, errorOf, openaiClient } from "../support/openai.ts";
import { killWorker } from "../support/operator.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

setDefaultTimeout(60_000);

const person = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 24 },
    extension: { anyOf: [{ type: "integer" }, { type: "null" }] },
    kinds: { type: "array", items: { enum: ["baker", "driver", "other"] }, minItems: 1, maxItems: 2 },
    home: { $ref: "#/$defs/place" },
  },
  required: ["name", "extension", "kinds", "home"],
  additionalProperties: false,
  $defs: {
    place: {
      type: "object",
      properties: { town: { type: "string", maxLength: 16 }, sure: { type: "boolean" } },
      required: ["town", "sure"],
      additionalProperties: false,
    },
  },
};
const validate = new Ajv().compile(person);

describe("answers in JSON", () => {
  let server: TestServer;
  let client: OpenAI;

  beforeAll(async () => {
    server = await startTestServer({ model: "one-layer" });
    client = openaiClient(server.url, (await server.tenant("json")).apiKey);
  });
  afterAll(async () => await server[Symbol.asyncDispose]());

  const paramsOf = (fields: Partial<ChatParams> = {}): ChatParams => ({
    model: server.model,
    messages: [{ role: "user", content: "Who is Jon Vale?" }],
    documents: [{ text: "- Jon Vale lives in Fairhaven.\n- The extension of Jon Vale is 3057." }],
    temperature: 0,
    max_tokens: 400,
    response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema: person } },
    ...fields,
  });
  const contentsOf = ({ choices }: OpenAI.ChatCompletion): string[] =>
    choices.map(({ message, finish_reason: reason }) => {
      expect(reason).toBe("stop");
      return message.content ?? "";
    });

  test("validate against the schema, at every temperature and in every choice", async () => {
    for (const sampling of [{}, { temperature: 1, seed: 1, n: 4 }, { temperature: 2, seed: 2, n: 4, logprobs: true }]) {
      for (const content of contentsOf(await client.chat.completions.create(paramsOf(sampling)))) {
        expect([content, validate(JSON.parse(content))]).toEqual([content, true]);
      }
    }
  });

  test("are the same, streamed, and the same again", async () => {
    const [whole] = contentsOf(await client.chat.completions.create(paramsOf()));
    const stream = await client.chat.completions.create({ ...paramsOf(), stream: true });
    const chunks = await Array.fromAsync(stream);
    expect(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("")).toBe(whole);
  });

  test("hold against a caller who wants other tokens", async () => {
    const bias = Object.fromEntries(Array.from({ length: 300 }, (_, id) => [String(id), id % 2 === 0 ? 100 : -100]));
    const [content = ""] = contentsOf(await client.chat.completions.create(paramsOf({ logit_bias: bias })));
    expect(validate(JSON.parse(content))).toBe(true);
  });

  test("are parsed by the client's own helper", async () => {
    const answer = await client.chat.completions.parse(paramsOf() as OpenAI.ChatCompletionCreateParamsNonStreaming);
    expect(validate(answer.choices[0]?.message.parsed)).toBe(true);
  });

  test("may be any object, or are cut where max_tokens ends", async () => {
    const anyObject = paramsOf({ response_format: { type: "json_object" }, max_tokens: 300 });
    const { choices } = await client.chat.completions.create(anyObject);
    const [{ message, finish_reason: reason } = { message: { content: "" }, finish_reason: "" }] = choices;
    expect(message.content).toStartWith("{");
    if (reason === "stop") expect(JSON.parse(message.content ?? "")).toBeObject();
    const cut = await client.chat.completions.create(paramsOf({ max_tokens: 4 }));
    expect(cut.choices[0]?.finish_reason).toBe("length");
  });

  test("run beside answers in text, which stay what they are", async () => {
    const text = paramsOf({ response_format: { type: "text" }, max_tokens: 40 });
    const alone = await client.chat.completions.create(text);
    const [beside] = await Promise.all([
      client.chat.completions.create(text),
      client.chat.completions.create(paramsOf()),
    ]);
    expect(beside.choices[0]?.message.content).toBe(alone.choices[0]?.message.content ?? "");
  });

  test("are kept to by a worker that was started again", async () => {
    await killWorker(server);
    const [content = ""] = contentsOf(await client.chat.completions.create(paramsOf()));
    expect(validate(JSON.parse(content))).toBe(true);
  });

  test("a schema that can be read in too many ways ends its own request, and another tenant's go on", async () => {
    const other = openaiClient(server.url, (await server.tenant("other")).apiKey);
    const text = paramsOf({ response_format: { type: "text" }, max_tokens: 40 });
    const alone = await other.chat.completions.create(text);
    const pairOf = (i: number) => String.fromCharCode(97 + (i % 26), 97 + Math.floor(i / 26));
    const patterns = Array.from({ length: 250 }, (_, i) => ({ type: "string", pattern: `^.*${pairOf(i)}.*$` }));
    const hostile = paramsOf({
      response_format: { type: "json_schema", json_schema: { name: "any", schema: { anyOf: patterns } } },
      temperature: 2,
      n: 16,
    });
    const attacks = [hostile, hostile].map((params) => errorOf(client.chat.completions.create(params)));
    const beside = await Promise.all([1, 2, 3].map(() => other.chat.completions.create(text)));
    for (const { choices } of beside) {
      expect(choices[0]?.message.content).toBe(alone.choices[0]?.message.content ?? "");
    }
    const tooAmbiguous = expect.objectContaining({ status: 400, code: "schema_too_ambiguous" });
    expect(await Promise.all(attacks)).toEqual([tooAmbiguous, tooAmbiguous]);
  });

  test("a schema that cannot be kept is the client's error, by its path", async () => {
    const schema = { type: "object", properties: { code: { type: "string", pattern: "(?=[A-Z])" } } };
    const wrong = paramsOf({ response_format: { type: "json_schema", json_schema: { name: "code", schema } } });
    expect(await errorOf(client.chat.completions.create(wrong))).toMatchObject({
      status: 400,
      param: "response_format.json_schema.schema.properties.code.pattern",
    });
  });
});
