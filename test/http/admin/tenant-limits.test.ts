import { afterEach, beforeEach, describe, expect, setSystemTime, test } from "bun:test";
import type { Hono } from "hono";
import { addLimitRoutes } from "../../../gateway/http/admin/tenant-limits.ts";
import { addTenantRoutes } from "../../../gateway/http/admin/tenants.ts";
import { createApp } from "../../../gateway/http/app.ts";
import type { AppEnv } from "../../../gateway/http/transport/context.ts";
import { Metrics } from "../../../gateway/telemetry/metrics.ts";
import { TokenBudgets } from "../../../gateway/tenant/token-budgets.ts";
import { UsageLedger } from "../../../gateway/tenant/usage.ts";
import { createWorld, type World } from "../../corpus/world.ts";
import { requireTenantId } from "../../support/tenant-ids.ts";

let world: World;
let app: Hono<AppEnv>;
let adminKey = "";
let usage: UsageLedger;

beforeEach(() => {
  world = createWorld();
  const { tenants, corpus } = world;
  usage = new UsageLedger(world.db, () => undefined);
  const budgets = new TokenBudgets(usage);
  app = createApp({
    authenticator: tenants.apiKeys,
    routes: [
      (it) =>
        addTenantRoutes(it, {
          ...{ tenants, corpus, stored: { wake: () => undefined } },
          batches: { recheck: () => undefined },
          traces: { forget: () => undefined },
        }),
      (it) => addLimitRoutes(it, { tenants, storage: world.storage, budgets }),
    ],
    metrics: new Metrics(),
    log: () => undefined,
  });
  adminKey = tenants.apiKeys.bootstrap(undefined)?.apiKey ?? "";
});
afterEach(() => {
  usage.stop();
  world.close();
});

