/** The official MCP client against /mcp, in both eras of the protocol, and what no client of that package sends. */
import { beforeAll, describe, expect, test } from "bun:test";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import type { MintedKey } from "../../gateway/cli/support/operations.ts";
import { createStore, openaiClient } from "../support/openai.ts";
import type { TestTenant } from "../support/server.ts";
import { answer, question, type Suite, texts } from "./suite.ts";

const eras = {
  "2025, with a handshake": "legacy",
  "2026, where every message stands for itself": { pin: "2026-07-28" },
} as const;
const initialize = {
  jsonrpc: "2.0",
  id: 1,
  method: "initialize",
  params: { protocolVersion: "2025-06-18", capabilities: {}, clientInfo: { name: "by hand", version: "1" } },
};

interface Passage {
  readonly filename: string;
  readonly text: string;
  readonly vector_store_id: string;
  readonly score: number;
}
interface Called {
  readonly isError?: boolean | undefined;
  readonly content: readonly { readonly type: string; readonly text?: string }[];
  readonly structuredContent?: unknown;
}
const textOf = ({ content }: Called): string => content.map(({ text = "" }) => text).join("");

export function mcp(suite: Suite): void {
  let tenant: TestTenant;
  let store = "";

  /** Runs with a client that is connected to the tenant's tools. */
  async function connected<Result>(
    apiKey: string,
    use: (client: Client) => Promise<Result>,
    { era = "legacy" as (typeof eras)[keyof typeof eras], query = "" } = {},
  ): Promise<Result> {
    const client = new Client({ name: "suite", version: "1" }, { versionNegotiation: { mode: era } });
    const requestInit = { headers: { authorization: `Bearer ${apiKey}` } };
    await client.connect(new StreamableHTTPClientTransport(new URL(`${suite.url}/mcp${query}`), { requestInit }));
    try {
      return await use(client);
    } finally {
      await client.close();
    }
  }
  const call = (apiKey: string, name: string, fields: Record<string, unknown>, query = ""): Promise<Called> =>
    connected(apiKey, async (client) => (await client.callTool({ name, arguments: fields })) as Called, { query });
  const keyWith = async (...scopes: string[]): Promise<string> =>
    (await suite.server.admin.json<MintedKey>("POST", `/admin/v1/tenants/${tenant.id}/keys`, { scopes })).key;
  const post = (body: unknown, headers: Record<string, string> = {}, apiKey = tenant.apiKey) =>
    fetch(`${suite.url}/mcp`, {
      method: "POST",
      headers: {
        authorization: `Bearer ${apiKey}`,
        "content-type": "application/json",
        accept: "application/json, text/event-stream",
        ...headers,
      },
      body: typeof body === "string" ? body : JSON.stringify(body),
    });

  describe("@modelcontextprotocol/client", () => {
    beforeAll(async () => {
      tenant = await suite.tenant("mcp");
      store = await createStore(openaiClient(suite.url, tenant.apiKey), "people", texts);
    });

    for (const [name, era] of Object.entries(eras)) {
      test(`${name}: finds passages, and an answer with what it was made from`, async () => {
        await connected(
          tenant.apiKey,
          async (client) => {
            const { tools } = await client.listTools();
            expect(tools.map((tool) => [tool.name, tool.annotations?.readOnlyHint])).toEqual([
              ["search", true],
              ["ask", true],
            ]);
            const found = (await client.callTool({ name: "search", arguments: { query: question } })) as Called;
            const { passages } = found.structuredContent as { passages: readonly Passage[] };
            expect(passages[0]).toMatchObject({ filename: "vale.md", vector_store_id: store, text: texts["vale.md"] });
            expect(textOf(found)).toStartWith(`[1] vale.md\n${texts["vale.md"]}`);
            const asked = (await client.callTool({ name: "ask", arguments: { question } })) as Called;
            expect(asked.isError).toBeFalsy();
            const said = asked.structuredContent as {
              answer: string;
              sources: readonly Passage[];
              citations: readonly object[];
              finish_reason: string;
            };
            expect(said.answer).toContain(answer);
            expect(said.finish_reason).toBe("stop");
            expect(said.sources[0]?.filename).toBe("vale.md");
            expect(said.citations[0]).toMatchObject({ filename: "vale.md", quote: expect.stringContaining(answer) });
            expect(textOf(asked)).toContain("Sources:\n\n[1] vale.md");
            // It is the answer that chat completions give to the same question.
            const chat = await openaiClient(suite.url, tenant.apiKey).chat.completions.create({
              model: suite.model,
              messages: [{ role: "user", content: question }],
              temperature: 0,
              ...{ file_search: { vector_store_ids: [store] } },
            });
            expect(said.answer).toBe(chat.choices[0]?.message.content?.trim() ?? "");
          },
          { era },
        );
      });
    }

    test("a key's scopes say which tools there are", async () => {
      for (const [scope, name] of [
        ["corpus:read", "search"],
        ["inference", "ask"],
      ] as const) {
        const key = await keyWith(scope);
        const names = await connected(key, async (client) => (await client.listTools()).tools.map((tool) => tool.name));
        expect(names).toEqual([name]);
        const other = name === "ask" ? "search" : "ask";
        await expect(call(key, other, { query: "a", question: "a" })).rejects.toThrow(`${other} not found`);
      }
      expect((await post(initialize, {}, await keyWith("corpus:write"))).status).toBe(403);
      // A key of the platform acts for no tenant.
      const platform = await post(initialize, {}, suite.server.adminKey);
      expect([platform.status, await platform.json()]).toMatchObject([403, { error: { code: "no_tenant" } }]);
    });

    test("the connection may be bound to stores; another tenant's is as one that does not exist", async () => {
      const other = await suite.tenant("mcp-other");
      const nothing = await call(other.apiKey, "search", { query: question });
      expect([nothing.isError, textOf(nothing)]).toEqual([
        true,
        expect.stringContaining("There is no vector store yet"),
      ]);
      const theirs = await createStore(openaiClient(suite.url, other.apiKey), "theirs", { "a.md": texts["holt.md"] });
      const unknown = `${theirs.slice(0, -4)}zzzz`;
      for (const tool of ["search", "ask"]) {
        const [foreign, none] = await Promise.all(
          [theirs, unknown].map((id) =>
            call(tenant.apiKey, tool, { query: "Mira", question: "Mira?", vector_store_ids: [id] }).catch(String),
          ),
        );
        expect(foreign).toEqual(none);
      }
      for (const id of [theirs, unknown]) {
        const refused = await call(tenant.apiKey, "search", { query: "Mira", vector_store_ids: [id] });
        expect([refused.isError, textOf(refused)]).toEqual([true, "not_found: No such vector store."]);
        const bound = await call(tenant.apiKey, "search", { query: "Mira" }, `?vector_store_ids=${id}`);
        expect(textOf(bound)).toBe("not_found: No such vector store.");
      }
      const second = await createStore(openaiClient(suite.url, tenant.apiKey), "more", { "b.md": "Jon Vale sings." });
      const filesOf = async (query: string) => {
        const { structuredContent } = await call(tenant.apiKey, "search", { query: "Jon Vale" }, query);
        return (structuredContent as { passages: readonly Passage[] }).passages.map(({ filename }) => filename).sort();
      };
      expect(await filesOf(`?vector_store_ids=${second}`)).toEqual(["b.md"]);
      expect(await filesOf(`?vector_store_ids=${second},${store}`)).toEqual(["b.md", "vale.md"]);
      expect(await filesOf("")).toEqual(["b.md", "vale.md"]);
    });

    test("what is wrong in a call is named, and bounded before anything is computed", async () => {
      const wrongs: readonly (readonly [tool: string, fields: Record<string, unknown>, named: string])[] = [
        ["search", {}, "query"],
        ["search", { query: "" }, "query"],
        ["search", { query: "a".repeat(16_385) }, "query"],
        ["search", { query: "a", max_results: 51 }, "max_results"],
        ["search", { query: "a", max_results: 0 }, "max_results"],
        ["search", { query: "a", stores: [] }, "stores"],
        ["search", { query: "a", vector_store_ids: Array.from({ length: 17 }, () => "vs_a") }, "vector_store_ids"],
        ["ask", { question: "a", max_tokens: 100_000 }, "max_tokens"],
      ];
      for (const [tool, fields, named] of wrongs) {
        const refused = await call(tenant.apiKey, tool, fields);
        expect([tool, refused.isError, textOf(refused)]).toEqual([tool, true, expect.stringContaining(named)]);
      }
      const query = await fetch(`${suite.url}/mcp?store=vs_a`, {
        method: "POST",
        headers: { authorization: `Bearer ${tenant.apiKey}`, "content-type": "application/json" },
        body: JSON.stringify(initialize),
      });
      expect([query.status, await query.json()]).toMatchObject([400, { error: { param: "store" } }]);
    });

    test("a tenant's limits and budget hold, its usage counts, and it is told in the tool's result", async () => {
      const limited = await suite.tenant("mcp-limited");
      await createStore(openaiClient(suite.url, limited.apiKey), "people", texts);
      await suite.limit(limited, { tokens_per_day: 1 });
      expect((await call(limited.apiKey, "ask", { question })).isError).toBeFalsy();
      const spent = await call(limited.apiKey, "ask", { question });
      expect([spent.isError, textOf(spent)]).toEqual([
        true,
        expect.stringContaining("quota_exceeded: The tenant has used"),
      ]);
      expect((await call(limited.apiKey, "search", { query: question })).isError).toBeFalsy();
      const usage = await suite.server.admin.json<{ data: { requests: number; completion_tokens: number }[] }>(
        "GET",
        `/admin/v1/usage?tenant_id=${limited.id}`,
      );
      expect(usage.data[0]?.requests).toBe(1);
      expect(usage.data[0]?.completion_tokens).toBeGreaterThan(0);
      // The longest answer is reserved while it is made, by the request that the tool's call is.
      await suite.limit(limited, { tokens_per_minute: 1_000 });
      expect((await call(limited.apiKey, "ask", { question, max_tokens: 900 })).isError).toBeFalsy();
      const refused = await call(limited.apiKey, "ask", { question, max_tokens: 1_000 });
      expect([refused.isError, textOf(refused)]).toEqual([true, expect.stringContaining("rate_limited: ")]);
      await suite.limit(limited, { requests_per_minute: 1 });
      expect((await post(initialize, {}, limited.apiKey)).status).toBe(200);
      const late = await post(initialize, {}, limited.apiKey);
      expect([late.status, Number(late.headers.get("retry-after")) > 0]).toEqual([429, true]);
    });

    test("a client that gives up ends the work", async () => {
      const gone = new AbortController();
      const asked = connected(tenant.apiKey, async (client) => {
        const fields = { question: "Count to a thousand, please.", max_tokens: 8_192 };
        return await client.callTool({ name: "ask", arguments: fields }, { signal: gone.signal });
      });
      const aborted = asked.then(() => "answered").catch(() => "gave up");
      await Bun.sleep(30);
      gone.abort();
      expect(["answered", "gave up"]).toContain(await aborted);
      await suite.untilNothingRuns();
    });

    test("over plain HTTP: keys, methods, origins, sizes, lists of messages, subscriptions", async () => {
      expect((await post(initialize)).status).toBe(200);
      const unknown = await post(initialize, { authorization: "Bearer nobody" });
      expect([unknown.status, await unknown.json()]).toMatchObject([401, { error: { code: "invalid_api_key" } }]);
      for (const method of ["GET", "DELETE"]) {
        const headers = { authorization: `Bearer ${tenant.apiKey}`, accept: "text/event-stream" };
        const other = await fetch(`${suite.url}/mcp`, { method, headers });
        expect([other.status, other.headers.get("allow")]).toEqual([405, "POST, OPTIONS"]);
      }
      const statusFrom = async (origin: string) => (await post(initialize, { origin })).status;
      const here = ["http://localhost:6274", "http://127.0.0.1", "http://[::1]:3000"];
      expect(await Promise.all(here.map(statusFrom))).toEqual([200, 200, 200]);
      const elsewhere = ["http://rebound.example:8080", "https://localhost.example", "null", "file://", suite.model];
      for (const origin of elsewhere) expect([origin, await statusFrom(origin)]).toEqual([origin, 403]);
      const refused = await post(initialize, { origin: "http://rebound.example" });
      expect(await refused.json()).toMatchObject({ error: { code: "origin_not_allowed" } });
      expect((await post({ ...initialize, padding: "a".repeat(300_000) })).status).toBe(413);
      expect((await post([initialize, initialize])).status).toBe(400);
      expect((await post("{")).status).toBe(400);
      expect((await post(initialize, { "content-type": "text/plain" })).status).toBe(415);
      const listen = await post({ jsonrpc: "2.0", id: 2, method: "subscriptions/listen", params: {} });
      expect(await listen.text()).toContain('"error"');
    });
  });
}
