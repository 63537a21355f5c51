/** Traces of a server, as a collector gets them: every stage of every kind of request, and nothing of tenants' texts. */

import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Salts } from "../../gateway/tenant/salts.ts";
import { ServerSecret } from "../../gateway/tenant/secret.ts";
import { createStore, openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";
import { requireTenantId } from "../support/tenant-ids.ts";

// A server starts in each of these tests.
setDefaultTimeout(60_000);

interface Span {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
}

const bodies: string[] = [];
const dataDir = mkdtempSync(join(tmpdir(), "spangate-traces-"));
const collector = Bun.serve({
  port: 0,
  fetch: async (request) => {
    bodies.push(`${new URL(request.url).pathname} ${request.headers.get("api-key")}\n${await request.text()}`);
    return Response.json({});
  },
});
let server: TestServer;
let tenant: TestTenant;

beforeAll(async () => {
  const env = {
    OTEL_EXPORTER_OTLP_ENDPOINT: `http://127.0.0.1:${collector.port}`,
    OTEL_EXPORTER_OTLP_HEADERS: "api-key=collectors",
  };
  server = await startTestServer({ model: "one-layer", dataDir, env });
  tenant = await server.tenant("canary-tenant");
});
afterAll(async () => {
  await server[Symbol.asyncDispose]();
  await collector.stop(true);
  rmSync(dataDir, { recursive: true, force: true });
});

test("every stage of a request is a span of its trace; no text, key or salt is in one", async () => {
  const storeId = await createStore(openaiClient(server.url, tenant.apiKey), "canary-store", {
    "canary.md": "canary: the extension of Jon Vale is 3057.",
  });
  const user = (content: string) => [{ role: "user", content }];
  const post = async (traceId: string, path: string, body: object, headers = {}): Promise<void> => {
    const response = await fetch(server.url + path, {
      method: "POST",
      headers: {
        authorization: `Bearer ${tenant.apiKey}`,
        "content-type": "application/json",
        traceparent: `00-${traceId.repeat(32)}-${"b".repeat(16)}-01`,
        tracestate: "canary=state",
        baggage: "canary=baggage",
        ...headers,
      },
      body: JSON.stringify(body),
    });
    await response.text();
  };
  const search = { vector_store_ids: [storeId] };
  const chat = { model: server.model, messages: user("canary: what is it?"), max_tokens: 4, file_search: search };
  await post("1", "/v1/chat/completions", chat);
  await post("2", "/v1/chat/completions", { ...chat, stream: true, cache_salt: "canary-salt", user: "canary-user" });
  const g = (input: object) => ({ g: { model: server.model, max_tokens: 2, input } });
  await post("3", "/v1/query/execute", g({ seq: [{ plus: [g({ user: "canary" })] }, { user: "canary?" }] }));
  await post("4", "/v1/chat/completions", { ...chat, "canary-field": 1 });
  await post("5", "/v1/chat/completions?canary=query", { ...chat, model: "canary-model" });
  await post("6", "/v1/canary-path", {});
  await post("7", "/v1/chat/completions", chat, { authorization: "Bearer sk-canary-key" });
  await fetch(`${server.url}/ready?canary=1`);
  // What is left is sent before the process ends.
  server.process.kill("SIGTERM");
  expect(await server.process.exited).toBe(0);

  const seen = bodies.join("\n");
  expect(seen).toStartWith("/v1/traces collectors\n");
  const spans: Span[] = bodies.flatMap((body) => {
    const { resourceSpans } = JSON.parse(body.slice(body.indexOf("\n")));
    return resourceSpans.flatMap(({ scopeSpans }: { scopeSpans: { spans: Span[] }[] }) => scopeSpans[0]?.spans ?? []);
  });
  const of = (traceId: string) => spans.filter((span) => span.traceId === traceId.repeat(32));
  const stages = ["retrieval", "lowering", "queue", "prefill", "first_token", "decode"];
  for (const traceId of ["1", "2"]) {
    const names = of(traceId).map(({ name }) => name);
    expect([traceId, ...names]).toEqual([traceId, ...stages, "POST /v1/chat/completions"]);
  }
  const tree = Map.groupBy(of("3"), ({ name }) => name);
  expect(tree.get("decode")).toHaveLength(2);
  expect(tree.get("lowering")?.length).toBeGreaterThanOrEqual(2);
  for (const traceId of ["4", "5", "7"]) expect(of(traceId).at(-1)?.name).toBe("POST /v1/chat/completions");
  for (const traceId of ["1", "2", "3", "4", "5", "6", "7"]) {
    const root = of(traceId).at(-1);
    expect(root?.parentSpanId).toBe("b".repeat(16));
    for (const span of of(traceId).slice(0, -1)) {
      expect(span.parentSpanId).toBe(root?.spanId ?? "");
      expect(BigInt(span.endTimeUnixNano) <= BigInt(root?.endTimeUnixNano ?? 0)).toBe(true);
      expect(BigInt(span.startTimeUnixNano) <= BigInt(span.endTimeUnixNano)).toBe(true);
    }
  }
  expect(seen.match(/.{0,60}canary.{0,20}/g) ?? []).toEqual([]);
  const secret = readFileSync(join(dataDir, "secret"));
  const salts = new Salts(new ServerSecret(secret));
  const secrets = [tenant.apiKey, server.adminKey, secret.toString("hex"), secret.toString("base64")];
  const tenantId = requireTenantId(tenant.id);
  const own = salts.ofTenant(tenantId, 0);
  secrets.push(own, salts.within(own, "canary-salt"), salts.ofCorpus(storeId, 0));
  for (const [index, text] of secrets.entries()) expect([index, seen.includes(text)]).toEqual([index, false]);
});