async function call(method: string, path: string, body?: unknown, key = adminKey) {
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  const response = await app.request(path, { method, headers, body: body === undefined ? null : JSON.stringify(body) });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

async function tenantWithKey(name: string, ...scopes: string[]) {
  const tenant = await call("POST", "/admin/v1/tenants", { name });
  const key = await call("POST", `/admin/v1/tenants/${tenant.body.id}/keys`, { scopes });
  return { id: requireTenantId(tenant.body.id), keyId: String(key.body.id), apiKey: String(key.body.key) };
}

describe("limits of a tenant and of a key", () => {
  test("are none at first, are set whole, and count for the tenant's requests", async () => {
    const { id, keyId } = await tenantWithKey("a", "inference");
    const path = `/admin/v1/tenants/${id}/limits`;
    const unset = { requests_per_minute: null, tokens_per_minute: null, concurrency: null };
    const nothing = { files: 0, uploads: 0, texts: 0, responses: 0, batches: 0 };
    const storage = (limit_bytes: number) => ({ limit_bytes, used_bytes: 0, ...nothing });
    const budgets = (limit: number | null) => {
      const standing = { limit, used: 0, resets_at: expect.any(Number) };
      return { day: standing, month: standing };
    };
    const noBudget = { tokens_per_day: null, tokens_per_month: null, budgets: budgets(null) };
    const own = {
      kv_bytes: null,
      kv_disk_bytes: null,
      kv_s3_bytes: null,
      storage_bytes: null,
      ...noBudget,
      storage: storage(2 ** 39),
    };
    const none = { status: 200, body: { id, object: "tenant.limits", ...unset, ...own } };
    expect(await call("GET", path)).toEqual(none);
    expect(world.tenants.limits.kvBytesOf(id)).toBeUndefined();
    const wanted = {
      requests_per_minute: 60,
      tokens_per_minute: 100_000,
      concurrency: 4,
      kv_bytes: 1_048_576,
      kv_disk_bytes: 2_097_152,
      kv_s3_bytes: 4_194_304,
      storage_bytes: 7,
      tokens_per_day: 500,
      tokens_per_month: 500,
    };
    const set = { ...wanted, budgets: budgets(500), storage: storage(7) };
    const answer = { status: 200, body: { id, object: "tenant.limits", ...set } };
    expect(await call("PUT", path, wanted)).toEqual(answer);
    expect(await call("GET", path)).toEqual(answer);
    expect(await call("PUT", `/admin/v1/keys/${keyId}/limits`, { concurrency: 2 })).toEqual({
      status: 200,
      body: { id: keyId, object: "api_key.limits", ...unset, concurrency: 2 },
    });
    const { limits } = world.tenants;
    expect(limits.owners({ tenantId: id, keyId })).toEqual([
      {
        ...{ id, kind: "tenant", limits: { requestsPerMinute: 60, tokensPerMinute: 100_000, concurrency: 4 } },
        budget: { tenantId: id, tokensPerDay: 500, tokensPerMonth: 500 },
      },
      { id: keyId, kind: "API key", limits: { requestsPerMinute: null, tokensPerMinute: null, concurrency: 2 } },
    ]);
    expect(limits.owners({ tenantId: undefined, keyId })).toEqual([]);
    const quotas = () => (["device", "host", "disk", "s3"] as const).map((tier) => limits.kvBytesOf(id, tier));
    expect(quotas()).toEqual([1_048_576, undefined, 2_097_152, 4_194_304]);
    expect(await call("PUT", path, {})).toEqual(none);
    expect(quotas()).toEqual([undefined, undefined, undefined, undefined]);
  });

  test("a key has no KV of its own", async () => {
    const { keyId } = await tenantWithKey("a", "inference");
    const { status, body } = await call("PUT", `/admin/v1/keys/${keyId}/limits`, { kv_bytes: 1 });
    expect(status).toBe(400);
    expect(body.error).toMatchObject({ param: "kv_bytes" });
  });

  test("go with their tenant", async () => {
    const { id, keyId } = await tenantWithKey("a", "inference");
    await call("PUT", `/admin/v1/tenants/${id}/limits`, { concurrency: 1 });
    await call("PUT", `/admin/v1/keys/${keyId}/limits`, { concurrency: 1 });
    await call("DELETE", `/admin/v1/tenants/${id}`);
    expect((await call("GET", `/admin/v1/tenants/${id}/limits`)).status).toBe(404);
    expect((await call("GET", `/admin/v1/keys/${keyId}/limits`)).status).toBe(404);
  });

  test("what is no limit is refused by name", async () => {
    const { id } = await tenantWithKey("a", "inference");
    const rates = ["requests_per_minute", "tokens_per_minute", "concurrency"];
    for (const field of [
      ...rates,
      "kv_bytes",
      "kv_disk_bytes",
      "kv_s3_bytes",
      "storage_bytes",
      "tokens_per_day",
      "tokens_per_month",
    ]) {
      for (const value of [0, -1, 1.5, "10", 2e15, true]) {
        const { status, body } = await call("PUT", `/admin/v1/tenants/${id}/limits`, { [field]: value });
        expect({ status, error: body.error }).toMatchObject({ status: 400, error: { param: field } });
      }
    }
    const unknown = await call("PUT", `/admin/v1/tenants/${id}/limits`, { rpm: 5 });
    expect({ status: unknown.status, error: unknown.body.error }).toMatchObject({
      status: 400,
      error: { param: "rpm" },
    });
  });

  test("a tenant's administrator sees the tenant's, sets its keys', and meets nobody else's", async () => {
    const a = await tenantWithKey("a", "inference", "tenant:admin");
    const b = await tenantWithKey("b", "inference");
    const as = (method: string, path: string, body?: unknown) => call(method, path, body, a.apiKey);
    expect((await as("GET", `/admin/v1/tenants/${a.id}/limits`)).status).toBe(200);
    expect((await as("PUT", `/admin/v1/tenants/${a.id}/limits`, {})).status).toBe(403);
    expect((await as("PUT", `/admin/v1/keys/${a.keyId}/limits`, { concurrency: 1 })).status).toBe(200);
    const unknown = await as("GET", "/admin/v1/tenants/tenant_nobody/limits");
    expect(unknown.status).toBe(404);
    for (const path of [`/admin/v1/tenants/${b.id}/limits`, `/admin/v1/keys/${b.keyId}/limits`]) {
      expect(await as("GET", path)).toEqual(unknown);
    }
    expect(await as("PUT", `/admin/v1/keys/${b.keyId}/limits`, {})).toEqual(unknown);
    expect((await call("GET", `/admin/v1/tenants/${b.id}/limits`, undefined, b.apiKey)).status).toBe(403);
  });
});

describe("the expiry of a key", () => {
  const mint = (tenantId: string, fields: object, key?: string) =>
    call("POST", `/admin/v1/tenants/${tenantId}/keys`, { scopes: ["tenant:admin"], ...fields }, key);

  test("stands in its answer and in lists, and ends it with a 401 that says when", async () => {
    const { id } = await tenantWithKey("a", "inference");
    const before = Math.floor(Date.now() / 1000);
    const made = await mint(id, { expires_in_seconds: 3_600 });
    const [expiresAt, apiKey] = [Number(made.body.expires_at), String(made.body.key)];
    expect(expiresAt).toBeWithin(before + 3_600, before + 3_610);
    const listed = await call("GET", `/admin/v1/tenants/${id}/keys`);
    expect((listed.body.data as { expires_at: unknown }[]).map(({ expires_at }) => expires_at).sort()).toEqual([
      expiresAt,
      null,
    ]);
    const path = `/admin/v1/tenants/${id}/limits`;
    expect((await call("GET", path, undefined, apiKey)).status).toBe(200);
    setSystemTime(new Date((expiresAt + 1) * 1000));
    try {
      const refused = await call("GET", path, undefined, apiKey);
      const at = `${new Date(expiresAt * 1000).toISOString().slice(0, 19)}Z`;
      expect(refused).toMatchObject({
        status: 401,
        body: {
          error: { code: "api_key_expired", type: "authentication_error", message: `The API key expired at ${at}.` },
        },
      });
      expect((await call("GET", path)).status).toBe(200);
    } finally {
      setSystemTime();
    }
  });

  test("is a number of seconds within ten years, or the field is named", async () => {
    const { id } = await tenantWithKey("a", "inference");
    for (const value of [0, -1, 1.5, "30d", 1e9, true]) {
      const { status, body } = await mint(id, { expires_in_seconds: value });
      expect({ status, error: body.error }).toMatchObject({ status: 400, error: { param: "expires_in_seconds" } });
    }
    expect((await mint(id, { expires_in_seconds: null })).body.expires_at).toBeNull();
  });

  test("holds for all keys that it makes: none outlives it", async () => {
    const { id } = await tenantWithKey("a", "inference");
    const key = String((await mint(id, { expires_in_seconds: 100 })).body.key);
    for (const fields of [{}, { expires_in_seconds: 200 }]) {
      const { status, body } = await mint(id, fields, key);
      expect({ status, error: body.error }).toMatchObject({ status: 400, error: { param: "expires_in_seconds" } });
    }
    expect((await mint(id, { expires_in_seconds: 50 }, key)).status).toBe(201);
  });
});
