/** Batches of messages over an app that a test answers for: what each line ends as, and what is told of it. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import type { BatchRow } from "../../db/batches.ts";
import { batchLimits } from "../../gateway/batches/limits.ts";
import { messageLine } from "../../gateway/batches/lines.ts";
import type { SendRequest } from "../../gateway/batches/requests.ts";
import { BatchService } from "../../gateway/batches/service.ts";
import { addMessageBatchRoutes } from "../../gateway/http/anthropic/message-batches.ts";
import { createApp } from "../../gateway/http/app.ts";
import { ConcurrencyLimiter } from "../../gateway/http/middleware/concurrency.ts";
import { Metrics } from "../../gateway/telemetry/metrics.ts";
import type { Principal } from "../../gateway/tenant/principal.ts";
import { createWorld, type World } from "../corpus/world.ts";
import { call } from "../http/store-app.ts";
import { until } from "./batch-file.ts";

let world: World;
let service: BatchService;
let app: ReturnType<typeof createApp>;
let owner: Principal & { readonly tenantId: `tenant_${string}` };
let apiKey: string;
let nowMs: number;
/** Ids of the requests that were sent. */
let sent: string[];
let answer: (id: string, signal: AbortSignal) => Promise<Response> | Response;

const usage = { input_tokens: 3, cache_read_input_tokens: 2, cache_creation_input_tokens: 4, output_tokens: 1 };
const ok = (id: string) => Response.json({ type: "message", id, usage });
const refusal = { type: "error", error: { type: "invalid_request_error", message: "no" }, request_id: "req_1" };

function open(): BatchService {
  const { db, storage, corpus, tenants } = world;
  const deps = { db, storage, files: corpus.files, apiKeys: tenants.apiKeys, nowMs: () => nowMs, log: () => undefined };
  return new BatchService(deps);
}
const send: SendRequest = async (request) => {
  expect(new URL(request.url).pathname).toBe("/v1/messages");
  const { id } = (await request.json()) as { id: string };
  sent.push(id);
  return await answer(id, request.signal);
};
const keyOf = (tenantId: `tenant_${string}`): string => {
  const minter = { keyId: "key_0", tenantId: undefined, scopes: new Set(["inference"] as const) };
  return world.tenants.apiKeys.mint(minter, tenantId, "k", ["inference"]).apiKey;
};

beforeEach(() => {
  world = createWorld();
  nowMs = Date.now();
  sent = [];
  answer = ok;
  service = open();
  const { tenants } = world;
  app = createApp({
    authenticator: tenants.apiKeys,
    routes: [
      (it) => {
        const limiter = new ConcurrencyLimiter(2);
        addMessageBatchRoutes(it, { batches: service, uploads: limiter, downloads: limiter });
      },
    ],
    metrics: new Metrics(),
    log: () => undefined,
  });
  apiKey = keyOf(tenants.create("acme").id);
  owner = tenants.apiKeys.authenticate(apiKey) as typeof owner;
});
afterEach(async () => {
  await service.stop();
  await world.remove();
});

const requestsOf = (count: number) =>
  Array.from({ length: count }, (_, i) => ({ custom_id: `line-${i}`, params: { id: `line-${i}` } }));
const create = (count: number): Promise<BatchRow> => {
  const lines = requestsOf(count).map(({ custom_id: id, params }) => messageLine(id, params));
  return service.createMessages(owner, owner.tenantId, 1_000, async (file) => {
    await file.add(Buffer.from(lines.join("")));
    return count;
  });
};
const path = "/v1/messages/batches";
const ask = (method: string, rest = "", body?: unknown, key = apiKey) => call(app, key, method, `${path}${rest}`, body);

interface Result {
  readonly custom_id: string;
  readonly result: { readonly type: string; readonly error?: { readonly error: { readonly type: string } } };
}
async function resultsOf({ id }: { readonly id: string }): Promise<Result[]> {
  const { status, body, headers } = await ask("GET", `/${id}/results`);
  expect([status, headers.get("content-type")]).toEqual([200, "application/x-jsonl"]);
  return String(body)
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as Result);
}
const none = { processing: 0, succeeded: 0, errored: 0, canceled: 0, expired: 0 };

