import { describe, expect, test } from "bun:test";
import { errorCodes } from "../../../gateway/base/errors.ts";
import { limits } from "../../../gateway/config.ts";
import { fc } from "../../support/fast-check.ts";
import { chatRig, post, question } from "../chat-rig.ts";

const rig = chatRig();
const deep = (depth: number): string => `{"messages":${"[".repeat(depth)}${"]".repeat(depth)}}`;
const withMessage = (message: unknown) => ({ ...question, messages: [message] });
const withFormat = (format: unknown) => ({ ...question, response_format: format });
const withSchema = (schema: unknown, fields: object = {}) =>
  withFormat({ type: "json_schema", json_schema: { name: "answer", schema, ...fields } });
const jsonMode = withFormat({ type: "json_object" });

async function refusal(body: unknown, init: { type?: string } = {}) {
  const response = await post(rig.app, body, init);
  const { error } = (await response.json()) as { error: { message: string; code: string; param: string | null } };
  return { status: response.status, code: error.code, param: error.param, message: error.message };
}

describe("bodies that are not a request", () => {
  test.each<[string, unknown, number, string]>([
    ["nothing", "", 400, "invalid_json"],
    ["half a document", '{"model": "fake-', 400, "invalid_json"],
    ["a number", "17", 400, "invalid_value"],
    ["bytes that are not UTF-8", new Uint8Array([0x22, 0xff, 0xfe, 0x22]), 400, "invalid_json"],
    ["200,000 deep", deep(200_000), 400, "nesting_too_deep"],
    [
      "deep brackets in a string are text",
      JSON.stringify(withMessage({ role: "x", content: "[".repeat(99) })),
      400,
      "invalid_value",
    ],
    ["a million small values", `[${"0,".repeat(1_000_000)}0]`, 400, "invalid_request"],
    ["an empty object", "{}", 400, "missing_field"],
  ])("%s", async (_name, body, status, code) => {
    expect(await refusal(body)).toMatchObject({ status, code });
  });

  test("a large body is refused by its length, before it is read", async () => {
    const headers = { authorization: "Bearer key-a", "content-type": "application/json", "content-length": "50000000" };
    const body = new ReadableStream(
      {
        pull: () => {
          throw new Error("the body was read");
        },
      },
      { highWaterMark: 0 },
    );
    const response = await rig.app.request("/v1/chat/completions", { method: "POST", headers, body });
    expect(response.status).toBe(413);
  });

  test("a large body without a length is refused as soon as it is too large", async () => {
    const chunk = new Uint8Array(1 << 20).fill(0x20);
    let chunks = 0;
    const body = new ReadableStream(
      {
        pull: (controller) => {
          chunks += 1;
          // Who reads a piece owns its memory.
          controller.enqueue(chunk.slice());
        },
      },
      { highWaterMark: 0 },
    );
    const headers = { authorization: "Bearer key-a", "content-type": "application/json" };
    const response = await rig.app.request("/v1/chat/completions", { method: "POST", headers, body });
    expect(response.status).toBe(413);
    expect(chunks).toBeLessThanOrEqual(limits.bodyBytes / chunk.byteLength + 2);
  });

  test("another content type", async () => {
    expect(await refusal("model=x", { type: "application/x-www-form-urlencoded" })).toMatchObject({ status: 415 });
  });
});

