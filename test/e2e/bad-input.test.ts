import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";

// A server starts in each of these tests.
setDefaultTimeout(60_000);

interface ErrorAnswer {
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    readonly code: string;
  };
}

describe("bad input is a clear error", () => {
  let server: TestServer;
  let tenant: TestTenant;

  beforeAll(async () => {
    server = await startTestServer({ model: "one-layer" });
    tenant = await server.tenant("bad input");
  });
  afterAll(async () => await server[Symbol.asyncDispose]());

  async function post(path: string, body: string, headers: Record<string, string> = {}) {
    const response = await fetch(server.url + path, {
      method: "POST",
      headers: { authorization: `Bearer ${tenant.apiKey}`, "content-type": "application/json", ...headers },
      body,
    });
    expect(response.headers.get("x-request-id")).toBeTruthy();
    const { error } = (await response.json()) as ErrorAnswer;
    expect(error.message.length).toBeGreaterThan(10);
    return { status: response.status, code: error.code, param: error.param, type: error.type };
  }
  const chat = (fields: object) =>
    post(
      "/v1/chat/completions",
      JSON.stringify({ model: server.model, messages: [{ role: "user", content: "Hi" }], ...fields }),
    );

  test("malformed JSON, a wrong content type, a deep nesting, a body of 50 MB", async () => {
    const path = "/v1/chat/completions";
    expect(await post(path, '{"model": ')).toMatchObject({ status: 400, code: "invalid_json" });
    expect(await post(path, "{}", { "content-type": "text/csv" })).toMatchObject({ status: 415 });
    const nested = `{"model":"m","messages":${"[".repeat(200_000)}${"]".repeat(200_000)}}`;
    expect(await post(path, nested)).toMatchObject({ status: 400 });
    expect(await post(path, `{"model":"${"x".repeat(50e6)}"}`)).toMatchObject({ status: 413 });
  });

  test.each([
    [{ messages: [] }, "messages"],
    [{ messages: "hello" }, "messages"],
    [{ messages: [{ role: "user", content: 5 }] }, "messages[0].content"],
    [{ messages: [{ role: "wizard", content: "Hi" }] }, "messages[0].role"],
    [{ temperature: 9 }, "temperature"],
    [{ temperature: "hot" }, "temperature"],
    [{ max_tokens: -1 }, "max_tokens"],
    [{ max_tokens: 2 ** 53 }, "max_tokens"],
    [{ n: 1_000_000 }, "n"],
    [{ top_logprobs: 500, logprobs: true }, "top_logprobs"],
    [{ documents: [{ txt: "no" }] }, "documents[0]"],
    [{ file_search: { vector_store_ids: ["nobody"] } }, "file_search.vector_store_ids"],
    [{ spangate: { magic: true } }, "spangate"],
    [{ functions: [{ name: "f" }] }, "functions"],
  ])("%j names %s", async (fields, param) => {
    const answer = await chat(fields);
    expect([400, 404]).toContain(answer.status);
    expect(answer.param).toStartWith(param);
  });

  test("a missing key, a wrong key, an unknown route, a key without the scope", async () => {
    const statusOf = async (path: string, headers: Record<string, string>, method = "GET") =>
      (await fetch(server.url + path, { method, headers })).status;
    expect(await statusOf("/v1/models", {})).toBe(401);
    for (const key of ["sk-wrong", "x".repeat(10_000), "' OR 1=1 --"]) {
      expect(await statusOf("/v1/models", { authorization: `Bearer ${key}` })).toBe(401);
    }
    expect(await statusOf("/v1/nothing", { authorization: `Bearer ${tenant.apiKey}` })).toBe(404);
    expect(await statusOf("/admin/v1/tenants", { authorization: `Bearer ${tenant.apiKey}` })).toBe(403);
  });

  test("a file that is no text fails alone", async () => {
    const client = openaiClient(server.url, tenant.apiKey);
    const store = await client.vectorStores.create({ name: "broken" });
    const bytes = new File([new Uint8Array([0xff, 0xfe, 0xfd, 0x00, 0xc3, 0x28])], "broken.md");
    const upload = await client.files.create({ file: bytes, purpose: "assistants" }).catch((error: unknown) => error);
    if (upload instanceof Error) expect(upload).toMatchObject({ status: 400 });
    else {
      const { id } = upload as { id: string };
      const added = await client.vectorStores.files.createAndPoll(store.id, { file_id: id }, { pollIntervalMs: 50 });
      expect(added).toMatchObject({ status: "failed" });
      expect(added.last_error?.message).toMatch(/UTF-8/);
    }
    expect((await fetch(`${server.url}/health`)).status).toBe(200);
  });
});