describe("a batch of messages", () => {
  test("has each line once, in order, as a message or as the error that it was", async () => {
    answer = (id) => (id === "line-1" ? Response.json(refusal, { status: 400 }) : ok(id));
    const made = await ask("POST", "", { requests: requestsOf(30) });
    expect(made.body).toMatchObject({
      ...{ type: "message_batch", processing_status: "in_progress", request_counts: { ...none, processing: 30 } },
      ...{ ended_at: null, cancel_initiated_at: null, archived_at: null, results_url: null },
    });
    expect((await ask("GET", `/${made.id}/results`)).status).toBe(409);
    service.start(send);
    await service.idle();
    const { body } = await ask("GET", `/${made.id}`);
    const counts = { ...none, succeeded: 29, errored: 1 };
    expect(body).toMatchObject({
      ...{ processing_status: "ended", request_counts: counts, results_url: `${path}/${made.id}/results` },
    });
    const results = await resultsOf(made);
    expect(results.map(({ custom_id: id }) => id)).toEqual(requestsOf(30).map(({ custom_id: id }) => id));
    expect(results[0]?.result).toEqual({
      type: "succeeded",
      message: { type: "message", id: "line-0", usage },
    } as never);
    expect(results[1]?.result).toEqual({ type: "errored", error: refusal } as never);
    expect(sent).toHaveLength(30);
    const row = service.get(owner.tenantId, made.id, "messageBatch");
    expect(row).toMatchObject({ inputTokens: 29 * 9, cachedTokens: 29 * 2, outputTokens: 29 });
  });

  test("is cancelled: what was not made says so", async () => {
    answer = (id, signal) =>
      Number(id.slice(5)) < 5
        ? ok(id)
        : new Promise((resolve) => signal.addEventListener("abort", () => resolve(ok(id))));
    service.start(send);
    const batch = await create(30);
    await until(() => service.get(owner.tenantId, batch.id, "messageBatch").completed === 5);
    expect((await ask("POST", `/${batch.id}/cancel`)).body).toMatchObject({
      ...{ processing_status: "canceling", request_counts: { ...none, processing: 30 } },
      cancel_initiated_at: new Date(nowMs).toISOString(),
    });
    expect((await ask("DELETE", `/${batch.id}`)).status).toBe(409);
    await service.idle();
    expect((await ask("GET", `/${batch.id}`)).body).toMatchObject({
      ...{ processing_status: "ended", request_counts: { ...none, succeeded: 5, canceled: 25 } },
    });
    const types = (await resultsOf(batch)).map(({ result }) => result.type);
    expect(types).toEqual([...Array<string>(5).fill("succeeded"), ...Array<string>(25).fill("canceled")]);
    expect((await ask("POST", `/${batch.id}/cancel`)).status).toBe(200);
  });

  test("expires: what was not made says so", async () => {
    const batch = await create(3);
    nowMs += batchLimits.windowMs;
    service.start(send);
    await service.idle();
    expect((await ask("GET", `/${batch.id}`)).body).toMatchObject({ request_counts: { ...none, expired: 3 } });
    expect((await resultsOf(batch)).map(({ result }) => result)).toEqual(Array(3).fill({ type: "expired" }));
    expect(sent).toEqual([]);
  });

  test("whose key is revoked errs, each line with the reason", async () => {
    service.start(send);
    const release = Promise.withResolvers<void>();
    answer = async (id) => {
      await release.promise;
      return ok(id);
    };
    const batch = await create(30);
    await until(() => sent.length === batchLimits.linesPerTenant);
    world.db.client.run("update api_keys set revoked_at = 1");
    release.resolve();
    await service.idle();
    apiKey = keyOf(owner.tenantId);
    const errored = 30 - batchLimits.linesPerTenant;
    const counts = { ...none, succeeded: batchLimits.linesPerTenant, errored };
    expect((await ask("GET", `/${batch.id}`)).body).toMatchObject({ request_counts: counts });
    const failed = (await resultsOf(batch)).filter(({ result }) => result.type === "errored");
    expect(failed.map(({ result }) => result.error?.error.type)).toEqual(Array(errored).fill("authentication_error"));
  });

  test("has results up to so many bytes", async () => {
    const body = "x".repeat(batchLimits.maxOutputBytes / 4);
    answer = (id) => Response.json({ id, body });
    service.start(send);
    const batch = await create(6);
    await service.idle();
    expect((await ask("GET", `/${batch.id}`)).body).toMatchObject({
      request_counts: { ...none, succeeded: 3, errored: 3 },
    });
  });

  test("a stopped server's is gone on with, and what was begun is made again", async () => {
    answer = (id, signal) =>
      Number(id.slice(5)) < 10
        ? ok(id)
        : new Promise((resolve) => signal.addEventListener("abort", () => resolve(ok(id))));
    service.start(send);
    const batch = await create(20);
    await until(() => service.get(owner.tenantId, batch.id, "messageBatch").completed === 10);
    await service.stop();
    sent = [];
    answer = ok;
    const next = open();
    next.start(send);
    await next.idle();
    expect(sent).toHaveLength(10);
    expect((await resultsOf(batch)).map(({ result }) => result.type)).toEqual(Array(20).fill("succeeded"));
    await next.stop();
  });

  test("is deleted with its requests and its results", async () => {
    service.start(send);
    const batch = await create(2);
    await service.idle();
    const files = () => world.db.client.query("select id from files where deleted_at is null").all();
    expect(files()).toHaveLength(2);
    expect((await ask("DELETE", `/${batch.id}`)).body).toEqual({ id: batch.id, type: "message_batch_deleted" });
    expect(files()).toEqual([]);
    expect((await ask("GET", `/${batch.id}`)).body).toMatchObject({
      ...{ type: "error", error: { type: "not_found_error" } },
    });
  });

  test("whose results were deleted as a file has none", async () => {
    service.start(send);
    const batch = await create(1);
    await service.idle();
    const { outputFileId } = service.get(owner.tenantId, batch.id, "messageBatch");
    world.corpus.files.delete(owner.tenantId, outputFileId ?? "");
    expect((await ask("GET", `/${batch.id}/results`)).status).toBe(404);
    expect((await ask("DELETE", `/${batch.id}`)).status).toBe(200);
  });
});

