import { describe, expect, test } from "bun:test";
import { ApiError } from "../../../gateway/base/errors.ts";
import { limits } from "../../../gateway/config.ts";
import type { BulkRunner } from "../../../gateway/execute/bulk/bulk.ts";
import { BulkResults } from "../../../gateway/execute/bulk/bulk-results.ts";
import { createApp } from "../../../gateway/http/app.ts";
import { ConcurrencyLimiter } from "../../../gateway/http/middleware/concurrency.ts";
import { addBulkRoutes } from "../../../gateway/http/query/bulk.ts";
import { Metrics } from "../../../gateway/telemetry/metrics.ts";
import type { Principal, Scope } from "../../../gateway/tenant/principal.ts";

const principals: Readonly<Record<string, Principal>> = {
  "key-a": { keyId: "k1", tenantId: "tenant_a", scopes: new Set<Scope>(["inference"]) },
  "key-b": { keyId: "k2", tenantId: "tenant_b", scopes: new Set<Scope>(["inference"]) },
  "key-reader": { keyId: "k3", tenantId: "tenant_a", scopes: new Set<Scope>(["corpus:read"]) },
};

interface RigOptions {
  readonly run?: BulkRunner["run"];
  readonly capacityTokens?: () => number;
  readonly pingMs?: number;
}

/** Answers with the text of a user message; "bad" fails. */
const echo: BulkRunner["run"] = async (query) => {
  const text = query.kind === "message" ? query.text : "";
  if (text === "bad") throw new ApiError("worker_lost");
  return { response: { text }, usage: { promptTokens: 8, completionTokens: 1, cachedTokens: 6, cacheWriteTokens: 0 } };
};

function bulkRig({ run = echo, capacityTokens = () => 100, pingMs }: RigOptions = {}) {
  const results = new BulkResults({
    tenants: 2,
    bulksPerTenant: 8,
    bytesPerTenant: 1e6,
    keepMs: 1e6,
    nowMs: () => 5_000,
  });
  const limiter = new ConcurrencyLimiter(1);
  const tenants: string[] = [];
  const deps = {
    results,
    limiter,
    capacityTokens,
    log: () => undefined,
    runnerFor: (tenantId: string): BulkRunner => {
      tenants.push(tenantId);
      return { fragments: async () => [], run };
    },
    ...(pingMs === undefined ? {} : { stream: { pingMs } }),
  };
  const app = createApp({
    authenticator: { authenticate: (apiKey) => principals[apiKey] },
    routes: [(it) => addBulkRoutes(it, deps)],
    metrics: new Metrics(),
    log: () => undefined,
  });
  const get = (path: string, key = "key-a") =>
    app.request(`/v1/query/bulk/${path}`, { headers: { authorization: `Bearer ${key}` } });
  const post = (body: string | Uint8Array, init: { search?: string; type?: string; key?: string } = {}) =>
    app.request(`/v1/query/bulk${init.search ?? ""}`, {
      method: "POST",
      headers: {
        authorization: `Bearer ${init.key ?? "key-a"}`,
        "content-type": init.type ?? "application/x-ndjson",
      },
      body: body as string,
    });
  return { app, get, post, limiter, tenants };
}

const bodyOf = (...texts: string[]): string => texts.map((user) => JSON.stringify({ query: { user } })).join("\n");

async function linesOf(response: Response) {
  const text = await response.text();
  return text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line));
}

async function errorOf(response: Response) {
  const { error } = (await response.json()) as { error: { code: string; param: string | null } };
  return { status: response.status, code: error.code, param: error.param };
}

describe("a bulk request", () => {
  test("is answered by a first line, a line for each query, and a last line", async () => {
    const { post, tenants, limiter } = bulkRig();
    const response = await post(bodyOf("one", "bad", "two"));
    expect(response.status).toBe(200);
    expect(response.headers.get("content-type")).toStartWith("application/x-ndjson");
    const [first, ...rest] = await linesOf(response);
    const last = rest.pop();
    const id = response.headers.get("x-bulk-id");
    expect(first).toMatchObject({ bulk: { id, object: "query.bulk", status: "running", order: null } });
    expect(rest.toSorted((a, b) => a.index - b.index)).toMatchObject([
      { id: "1", index: 0, response: { text: "one" } },
      { id: "2", index: 1, error: { code: "worker_lost", type: "server_error" } },
      { id: "3", index: 2, response: { text: "two" } },
    ]);
    expect(last).toEqual({
      bulk: {
        id,
        object: "query.bulk",
        status: "completed",
        order: "ingestion",
        counts: { total: 3, completed: 2, failed: 1 },
        usage: {
          prompt_tokens: 16,
          completion_tokens: 2,
          total_tokens: 18,
          prompt_tokens_details: { cached_tokens: 12, cache_write_tokens: 0 },
        },
        created_at: 5,
        finished_at: 5,
      },
    });
    expect(tenants).toEqual(["tenant_a"]);
    expect(limiter.running("tenant_a")).toBe(0);
  });

  test.each(["application/x-ndjson", "application/jsonl; charset=utf-8", "application/json-lines", "text/plain"])(
    "may be sent as %s",
    async (type) => {
      expect((await bulkRig().post(bodyOf("one"), { type })).status).toBe(200);
    },
  );

  test("silence is filled with blank lines", async () => {
    const run: BulkRunner["run"] = async (...all) => {
      await Bun.sleep(25);
      return echo(...all);
    };
    const text = await (await bulkRig({ run, pingMs: 6 }).post(bodyOf("one"))).text();
    expect(text).toMatch(/^\{.*\}\n\n+\{.*\}\n/);
  });
});

