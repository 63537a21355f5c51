import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Hono } from "hono";
import type { TenantId } from "../../../db/ids.ts";
import { ApiError } from "../../../gateway/base/errors.ts";
import { embedderMeter } from "../../../gateway/generate/token-metering.ts";
import { createApp } from "../../../gateway/http/app.ts";
import { ConcurrencyLimiter } from "../../../gateway/http/middleware/concurrency.ts";
import { addEmbeddingRoutes, type EmbeddingDeps } from "../../../gateway/http/openai/embeddings.ts";
import type { AppEnv } from "../../../gateway/http/transport/context.ts";
import { Metrics } from "../../../gateway/telemetry/metrics.ts";
import type { Principal } from "../../../gateway/tenant/principal.ts";
import { RateLimiter } from "../../../gateway/tenant/rate-limiter.ts";
import { createWorld, type World } from "../../corpus/world.ts";
import { yieldsDuring } from "../../support/yields.ts";
import { call } from "../store-app.ts";

/** A word is a token; a text's vector counts its letters a, b and c. */
const letters = "abc";
const card = { modelName: "letters", modelId: "letters-1", dimensions: 3, maxTokens: 8, vocabSize: 10 };
const words = (text: string) => Int32Array.from(text.split(" "), (word) => word.length);

function vectorOf(text: string): Float32Array {
  const counts = [...letters].map((letter) => text.split(letter).length - 1);
  const norm = Math.hypot(...counts) || 1;
  return Float32Array.from(counts, (count) => count / norm);
}

/** What was encoded to be ranked. */
const ranked = new Map<Int32Array, string>();
let failing = false;

const embedding: EmbeddingDeps["embedding"] = {
  rerankerCard: () => Promise.resolve(undefined),
  encodePairs: () => Promise.resolve(undefined),
  scorePairs: () => Promise.resolve([]),
  card: () => Promise.resolve(card),
  encode: async (text, role, maxTokens) => {
    const sequence = words(text).slice(0, maxTokens);
    if (role !== undefined) ranked.set(sequence, text);
    return sequence;
  },
  embedTokens: async (sequences) => {
    if (failing) throw new ApiError("worker_lost");
    return sequences.map((ids) => {
      const text = ranked.get(ids);
      return text === undefined ? Float32Array.of(ids[0] ?? 0, ids.length, 0.1) : vectorOf(text);
    });
  },
};

let world: World;
let app: Hono<AppEnv>;
let key = "";
let tenantId: TenantId;
const limiter = new ConcurrencyLimiter(1);
const usage: [string, object][] = [];
const metrics = new Metrics({ add: (id, counts) => void usage.push([id, counts]) });

beforeAll(() => {
  world = createWorld();
  const { tenants } = world;
  const rateLimiter = new RateLimiter(8, () => 0);
  const meter = embedderMeter(rateLimiter, metrics);
  const routes = [(it: Hono<AppEnv>) => addEmbeddingRoutes(it, { embedding, limiter, meter })];
  const rateLimits = { limiter: rateLimiter, ownersOf: (caller: Principal) => tenants.limits.owners(caller) };
  app = createApp({ authenticator: tenants.apiKeys, routes, rateLimits, metrics, log: () => undefined });
  const admin = tenants.apiKeys.valid(tenants.apiKeys.bootstrap(undefined)?.apiKey ?? "");
  if (admin === undefined) throw new Error("no admin key");
  const { id } = tenants.create("t");
  tenantId = id;
  key = tenants.apiKeys.mint(admin, id, "k", ["inference"]).apiKey;
});
afterAll(() => world.remove());

const post = (path: string, body: unknown) => call(app, key, "POST", path, body);
const embed = (fields: object) => post("/v1/embeddings", { model: "letters", input: "a bb", ...fields });
const rerank = (fields: object) =>
  post("/v1/rerank", { model: "letters", query: "a", documents: ["b", "a", "ab"], ...fields });
