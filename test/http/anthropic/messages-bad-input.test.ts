import { describe, expect, test } from "bun:test";
import { chatRig, post } from "../chat-rig.ts";

const rig = chatRig();
const question = { model: "fake-model", max_tokens: 4, messages: [{ role: "user", content: "the thing" }] };
const block = (fields: object) => ({ ...question, messages: [{ role: "user", content: [fields] }] });
const document = (fields: object) => block({ type: "document", ...fields });
const plain = { type: "text", media_type: "text/plain", data: "x" };

interface ErrorAnswer {
  type: string;
  error: { type: string; message: string; details: { error_code: string; param: string | null } };
  request_id: string;
}

async function refusal(body: unknown, init: Parameters<typeof post>[2] = {}) {
  const response = await post(rig.app, body, { path: "/v1/messages", ...init });
  const answer = (await response.json()) as ErrorAnswer;
  expect(answer.type).toBe("error");
  expect(response.headers.get("request-id")).toBe(answer.request_id);
  const { type, message, details } = answer.error;
  return { status: response.status, type, message, code: details.error_code, param: details.param };
}

describe("fields", () => {
  const image = { type: "image", source: { type: "base64", media_type: "image/png", data: "" } };
  const many = (count: number) => Array.from({ length: count }, () => ({ type: "document", source: plain }));
  const cached = { type: "text", text: "x", cache_control: { type: "ephemeral" } };
  const begun = { ...question, messages: [...question.messages, { role: "assistant", content: "It" }] };
  const look = { name: "look", input_schema: { type: "object" } };
  const withFormat = (format: object) => ({ ...question, output_config: { format } });
  test.each<[string, unknown, string, string]>([
    ["no max_tokens", { ...question, max_tokens: undefined }, "missing_field", "max_tokens"],
    ["no tokens", { ...question, max_tokens: 0 }, "invalid_value", "max_tokens"],
    ["an image", block(image), "invalid_value", "messages[0].content[0].type"],
    [
      "a tool's result that nobody asked for",
      block({ type: "tool_result", tool_use_id: "x" }),
      "invalid_value",
      "messages[0].content[0].tool_use_id",
    ],
    [
      "a PDF without bytes",
      document({ source: { type: "base64", media_type: "application/pdf", data: "" } }),
      "invalid_value",
      "messages[0].content[0].source.data",
    ],
    [
      "an address",
      document({ source: { type: "url", url: "https://x" } }),
      "invalid_value",
      "messages[0].content[0].source.type",
    ],
    [
      "citations",
      document({ source: plain, citations: { enabled: "yes" } }),
      "invalid_value",
      "messages[0].content[0].citations.enabled",
    ],
    [
      "an unknown ttl",
      block({ ...cached, cache_control: { type: "ephemeral", ttl: "1d" } }),
      "invalid_value",
      "messages[0].content[0].cache_control.ttl",
    ],
    [
      "five breakpoints",
      { ...question, messages: [{ role: "user", content: [cached, cached, cached, cached, cached] }] },
      "invalid_value",
      "cache_control",
    ],
    ["a role", { ...question, messages: [{ role: "tool", content: "x" }] }, "invalid_value", "messages[0].role"],
    ["no message", { ...question, messages: [] }, "invalid_value", "messages"],
    [
      "a system message at the end",
      { ...question, messages: [...question.messages, { role: "system", content: "x" }] },
      "invalid_value",
      "messages[1].role",
    ],
    [
      "a call that an answer that has begun must make",
      { ...begun, tools: [look], tool_choice: { type: "any" } },
      "invalid_value",
      "tool_choice",
    ],
    [
      "a format of an answer that has begun",
      { ...begun, output_config: { format: { type: "json_schema", schema: {} } } },
      "invalid_value",
      "output_config.format",
    ],
    [
      "too many documents",
      { ...question, messages: [1, 2, 3].map(() => ({ role: "user", content: many(200) })) },
      "invalid_value",
      "messages",
    ],
    [
      "a document of an assistant",
      { ...question, messages: [{ role: "assistant", content: many(1) }, ...question.messages] },
      "invalid_value",
      "messages[0].content[0].type",
    ],
    [
      "a server's tool",
      { ...question, tools: [{ type: "bash_20250124", name: "bash" }] },
      "invalid_value",
      "tools[0].type",
    ],
    ["a thread", { ...question, thread: { type: "create" } }, "thread_unsupported_request", "thread"],
    ["a container", { ...question, container: "c" }, "unsupported_field", "container"],
    [
      "a task's budget",
      { ...question, output_config: { task_budget: {} } },
      "unsupported_field",
      "output_config.task_budget",
    ],
    ["a format of no kind", withFormat({ type: "xml" }), "invalid_value", "output_config.format.type"],
    ["a format without a schema", withFormat({ type: "json_schema" }), "missing_field", "output_config.format.schema"],
    [
      "a schema that cannot be kept",
      withFormat({ type: "json_schema", schema: { type: "object", allOf: [{ not: {} }] } }),
      "invalid_value",
      "output_config.format.schema.allOf",
    ],
    [
      "17 stop sequences",
      { ...question, stop_sequences: Array.from({ length: 17 }, String) },
      "invalid_value",
      "stop_sequences",
    ],
    ["a temperature", { ...question, temperature: 3 }, "invalid_value", "temperature"],
    ["system as a number", { ...question, system: 5 }, "invalid_value", "system"],
  ])("%s", async (_name, body, code, param) => {
    const answer = await refusal(body);
    expect(answer).toMatchObject({ status: 400, type: "invalid_request_error", code, param });
    expect(answer.message).toContain(param);
  });
});