describe("lists and other tenants", () => {
  test("pages from either end; batches of the other API are not among them, nor the other way around", async () => {
    const ids: string[] = [];
    for (let i = 0; i < 5; i++) ids.unshift((await create(1)).id);
    const bytes = new TextEncoder().encode("{}");
    const file = { filename: "b.jsonl", purpose: "batch", mediaType: "", bytes };
    const { id: inputFileId } = await world.corpus.files.upload(owner.tenantId, file);
    const request = { inputFileId, endpoint: "/v1/embeddings", metadata: null };
    const other = service.create(owner, owner.tenantId, request);
    expect((await ask("GET")).ids).toEqual(ids);
    expect(service.list(owner.tenantId, { limit: 9, order: "desc" }).rows.map(({ id }) => id)).toEqual([other.id]);
    expect((await ask("GET", "?limit=2")).body).toMatchObject({ first_id: ids[0], last_id: ids[1], has_more: true });
    expect((await ask("GET", `?limit=2&after_id=${ids[2]}`)).ids).toEqual(ids.slice(3));
    expect((await ask("GET", `?limit=2&before_id=${ids[3]}&beta=true`)).ids).toEqual(ids.slice(1, 3));
    for (const kind of ["batch", "messageBatch"] as const) {
      const id = kind === "batch" ? ids[0] : other.id;
      expect(() => service.get(owner.tenantId, id ?? "", kind)).toThrow(expect.objectContaining({ code: "not_found" }));
    }
  });

  test("another tenant's batch is none", async () => {
    const { id } = await create(1);
    const stranger = keyOf(world.tenants.create("other").id);
    for (const route of ["GET ", "GET /results", "POST /cancel", "DELETE "]) {
      const [method = "", rest = ""] = route.split(" ");
      expect([route, (await ask(method, `/${id}${rest}`, undefined, stranger)).status]).toEqual([route, 404]);
    }
    expect((await ask("GET", "", undefined, stranger)).body).toEqual({
      ...{ data: [], first_id: null, last_id: null, has_more: false },
    });
    expect((await ask("GET", `?after_id=${id}`, undefined, stranger)).body).toMatchObject({
      error: { details: { param: "after_id" } },
    });
  });

  test("so many may wait, and the requests of one too many do not stay", async () => {
    for (let i = 1; i < batchLimits.maxOpenPerTenant; i++) await create(1);
    // Of two at the same time, one has its requests stored before it is known that it is too many.
    const two = await Promise.allSettled([create(1), create(1)]);
    expect(two.map(({ status }) => status).toSorted()).toEqual(["fulfilled", "rejected"]);
    await expect(create(1)).rejects.toMatchObject({ code: "quota_exceeded" });
    const files = world.db.client.query("select id from files where deleted_at is null").all();
    expect(files).toHaveLength(batchLimits.maxOpenPerTenant);
    expect(readdirSync(join(world.dir, "files")).filter((name) => name.endsWith(".tmp"))).toEqual([]);
  });
});

test("what is wrong with a batch is named", async () => {
  const one = { custom_id: "a", params: {} };
  for (const [body, param] of [
    [{ requests: [one, { ...one, custom_id: "b" }, one] }, "requests[2].custom_id"],
    [{ requests: [one], metadata: {} }, "metadata"],
  ] as const) {
    const { status, body: said } = await ask("POST", "", body);
    expect([param, status, said]).toMatchObject([param, 400, { type: "error", error: { details: { param } } }]);
  }
  expect(readdirSync(join(world.dir, "files"))).toEqual([]);
  expect((await ask("POST", "", { requests: [{ ...one, params: { stream: false } }] })).status).toBe(200);
  for (const query of ["?limit=0", "?limit=1001", "?after=x", "?order=asc", "?beta=1"]) {
    expect([query, (await ask("GET", query)).status]).toEqual([query, 400]);
  }
  const headers = { authorization: `Bearer ${apiKey}`, "anthropic-version": "1999-01-01" };
  expect((await app.request(path, { headers })).status).toBe(400);
});
