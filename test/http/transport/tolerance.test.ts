/** What clients of other servers send: hints that nobody here knows are left out and named; what matters stays an error. */
import { describe, expect, test } from "bun:test";
import { chatRig, post, question } from "../chat-rig.ts";

const rig = chatRig();

async function ask(body: unknown, headers: Record<string, string> = {}) {
  const response = await rig.app.request("/v1/chat/completions", {
    method: "POST",
    headers: { authorization: "Bearer key-a", "content-type": "application/json", ...headers },
    body: JSON.stringify(body),
  });
  const { error } = (await response.json()) as { error?: { code: string; param: string } };
  return { status: response.status, ignored: response.headers.get("x-spangate-ignored"), error };
}

const user = (content: string, more: object = {}) => ({ role: "user", content, ...more });

describe("hints and unknown fields", () => {
  test("are left out and named", async () => {
    const hints = { reasoning_effort: "high", verbosity: "low", service_tier: "flex", store: true, priority: 3 };
    expect(await ask({ ...question, ...hints, prediction: { type: "content", content: "x" }, temprature: 1 })).toEqual({
      status: 200,
      ignored: "verbosity, service_tier, store, priority, prediction, temprature, reasoning_effort",
      error: undefined,
    });
  });

  test("of every message are met at once, however many there are", async () => {
    const turns = Array.from({ length: 40 }, (_, index) => [
      user("x", { name: `n${index}` }),
      { role: "assistant", content: "y", reasoning_content: "because", refusal: null, annotations: [] },
    ]).flat();
    const { status, ignored } = await ask({ ...question, messages: [...turns, user("the thing")] });
    expect({ status, ignored }).toEqual({
      status: 200,
      ignored: "messages[].name, messages[].annotations, messages[].reasoning_content",
    });
  });

  test("a tool's name is kept while a user's is left out", async () => {
    const call = { id: "c1", type: "function", function: { name: "look", arguments: "{}" } };
    const messages = [
      user("a", { name: "bob" }),
      { role: "assistant", content: null, tool_calls: [call] },
      { role: "tool", content: "b", tool_call_id: "c1", name: "look" },
    ];
    expect(await ask({ ...question, messages })).toMatchObject({ status: 200, ignored: "messages[].name" });
  });

  test("that are null are as if they were not there", async () => {
    expect(await ask({ ...question, anything: null })).toEqual({ status: 200, ignored: null, error: undefined });
  });

  test("with names that no header can hold are named safely, and not without end", async () => {
    const many = Object.fromEntries(Array.from({ length: 200 }, (_, index) => [`x${index}\r\nset-cookie: a`, 1]));
    const { status, ignored } = await ask({ ...question, ...many, ["é".repeat(5_000)]: 1 });
    expect(status).toBe(200);
    expect(ignored).toMatch(/^[\w.[\]?, -]+$/);
    expect(ignored?.split(", ")).toHaveLength(32);
  });

  test("in more kinds of places than a body is checked for are an error", async () => {
    const messages = ["system", "user", "assistant", "developer", "user"].map((role, index) => ({
      role,
      content: index === 4 ? [{ type: "text", text: "x", more: 1 }] : "x",
      [`x${index}`]: 1,
    }));
    const answer = await ask({ ...question, messages, more: 1, documents: [{ text: "x", more: 1 }] });
    expect(answer).toMatchObject({ status: 400, error: { code: "unknown_field" } });
  });
});

describe("an error stays", () => {
  test.each<[string, object, string]>([
    ["what is known and not supported", { functions: [] }, "functions"],
    [
      "what the template may read",
      { chat_template_kwargs: { enable_thinking: true, tone: "dry" } },
      "chat_template_kwargs.tone",
    ],
    ["a wrong type", { temperature: "1", hint: 1 }, "temperature"],
    ["an unknown wish to this server", { spangate: { reuze: false } }, "spangate.reuze"],
    ["calls of a user", { messages: [user("x", { tool_calls: [] })] }, "messages[0].tool_calls"],
  ])("%s", async (_name, fields, param) => {
    expect(await ask({ ...question, ...fields })).toMatchObject({ status: 400, error: { param } });
  });

  test("any unknown field, where the caller or the operator wants to know", async () => {
    const slip = { ...question, temprature: 1 };
    const refused = { status: 400, error: { code: "unknown_field", param: "temprature" } };
    expect(await ask(slip, { "x-spangate-strict": "true" })).toMatchObject(refused);
    const strict = chatRig({ settings: { strict: true, corsOrigins: [] } });
    expect((await post(strict.app, slip)).status).toBe(400);
  });
});

describe("browsers and wrong methods", () => {
  const from = (app: typeof rig.app, method: string, origin: string) =>
    app.request("/v1/chat/completions", { method, headers: { origin, "access-control-request-method": "POST" } });

  test("a method that a route does not take is said, with those that it takes", async () => {
    const response = await rig.app.request("/v1/chat/completions", { method: "GET" });
    expect([response.status, response.headers.get("allow")]).toEqual([405, "POST, OPTIONS"]);
    expect(await response.json()).toMatchObject({ error: { code: "method_not_allowed", message: "Use POST." } });
    const options = await rig.app.request("/v1/chat/completions", { method: "OPTIONS" });
    expect([options.status, options.headers.get("allow")]).toEqual([204, "POST, OPTIONS"]);
    expect((await rig.app.request("/v1/nothing", { method: "OPTIONS" })).status).toBe(404);
  });

  test("pages of other origins may call only where the operator says so", async () => {
    const allowed = "access-control-allow-origin";
    expect((await from(rig.app, "OPTIONS", "https://chat.example")).headers.get(allowed)).toBeNull();
    const open = chatRig({ settings: { strict: false, corsOrigins: ["https://chat.example"] } }).app;
    const preflight = await from(open, "OPTIONS", "https://chat.example");
    expect([preflight.status, preflight.headers.get(allowed)]).toEqual([204, "https://chat.example"]);
    expect((await from(open, "OPTIONS", "https://evil.example")).headers.get(allowed)).toBeNull();
    expect((await from(open, "POST", "https://chat.example")).headers.get(allowed)).toBe("https://chat.example");
  });
});