describe("errors of every kind have their shape", () => {
  test.each<[string, unknown, Parameters<typeof post>[2], number, string]>([
    ["no JSON", "{", {}, 400, "invalid_request_error"],
    ["another content type", question, { type: "text/plain" }, 415, "invalid_request_error"],
    ["a wrong key", question, { key: "key-x" }, 401, "authentication_error"],
    ["a key without the scope", question, { key: "key-reader" }, 403, "permission_error"],
    ["a key of no tenant", question, { key: "key-platform" }, 403, "permission_error"],
    ["another model", { ...question, model: "nobody" }, {}, 404, "not_found_error"],
    ["another version", question, { headers: { "anthropic-version": "2023-01-01" } }, 400, "invalid_request_error"],
    ["no such route", question, { path: "/v1/messages/batches" }, 404, "not_found_error"],
    ["a long body", question, { headers: { "content-length": "50000000" } }, 413, "request_too_large"],
    [
      "a long prompt",
      { ...question, messages: [{ role: "user", content: "amber ".repeat(50_000) }] },
      {},
      400,
      "invalid_request_error",
    ],
  ])("%s", async (_name, body, init, status, type) => {
    expect(await refusal(body, init)).toMatchObject({ status, type });
  });

  test("a tenant with too many requests", async () => {
    const { app, limiter } = chatRig({ requestsPerTenant: 1 });
    limiter.enter("tenant_a");
    const response = await post(app, question, { path: "/v1/messages" });
    expect(response.status).toBe(429);
    expect(response.headers.get("retry-after")).toBe("1");
    expect(await response.json()).toMatchObject({ type: "error", error: { type: "rate_limit_error" } });
  });

  test("other routes keep theirs", async () => {
    const response = await post(rig.app, {});
    expect(await response.json()).not.toHaveProperty("type");
  });

  test("x-api-key is a key as good as a bearer's", async () => {
    const headers = { "x-api-key": "key-a", "content-type": "application/json", "anthropic-version": "2023-06-01" };
    const init = { method: "POST", headers, body: JSON.stringify(question) };
    expect((await rig.app.request("/v1/messages", init)).status).toBe(200);
  });
});