const errorOf = ({ status, body }: { status: number; body: unknown }) => {
  const { code, param } = (body as { error: { code: string; param: string | null } }).error;
  return { status, code, param };
};

describe("embeddings", () => {
  test("float, and base64 of little-endian float32", async () => {
    const vector = [...Float32Array.of(1, 2, 0.1)];
    expect((await embed({})).body).toEqual({
      object: "list",
      data: [{ object: "embedding", index: 0, embedding: vector }],
      model: "letters",
      usage: { prompt_tokens: 2, total_tokens: 2 },
    });
    const { body } = await embed({ encoding_format: "base64" });
    const [{ embedding: text } = { embedding: "" }] = (body as { data: { embedding: string }[] }).data;
    const bytes = Buffer.from(text, "base64");
    expect([0, 4, 8].map((at) => bytes.readFloatLE(at))).toEqual(vector);
  });

  test("takes a text, texts, token ids and lists of them, in order", async () => {
    const firsts = async (input: unknown) =>
      ((await embed({ input })).body as { data: { index: number; embedding: number[] }[] }).data.map((one) => [
        one.index,
        ...one.embedding.slice(0, 2),
      ]);
    expect(await firsts(["a", "bb b b"])).toEqual([
      [0, 1, 1],
      [1, 2, 3],
    ]);
    expect(await firsts([7, 8])).toEqual([[0, 7, 2]]);
    expect(await firsts([[7], [9, 9, 9]])).toEqual([
      [0, 7, 1],
      [1, 9, 3],
    ]);
    expect((await embed({ dimensions: 3, user: "u" })).status).toBe(200);
  });

  test("a long list is whole, in order, written in slices with other work", async () => {
    const input = Array.from({ length: 1_000 }, (_, index) => [(index % 9) + 1]);
    const { result: text, yields } = await yieldsDuring(async () => {
      const response = await app.request("/v1/embeddings", {
        method: "POST",
        headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
        body: JSON.stringify({ model: "letters", input }),
      });
      expect(response.headers.get("content-type")).toContain("application/json");
      return await response.text();
    });
    expect(yields).toBeGreaterThan(12);
    const answer = JSON.parse(text) as { data: { index: number; embedding: number[] }[] };
    expect(answer.data.map(({ embedding: [first] }) => first)).toEqual(input.flat());
    expect(answer.data.map(({ index }) => index)).toEqual(input.keys().toArray());
    expect(answer).toMatchObject({ object: "list", model: "letters", usage: { prompt_tokens: 1_000 } });
  });

  test("refuses what it cannot do, by name", async () => {
    const invalid = (param: string, code = "invalid_value") => ({ status: 400, code, param });
    expect(errorOf(await embed({ dimensions: 2 }))).toEqual(invalid("dimensions"));
    expect(errorOf(await embed({ encoding_format: "int8" }))).toEqual(invalid("encoding_format"));
    expect(errorOf(await embed({ input: "" }))).toMatchObject({ status: 400, param: "input" });
    expect(errorOf(await embed({ input: [] }))).toMatchObject({ status: 400, param: "input" });
    expect(errorOf(await embed({ input: ["a", ""] }))).toMatchObject({ status: 400 });
    expect(errorOf(await embed({ input: [1.5] }))).toMatchObject({ status: 400 });
    expect(errorOf(await embed({ input: [[1], [3, 10]] }))).toEqual(invalid("input[1][1]"));
    expect(errorOf(await embed({ input: ["a", "a ".repeat(8)] }))).toEqual(
      invalid("input[1]", "context_length_exceeded"),
    );
    expect(errorOf(await embed({ model: "other" }))).toEqual({ status: 404, code: "model_not_found", param: "model" });
    expect(errorOf(await embed({ task: "x" }))).toEqual(invalid("task", "unsupported_field"));
    expect((await call(app, undefined, "POST", "/v1/embeddings", {})).status).toBe(401);
  });

  test("leaves its place when it is refused", () => expect(limiter.running(tenantId)).toBe(0));
});

