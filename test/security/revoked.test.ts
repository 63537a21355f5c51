/** What runs for an API key ends soon after the key is revoked, and so does what only goes on to be watched. */
import { afterAll, beforeAll, expect, test } from "bun:test";
import type { MintedKey } from "../../gateway/cli/support/operations.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";

let server: TestServer;
let tenant: TestTenant;
beforeAll(async () => {
  server = await startTestServer({ model: "one-layer" });
  tenant = await server.tenant("revoked");
});
afterAll(() => server[Symbol.asyncDispose]());

const scopes = ["inference", "corpus:read", "corpus:write", "corpus:prepare", "tenant:admin"];
const mint = () =>
  server.admin.json<MintedKey>("POST", `/admin/v1/tenants/${tenant.id}/keys`, {
    scopes: scopes.filter((scope) => scope !== "tenant:admin"),
  });

/** Goes on for some thousand tokens unless it is ended. */
const longChat = () => ({
  model: server.model,
  messages: [{ role: "user", content: "Tell me of the lamps." }],
  ...{ max_tokens: 20_000, min_tokens: 20_000, ignore_eos: true, temperature: 0 },
});
const line = (id: number): string =>
  JSON.stringify({
    id: `q${id}`,
    query: { g: { model: server.model, input: { user: `Of lamp ${id}` }, max_tokens: 4_000 } },
  });

function ask(key: string, method: string, path: string, body?: string, contentType = "application/json") {
  const headers = { authorization: `Bearer ${key}`, ...(body !== undefined && { "content-type": contentType }) };
  return fetch(`${server.url}${path}`, { method, headers, ...(body !== undefined && { body }) });
}

test("every stream of a revoked key ends with an error that says so, and an answer that was underway is none", async () => {
  const { key = "", id } = await mint();
  const streamed = JSON.stringify({ ...longChat(), stream: true });
  const lines = Array.from({ length: 2_000 }, (_, at) => line(at)).join("\n");
  const streams = await Promise.all([
    ask(key, "POST", "/v1/chat/completions", streamed),
    ask(key, "POST", "/v1/query/bulk", lines, "application/x-ndjson"),
  ]);
  const whole = ask(key, "POST", "/v1/chat/completions", JSON.stringify(longChat()));
  const stays = await ask(tenant.apiKey, "POST", "/v1/chat/completions", streamed);
  await server.admin.json("DELETE", `/admin/v1/keys/${id}`);
  for (const stream of streams) {
    expect(stream.status).toBe(200);
    expect((await stream.text()).slice(-200)).toContain('"code":"invalid_api_key"');
  }
  const refused = await whole;
  expect([refused.status, await refused.json()]).toEqual([
    401,
    { error: expect.objectContaining({ code: "invalid_api_key" }) },
  ]);
  // Another key's goes on.
  const reader = stays.body?.getReader();
  let text = "";
  for (let piece = await reader?.read(); piece?.value !== undefined; piece = await reader?.read()) {
    text += Buffer.from(piece.value).toString();
    if (text.length > 100_000) break;
  }
  expect(text).not.toContain("invalid_api_key");
  await reader?.cancel();
});

test("so do event streams, when the key expires or the tenant is disabled", async () => {
  const of = await server.tenant("disabled");
  const minted = await server.admin.json<MintedKey>("POST", `/admin/v1/tenants/${of.id}/keys`, {
    scopes,
    expires_in_seconds: 1,
  });
  const expiring = await ask(minted.key ?? "", "GET", "/admin/v1/cache/events");
  expect(expiring.status).toBe(200);
  expect(await expiring.text()).toContain('"code":"api_key_expired"');
  const { key = "" } = await server.admin.json<MintedKey>("POST", `/admin/v1/tenants/${of.id}/keys`, { scopes });
  const disabled = await ask(key, "GET", "/admin/v1/cache/events");
  await server.admin.json("PATCH", `/admin/v1/tenants/${of.id}`, { status: "disabled" });
  expect(await disabled.text()).toContain('"code":"invalid_api_key"');
});