describe("results by id", () => {
  test("the same object as in the stream, and the bulk's state", async () => {
    const { post, get } = bulkRig();
    const response = await post(`${bodyOf("one")}\n${JSON.stringify({ id: "a/b c", query: { user: "two" } })}`);
    const id = response.headers.get("x-bulk-id");
    const lines = await linesOf(response);
    const state = await get(`${id}`);
    expect(await state.json()).toEqual(lines.at(-1).bulk);
    const result = await get(`${id}/results/1`);
    expect(result.headers.get("content-type")).toStartWith("application/json");
    expect(await result.json()).toEqual(lines.find((line) => line.id === "1"));
    const named = await get(`${id}/results/${encodeURIComponent("a/b c")}`);
    expect(await named.json()).toMatchObject({ id: "a/b c", response: { text: "two" } });
  });

  test("what is unknown and what is another tenant's answer alike", async () => {
    const { post, get } = bulkRig();
    const id = (await post(bodyOf("one"))).headers.get("x-bulk-id");
    const withoutRequestId = async (response: Response) => ({ status: response.status, body: await response.text() });
    const unknown = await withoutRequestId(await get("bulk_0"));
    expect(unknown.status).toBe(404);
    for (const [path, key] of [
      [`${id}`, "key-b"],
      [`${id}/results/1`, "key-b"],
      [`${id}/results/2`, "key-a"],
      ["bulk_0/results/1", "key-a"],
    ] as const) {
      expect(await withoutRequestId(await get(path, key))).toEqual(unknown);
    }
  });

  test("while it runs, and after the client has left: what finished is there", async () => {
    const [begun, left] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const run: BulkRunner["run"] = async (query, requestId, signal) => {
      if (query.kind === "message" && query.text === "one") return echo(query, requestId, signal);
      begun.resolve();
      await new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))).finally(
        left.resolve,
      );
      throw new Error("not reached");
    };
    const { post, get, limiter } = bulkRig({ run });
    const response = await post(bodyOf("one", "two"), { search: "?order=ingestion" });
    const id = response.headers.get("x-bulk-id");
    const reader = response.body?.getReader();
    for (let seen = ""; !seen.includes('"index":0'); ) seen += new TextDecoder().decode((await reader?.read())?.value);
    expect(await (await get(`${id}`)).json()).toMatchObject({ status: "running", counts: { completed: 1 } });
    expect(await errorOf(await post(bodyOf("three")))).toMatchObject({ code: "concurrency_limited" });
    expect((await get(`${id}/results/2`)).status).toBe(404);
    await begun.promise;
    await reader?.cancel();
    await left.promise;
    await new Promise(setImmediate);
    expect(await (await get(`${id}`)).json()).toMatchObject({
      status: "cancelled",
      counts: { completed: 1, failed: 0 },
    });
    expect((await get(`${id}/results/1`)).status).toBe(200);
    expect(limiter.running("tenant_a")).toBe(0);
  });
});

describe("refused as a whole", () => {
  test.each([
    ["?order=sideways", "order"],
    ["?concurrency=0", "concurrency"],
    [`?concurrency=${limits.maxBulkConcurrency + 1}`, "concurrency"],
    ["?concurrency=1e1", "concurrency"],
    ["?stream=true", "stream"],
  ])("%s", async (search, param) => {
    const { post, limiter } = bulkRig();
    expect(await errorOf(await post(bodyOf("one"), { search }))).toMatchObject({ status: 400, param });
    expect(limiter.running("tenant_a")).toBe(0);
  });

  test("another content type, no UTF-8, no line, an id twice, too many bytes, no worker", async () => {
    const { post, limiter } = bulkRig();
    const fewer = async (response: Response | Promise<Response>) => (await errorOf(await response)).code;
    expect(await fewer(post(bodyOf("one"), { type: "application/json" }))).toBe("unsupported_media_type");
    expect(await fewer(post(new Uint8Array([0x7b, 0xff, 0x7d])))).toBe("invalid_json");
    expect(await fewer(post(""))).toBe("invalid_request");
    expect(await fewer(post(`${bodyOf("x")}\n{"id":"1","query":{"user":"y"}}`))).toBe("invalid_value");
    expect(await fewer(post("\n".repeat(limits.bulkBodyBytes + 1)))).toBe("body_too_large");
    const noWorker = () => {
      throw new ApiError("not_ready");
    };
    expect(await fewer(bulkRig({ capacityTokens: noWorker }).post(bodyOf("one")))).toBe("not_ready");
    // Nothing of these still counts as running.
    expect(limiter.running("tenant_a")).toBe(0);
    expect((await post(bodyOf("one"))).status).toBe(200);
  });

  test("without a key, and without the scope", async () => {
    const { app, post, get } = bulkRig();
    expect((await app.request("/v1/query/bulk", { method: "POST" })).status).toBe(401);
    expect((await post(bodyOf("one"), { key: "key-reader" })).status).toBe(403);
    expect((await get("bulk_0", "key-reader")).status).toBe(403);
  });
});