describe("rerank", () => {
  test("documents by their relevance, with their places in the request", async () => {
    const answer = await rerank({});
    const { results, usage } = answer.body as {
      results: { index: number; relevance_score: number; document: { text: string } }[];
      usage: object;
    };
    expect(results.map(({ index, document }) => [index, document.text])).toEqual([
      [1, "a"],
      [2, "ab"],
      [0, "b"],
    ]);
    expect(results.map(({ relevance_score: score }) => Number(score.toFixed(3)))).toEqual([1, 0.854, 0.5]);
    expect(usage).toEqual({ total_tokens: 4 });
  });

  test("the best only, without their texts", async () => {
    const { body } = await rerank({ documents: [{ text: "b" }, { text: "a" }], top_n: 1, return_documents: false });
    expect((body as { results: unknown }).results).toEqual([{ index: 1, relevance_score: 1 }]);
    expect((await rerank({ top_n: 99 })).status).toBe(200);
  });

  test("refuses what it cannot do, by name", async () => {
    expect(errorOf(await rerank({ documents: [] }))).toMatchObject({ status: 400, param: "documents" });
    expect(errorOf(await rerank({ documents: ["a", 1] }))).toMatchObject({ status: 400 });
    expect(errorOf(await rerank({ top_n: 0 }))).toMatchObject({ status: 400, param: "top_n" });
    expect(errorOf(await rerank({ query: "" }))).toMatchObject({ status: 400, param: "query" });
    expect(errorOf(await rerank({ max_tokens_per_doc: 5 }))).toMatchObject({ code: "unsupported_field" });
    expect(errorOf(await rerank({ model: "other" }))).toMatchObject({ status: 404, param: "model" });
  });
});

describe("tokens", () => {
  const unlimited = {
    requestsPerMinute: null,
    tokensPerMinute: null,
    concurrency: null,
    kvBytes: null,
    kvDiskBytes: null,
    kvS3Bytes: null,
    storageBytes: null,
    tokensPerDay: null,
    tokensPerMonth: null,
  };
  const counted = (name: string): number =>
    Number(new RegExp(`^${name} (\\d+)$`, "m").exec(metrics.render())?.[1] ?? 0);

  test("of a ranking are those that the model reads: the end of a long document is left out", async () => {
    const { body } = await rerank({ documents: ["b ".repeat(20).trim()] });
    expect((body as { usage: unknown }).usage).toEqual({ total_tokens: 1 + card.maxTokens });
  });

  test("are counted for the tenant and for the operator, when the request succeeds", async () => {
    usage.length = 0;
    const before = [counted("spangate_embedding_requests_total"), counted("spangate_embedding_tokens_total")];
    await embed({});
    await rerank({});
    failing = true;
    expect((await embed({})).status).toBe(503);
    expect((await rerank({})).status).toBe(503);
    failing = false;
    await embed({ input: "" });
    expect(usage).toEqual([
      [tenantId, { requests: 1, embeddingTokens: 2 }],
      [tenantId, { requests: 1, embeddingTokens: 4 }],
    ]);
    const after = [counted("spangate_embedding_requests_total"), counted("spangate_embedding_tokens_total")];
    expect(after).toEqual([(before[0] ?? 0) + 2, (before[1] ?? 0) + 6]);
  });

  test("count against the tenant's limit, reserved before and given back when it fails", async () => {
    world.tenants.limits.setTenant(tenantId, { ...unlimited, tokensPerMinute: 6 });
    failing = true;
    for (let times = 0; times < 4; times++) expect((await embed({})).status).toBe(503);
    failing = false;
    expect((await embed({})).status).toBe(200);
    expect((await rerank({})).status).toBe(200);
    const refused = await embed({});
    expect(errorOf(refused)).toMatchObject({ status: 429, code: "rate_limited" });
    world.tenants.limits.setTenant(tenantId, unlimited);
    expect((await embed({})).status).toBe(200);
  });
});
