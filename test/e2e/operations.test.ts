/** What an operator relies on: nothing of tenants in logs and metrics, usage that adds up, an orderly end. */

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Salts } from "../../gateway/tenant/salts.ts";
import { ServerSecret } from "../../gateway/tenant/secret.ts";
import { pdfOf, pdfPage } from "../extract/documents.ts";
import { createStore, openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";
import { requireTenantId } from "../support/tenant-ids.ts";

// A server starts in each of these tests.
setDefaultTimeout(90_000);

const send = async (server: TestServer, key: string, path: string, body: unknown, headers = {}): Promise<string> => {
  const response = await fetch(server.url + path, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json", ...headers },
    body: typeof body === "string" ? body : JSON.stringify(body),
  });
  return await response.text();
};

describe("a server that logs all there is to log", () => {
  const dataDir = mkdtempSync(join(tmpdir(), "spangate-operations-"));
  const logged: string[] = [];
  let server: TestServer;
  let tenant: TestTenant;

  beforeAll(async () => {
    server = await startTestServer({
      model: "one-layer",
      dataDir,
      env: { SPANGATE_LOG: "debug" },
      onLog: (text) => void logged.push(text),
    });
    tenant = await server.tenant("canary-tenant-name");
  });
  afterAll(async () => {
    await server[Symbol.asyncDispose]();
    rmSync(dataDir, { recursive: true, force: true });
  });

  const chat = { max_tokens: 3, temperature: 0 };
  const operatorsSee = async (): Promise<string> => {
    const paths = ["/metrics", "/admin/v1/audit?limit=100", "/admin/v1/usage", "/admin/v1/workers", "/admin/v1/cache"];
    const headers = { authorization: `Bearer ${server.adminKey}` };
    const texts = await Promise.all(
      [...paths, "/ready", "/openapi.json"].map(async (path) => (await fetch(server.url + path, { headers })).text()),
    );
    return [...logged, ...texts].join("\n");
  };

  test("no text, name, key, secret or salt is in a log line, a metric, the audit log or the usage", async () => {
    const { apiKey, id } = tenant;
    const client = openaiClient(server.url, apiKey);
    const messages = [{ role: "user", content: "canary-prompt" }];
    const documents = [{ id: "canary-document-id", title: "canary-title", text: "canary-document" }];
    const whole = { model: server.model, messages, documents, ...chat };
    await send(server, apiKey, "/v1/chat/completions", { ...whole, user: "canary-user", cache_salt: "canary-salt" });
    await send(server, apiKey, "/v1/chat/completions", { ...whole, stream: true, prompt_cache_key: "canary-key" });
    // What goes wrong is logged too.
    await send(server, apiKey, "/v1/chat/completions", { ...whole, "canary-field": 1 });
    await send(server, apiKey, "/v1/chat/completions", '{"canary-json');
    await send(server, apiKey, "/v1/chat/completions?canary-query=1", { ...whole, model: "canary-model" });
    await send(server, "sk-canary-wrong-key", "/v1/chat/completions", whole, { "x-api-key": "canary-other-key" });
    await send(server, apiKey, "/canary-path/canary", {});
    await send(server, apiKey, "/v1/query/execute", {
      g: { model: server.model, max_tokens: 2, input: { user: "canary-g" } },
    });
    const storeId = await createStore(client, "canary-store", { "canary-name.md": "canary-file text" });
    const damaged = new File(["%PDF-1.7 canary-damaged"], "canary-bad.pdf");
    const bad = await client.files.create({ file: damaged, purpose: "assistants" });
    const failed = await client.vectorStores.files.createAndPoll(storeId, { file_id: bad.id });
    expect(failed.last_error?.code).toBe("invalid_file");
    const pdf = new File([pdfOf([pdfPage("canary-pdf text")]) as Uint8Array<ArrayBuffer>], "canary.pdf");
    const file = await client.files.create({ file: pdf, purpose: "assistants" });
    await client.vectorStores.files.createAndPoll(storeId, {
      file_id: file.id,
      attributes: { canary: "canary-value" },
    });
    await client.vectorStores.search(storeId, { query: "canary-search" });
    await client.files.delete(file.id);
    await send(server, server.adminKey, `/admin/v1/tenants/${id}/salt/rotate`, {});

    const seen = await operatorsSee();
    expect(seen).toContain('"message":"request"');
    expect(seen).toContain("DELETE /v1/files/{file_id}");
    expect(seen.match(/.{0,60}canary.{0,20}/g) ?? []).toEqual([]);
    const secret = readFileSync(join(dataDir, "secret"));
    const salts = new Salts(new ServerSecret(secret));
    const secrets = [apiKey, server.adminKey, apiKey.slice(3), secret.toString("hex"), secret.toString("base64")];
    for (const epoch of [0, 1])
      secrets.push(salts.ofTenant(requireTenantId(id), epoch), salts.ofCorpus(storeId, epoch));
    for (const [index, text] of secrets.entries()) expect([index, seen.includes(text)]).toEqual([index, false]);
  });

  test("nor of a request that fails, on any route, whatever is wrong with it", async () => {
    const text = await (await fetch(`${server.url}/openapi.json`)).text();
    const { paths } = JSON.parse(text) as { paths: Record<string, Record<string, unknown>> };
    const routes = Object.entries(paths).flatMap(([path, methods]) =>
      Object.keys(methods).map((method) => [path, method]),
    );
    expect(routes.length).toBeGreaterThan(40);
    const form = new FormData();
    form.set("canary-field", "canary-value");
    form.set("file", new File(["canary"], "canary.bin"), "canary.bin");
    const json = { "content-type": "application/json" };
    const bodies: readonly (readonly [Record<string, string>, NonNullable<RequestInit["body"]>])[] = [
      [json, '{"canary-json'],
      [
        json,
        JSON.stringify({ model: "canary-model", input: "canary", messages: "canary", "canary-field": ["canary"] }),
      ],
      [json, JSON.stringify({ g: { model: "canary", input: { canary: ["canary"] } } })],
      [{ "content-type": "application/x-ndjson" }, '{"custom_id": "canary", "query": {"user": "canary"}}\ncanary'],
      [{ "content-type": "canary/type" }, "canary"],
      [{}, form],
    ];
    const headers = {
      "user-agent": "canary-agent",
      cookie: "canary=1",
      referer: "http://canary/",
    };
    const statuses = new Set<number>();
    for (const [path = "", method = ""] of routes) {
      const url = `${server.url}${path.replace(/\{\w+\}/g, "canary-id")}?canary=canary&after=canary`;
      for (const key of [tenant.apiKey, server.adminKey, "sk-canary"]) {
        const authorization = `Bearer ${key}`;
        for (const [type, body] of method === "get" ? [[{}, null] as const] : bodies) {
          const response = await fetch(url, {
            method: method.toUpperCase(),
            headers: { ...headers, ...type, authorization },
            body,
          });
          await response.body?.cancel();
          statuses.add(response.status);
        }
      }
    }
    expect([...statuses].filter((status) => status >= 500)).toEqual([]);
    for (const status of [400, 401, 403, 404, 415]) expect([status, statuses.has(status)]).toEqual([status, true]);
    // What the server itself gets wrong is logged with more: its worker is lost under an open stream.
    const workers = await server.admin.json<{ data: { pid: number }[] }>("GET", "/admin/v1/workers");
    const body = { model: server.model, messages: [{ role: "user", content: "canary-lost" }], stream: true };
    const lost = send(server, tenant.apiKey, "/v1/chat/completions", { ...body, max_tokens: 200, ignore_eos: true });
    const inFlight = async (): Promise<boolean> =>
      (
        await (await fetch(`${server.url}/metrics`, { headers: { authorization: `Bearer ${server.adminKey}` } })).text()
      ).includes("spangate_requests_in_flight 1");
    while (!(await inFlight())) await Bun.sleep(1);
    for (const { pid } of workers.data) process.kill(pid, "SIGKILL");
    await lost;
    const seen = await operatorsSee();
    expect(seen).toContain("worker");
    expect(seen.match(/.{0,60}canary.{0,20}/g) ?? []).toEqual([]);
  });

  test("usage is what the metrics counted", async () => {
    const other = await server.tenant("other");
    const messages = [{ role: "user", content: "Who is Anna?" }];
    await send(server, other.apiKey, "/v1/chat/completions", { model: server.model, messages, ...chat, n: 2 });
    const headers = { authorization: `Bearer ${server.adminKey}` };
    const metrics = await (await fetch(`${server.url}/metrics`, { headers })).text();
    const counted = (name: string): number =>
      [...metrics.matchAll(new RegExp(`^${name}\\{[^}]*\\} (\\d+)$`, "gm"))].reduce((sum, [, n]) => sum + Number(n), 0);
    const { data } = (await (await fetch(`${server.url}/admin/v1/usage`, { headers })).json()) as {
      data: readonly Record<string, string | number>[];
    };
    const sum = (field: string): number => data.reduce((total, row) => total + Number(row[field]), 0);
    expect(new Set(data.map((row) => row.tenant_id))).toEqual(new Set([tenant.id, other.id]));
    expect(sum("prompt_tokens")).toBeGreaterThan(0);
    expect([sum("requests"), sum("prompt_tokens"), sum("completion_tokens")]).toEqual([
      counted("vllm:request_success_total"),
      counted("vllm:prompt_tokens_total"),
      counted("vllm:generation_tokens_total"),
    ]);
    expect([sum("cached_tokens"), sum("cache_write_tokens")]).toEqual([
      counted("spangate_cached_tokens_total"),
      counted("spangate_cache_write_tokens_total"),
    ]);
  });
});

