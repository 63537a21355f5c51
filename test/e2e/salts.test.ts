/** Nobody finds KV in the cache but its owner, whatever way the text came in: the same text is asked by another tenant. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { createStore, openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";

// A server starts here.
setDefaultTimeout(60_000);

const text = "The lamp of the harbour is lit by Tom every evening. ".repeat(12);

let server: TestServer;
let owner: TestTenant;
let other: TestTenant;
/** Of each tenant: stores with the same texts, one for each way to search them. */
const stores = new Map<TestTenant, readonly string[]>();

beforeAll(async () => {
  server = await startTestServer({ model: "one-layer" });
  owner = await server.tenant("owner");
  other = await server.tenant("other");
  for (const tenant of [owner, other]) {
    const client = openaiClient(server.url, tenant.apiKey);
    const make = (index: number) => createStore(client, "same", { "same.txt": `${index} ${text}` });
    stores.set(tenant, [await make(0), await make(1), await make(2)]);
  }
});
afterAll(async () => await server[Symbol.asyncDispose]());

interface Usage {
  readonly usage: { readonly prompt_tokens_details: { readonly cached_tokens: number } };
}

async function cachedTokens({ client }: TestTenant, path: string, body: unknown): Promise<number> {
  return (await client.json<Usage>("POST", path, body)).usage.prompt_tokens_details.cached_tokens;
}

const question = "Who lights the lamp?";
const user = { user: question };
const chat = (fields: object) => ({
  path: "/v1/chat/completions",
  body: { model: server.model, messages: [{ role: "user", content: question }], max_tokens: 4, ...fields },
});
const query = (input: unknown, fields: object = {}) => ({
  path: "/v1/query/execute",
  body: { g: { model: server.model, max_tokens: 4, temperature: 0, input, ...fields } },
});
const g = (input: unknown) => ({ g: { model: server.model, max_tokens: 12, temperature: 0, input } });
const storeOf = (tenant: TestTenant, index: number): string => stores.get(tenant)?.[index] ?? "";
const retrieved = (tenant: TestTenant, index: number) => ({
  retrieve: { vector_store_ids: [storeOf(tenant, index)], query: question, max_num_results: 4 },
});
const fragment = { fragment: { text: `12 ${text}` } };

/** What the tenant asks; each way with texts of its own, so that none finds what another left. */
const ways: Readonly<Record<string, (tenant: TestTenant) => { readonly path: string; readonly body: object }>> = {
  "a message": () => chat({ messages: [{ role: "user", content: text }] }),
  "a document of the request": () => chat({ documents: [{ text }] }),
  "a document in the main chain": () => chat({ documents: [{ text: `1 ${text}` }], spangate: { attention: "full" } }),
  "a corpus's fragments": (tenant) => chat({ file_search: { vector_store_ids: [storeOf(tenant, 0)] } }),
  "a completion's prompt": () => ({
    path: "/v1/completions",
    body: { model: server.model, prompt: `13 ${text}`, max_tokens: 4 },
  }),
  "a query's message": () => query({ seq: [{ user: `2 ${text}` }, user] }),
  "a query's fragment in a plus": () => query({ seq: [{ plus: [{ fragment: { text: `3 ${text}` } }] }, user] }),
  "a query's message in a plus": () => query({ seq: [{ plus: [{ user: `4 ${text}` }] }, user] }),
  "a query's fragment in order": () => query({ seq: [{ fragment: { text: `5 ${text}` } }, user] }),
  "a query's retrieval": (tenant) => query({ seq: [{ plus: [retrieved(tenant, 1)] }, { user: "6?" }] }),
  "a query's retrieval in order": (tenant) => query({ seq: [retrieved(tenant, 2), { user: "7?" }] }),
  "a preamble": () => query({ seq: [{ plus: { preamble: { user: `8 ${text}` }, children: [fragment] } }, user] }),
  "an inner answer": () => query({ seq: [{ plus: [g({ user: `9 ${text}` })] }, user] }),
  "a blended prompt": () => query({ seq: [{ fragment: { text: `10 ${text}` } }, user] }, { reuse: "blend" }),
};

describe("cached for its owner, and for nobody else", () => {
  for (const [name, way] of Object.entries(ways)) {
    test(name, async () => {
      const ask = async (tenant: TestTenant) => {
        const { path, body } = way(tenant);
        return await cachedTokens(tenant, path, body);
      };
      // A query finds what its own inner generates left.
      const cold = await ask(owner);
      const warm = await ask(owner);
      expect(warm).toBeGreaterThan(cold + 32);
      expect(await ask(other)).toBe(cold);
      expect(await ask(other)).toBe(warm);
    });
  }

  test("nor within a tenant under another cache_salt, nor after a rotation", async () => {
    const { path, body } = chat({ messages: [{ role: "user", content: `11 ${text}` }] });
    const ask = (cacheSalt?: string) => cachedTokens(owner, path, { ...body, cache_salt: cacheSalt });
    await ask();
    expect(await ask()).toBeGreaterThan(32);
    expect(await ask("a")).toBe(0);
    expect(await ask("a")).toBeGreaterThan(32);
    expect(await ask("b")).toBe(0);
    await server.admin.json("POST", `/admin/v1/tenants/${owner.id}/salt/rotate`);
    expect(await ask()).toBe(0);
    expect(await ask("a")).toBe(0);
  });
});