describe("fields", () => {
  test.each<[string, unknown, string, string | null]>([
    ["unknown model", { ...question, model: "gpt-4" }, "model_not_found", "model"],
    ["no messages", { ...question, messages: [] }, "invalid_value", "messages"],
    ["messages of another type", { ...question, messages: "hello" }, "invalid_value", "messages"],
    ["content missing", withMessage({ role: "user" }), "invalid_value", "messages[0].content"],
    ["content null", withMessage({ role: "assistant", content: null }), "invalid_value", "messages[0].content"],
    [
      "an image",
      withMessage({ role: "user", content: [{ type: "image_url", image_url: {} }] }),
      "invalid_value",
      "messages[0].content[0].type",
    ],
    ["an unknown role", withMessage({ role: "function", content: "x" }), "invalid_value", "messages[0].role"],
    ["functions", { ...question, functions: [] }, "unsupported_field", "functions"],
    ["a format of no kind", withFormat({ type: "xml" }), "invalid_value", "response_format.type"],
    [
      "a schema without a name",
      withSchema({}, { name: undefined }),
      "missing_field",
      "response_format.json_schema.name",
    ],
    ["a name with a space", withSchema({}, { name: "a b" }), "invalid_value", "response_format.json_schema.name"],
    [
      "a keyword that no grammar holds",
      withSchema({ properties: { a: { type: "string", pattern: "(?=x)" } } }),
      "invalid_value",
      "response_format.json_schema.schema.properties.a.pattern",
    ],
    ["a schema that is none", withSchema("object"), "invalid_value", "response_format.json_schema.schema"],
    ["JSON of at least 3 tokens", { ...jsonMode, min_tokens: 3 }, "invalid_value", "min_tokens"],
    ["JSON without an end", { ...jsonMode, ignore_eos: true }, "invalid_value", "ignore_eos"],
    ["a hot temperature", { ...question, temperature: 2.1 }, "invalid_value", "temperature"],
    ["temperature in words", { ...question, temperature: "1" }, "invalid_value", "temperature"],
    ["a million choices", { ...question, n: 1_000_000 }, "invalid_value", "n"],
    ["half a choice", { ...question, n: 1.5 }, "invalid_value", "n"],
    ["no tokens", { ...question, max_tokens: 0 }, "invalid_value", "max_tokens"],
    ["more tokens than numbers", { ...question, max_tokens: 2 ** 53 }, "invalid_value", "max_tokens"],
    ["two bounds that differ", { ...question, max_completion_tokens: 9 }, "invalid_value", "max_tokens"],
    ["17 stop strings", { ...question, stop: Array.from({ length: 17 }, String) }, "invalid_value", "stop"],
    ["an empty stop string", { ...question, stop: "" }, "invalid_value", "stop"],
    ["top_logprobs alone", { ...question, top_logprobs: 2 }, "invalid_value", "top_logprobs"],
    [
      "stream_options alone",
      { ...question, stream_options: { include_usage: true } },
      "invalid_value",
      "stream_options",
    ],
    ["a bias for no token", { ...question, logit_bias: { "99999": 1 } }, "invalid_value", "logit_bias"],
    ["a bias for a word", { ...question, logit_bias: { the: 1 } }, "invalid_value", "logit_bias.the"],
    ["a stop token of another model", { ...question, stop_token_ids: [99_999] }, "invalid_value", "stop_token_ids"],
    ["a document without text", { ...question, documents: [{ title: "x" }] }, "missing_field", "documents[0].text"],
    [
      "two documents of one id",
      {
        ...question,
        documents: [
          { id: "a", text: "x" },
          { id: "a", text: "y" },
        ],
      },
      "invalid_value",
      "documents[1].id",
    ],
    [
      "a search in nothing",
      { ...question, file_search: { vector_store_ids: [] } },
      "invalid_value",
      "file_search.vector_store_ids",
    ],
    [
      "a key of very many letters",
      { ...question, metadata: { ["k".repeat(100_000)]: "v" } },
      "invalid_value",
      `metadata.${"k".repeat(247)}`,
    ],
    ["more tokens than the context", { ...question, max_tokens: 3_000 }, "context_length_exceeded", "max_tokens"],
    [
      "a prompt longer than the context",
      withMessage({ role: "user", content: "a b ".repeat(2_000) }),
      "context_length_exceeded",
      "messages",
    ],
    [
      "a word of a million letters",
      withMessage({ role: "user", content: "a".repeat(1_000_000) }),
      "context_length_exceeded",
      "messages",
    ],
  ])("%s", async (_name, body, code, param) => {
    const { code: gotCode, param: gotParam, status, message } = await refusal(body);
    expect({ code: gotCode, param: gotParam }).toEqual({ code, param });
    expect(status).toBe(code === "model_not_found" ? 404 : 400);
    expect(message.length).toBeLessThan(500);
  });

  test("an over-long prompt is told both sizes", async () => {
    const { message } = await refusal({ ...question, max_tokens: 2_045 });
    expect(message).toMatch(
      /maximum context length is 2048 tokens.*you requested \d+ tokens \(\d+ in the messages, 2045 in/,
    );
  });

  test("no worker ready yet is 503 with Retry-After", async () => {
    const response = await post(chatRig({ ready: false }).app, question);
    expect([response.status, response.headers.get("retry-after")]).toEqual([503, "2"]);
  });

  test("any JSON at all is answered, and never with a server error", async () => {
    const names = ["model", "messages", "documents", "stop", "n", "logit_bias", "file_search", "spangate", "stream"];
    const value = fc.jsonValue({ maxDepth: 3 });
    const body = fc.oneof(
      value,
      fc.dictionary(fc.constantFrom(...names), value).map((fields) => ({ ...question, ...fields })),
    );
    await fc.assert(
      fc.asyncProperty(body, async (json) => {
        const response = await post(rig.app, JSON.stringify(json));
        expect(response.status).toBeLessThan(500);
        if (response.status === 200) return void (await response.text());
        const { error } = (await response.json()) as { error: { code: string } };
        expect(errorCodes).toContain(error.code as (typeof errorCodes)[number]);
      }),
      { numRuns: 300 },
    );
  });
});