test("SIGTERM: open streams end whole, nothing new is taken, and the process ends with 0", async () => {
  await using server = await startTestServer({ model: "one-layer" });
  const { apiKey } = await server.tenant("drained");
  const { model } = server;
  const messages = [{ role: "user", content: "Tell me a story." }];
  const long = { max_tokens: 400, ignore_eos: true };
  const g = { model, max_tokens: 200, input: { user: "Tell me a story." } };
  /** What each route's stream ends with. */
  const kinds: readonly (readonly [path: string, body: object, end: string])[] = [
    ["/v1/chat/completions", { model, messages, stream: true, ...long }, "data: [DONE]\n\n"],
    ["/v1/completions", { model, prompt: "Once", stream: true, ...long }, "data: [DONE]\n\n"],
    ["/v1/responses", { model, input: "Tell me.", stream: true, max_output_tokens: 200 }, "response."],
    ["/v1/messages", { model, messages, stream: true, max_tokens: 200 }, "message_stop"],
    ["/v1/query/execute?stream=true", { g }, "data: [DONE]\n\n"],
  ];
  const post = (path: string, body: object) =>
    fetch(server.url + path, {
      method: "POST",
      headers: { authorization: `Bearer ${apiKey}`, "content-type": "application/json" },
      body: JSON.stringify(body),
    });
  /** Resolves with the first piece of the stream, to what reads the rest. */
  const open = async ([path, body]: (typeof kinds)[number]) => {
    const response = await post(path, body);
    const reader = (response.body as ReadableStream<Uint8Array>).getReader();
    const pieces = [(await reader.read()).value ?? new Uint8Array(0)];
    return async (): Promise<string> => {
      for (let next = await reader.read(); !next.done; next = await reader.read()) pieces.push(next.value);
      return Buffer.concat(pieces).toString();
    };
  };
  const streams = await Promise.all(kinds.map(open));
  server.process.kill("SIGTERM");
  const ready = async () => {
    const response = await fetch(`${server.url}/ready`);
    return { status: response.status, body: (await response.json()) as { status: string } };
  };
  let state = await ready();
  while (state.status === 200) state = await ready();
  expect(state).toMatchObject({ status: 503, body: { status: "draining" } });
  expect((await fetch(`${server.url}/health`)).status).toBe(200);
  for (const [path, body] of kinds) {
    const refused = await post(path, body);
    expect([path, refused.status, refused.headers.get("retry-after")]).toEqual([path, 503, "1"]);
    expect(await refused.text()).toContain("The server is shutting down.");
  }
  for (const [index, text] of (await Promise.all(streams.map((read) => read()))).entries()) {
    const [path, , end = ""] = kinds[index] ?? [];
    expect([path, text.includes(end), /"error":\s*\{/.test(text)]).toEqual([path, true, false]);
  }
  expect(await server.process.exited).toBe(0);
});
