import { describe, expect, test } from "bun:test";
import type { TenantId } from "../../../db/ids.ts";
import type { RateLimits } from "../../../db/limits.ts";
import { createApp } from "../../../gateway/http/app.ts";
import { durationText } from "../../../gateway/http/middleware/rate-limits.ts";
import { declareRoute } from "../../../gateway/http/transport/route.ts";
import { Metrics } from "../../../gateway/telemetry/metrics.ts";
import type { Scope } from "../../../gateway/tenant/principal.ts";
import { RateLimiter } from "../../../gateway/tenant/rate-limiter.ts";
import { chatRig, post, question } from "../chat-rig.ts";

const none: RateLimits = { requestsPerMinute: null, tokensPerMinute: null, concurrency: null };

function limitedRig(limits: Partial<RateLimits>, options: { readonly ticking?: boolean } = {}) {
  const limiter = new RateLimiter(10, () => 1_000);
  const owners = [{ id: "tenant_a", kind: "tenant", limits: { ...none, ...limits } }] as const;
  const ownersOf = ({ tenantId }: { tenantId: TenantId | undefined }) => (tenantId === "tenant_a" ? owners : []);
  return { ...chatRig({ ...options, rateLimits: { limiter, ownersOf } }), limiter };
}

const headersOf = (response: Response): Record<string, string> =>
  Object.fromEntries([...response.headers].filter(([name]) => name.startsWith("x-ratelimit-")));

const settled = async (condition: () => boolean): Promise<void> => {
  while (!condition()) await Bun.sleep(1);
};

describe("requests a minute", () => {
  test("are counted in the headers, and refused before any work", async () => {
    const { app, submits } = limitedRig({ requestsPerMinute: 2 });
    const first = await post(app, question);
    expect([first.status, headersOf(first)]).toEqual([
      200,
      {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "30s",
      },
    ]);
    await (await post(app, { ...question, stream: true })).text();
    const refused = await post(app, question);
    expect(refused.status).toBe(429);
    expect(refused.headers.get("retry-after")).toBe("30");
    expect(refused.headers.get("x-ratelimit-remaining-requests")).toBe("0");
    expect(await refused.json()).toEqual({
      error: {
        message: "The tenant has reached its limit of 2 requests a minute. Try again in 30 s.",
        type: "rate_limit_error",
        param: null,
        code: "rate_limited",
      },
    });
    expect(submits()).toHaveLength(2);
    expect((await post(app, question, { key: "key-b" })).status).toBe(200);
  });

  test("Anthropic's clients get the refusal in their own shape", async () => {
    const { app } = limitedRig({ requestsPerMinute: 1 });
    const message = { ...question, max_tokens: 4 };
    expect((await post(app, message, { path: "/v1/messages" })).status).toBe(200);
    const refused = await post(app, message, { path: "/v1/messages" });
    expect(refused.status).toBe(429);
    expect(await refused.json()).toMatchObject({ type: "error", error: { type: "rate_limit_error" } });
    expect(refused.headers.get("retry-after")).toBe("60");
  });

  test("what is not admitted is not read, and what only looks counts for nothing", async () => {
    const { app } = limitedRig({ requestsPerMinute: 1 });
    const headers = { authorization: "Bearer key-a" };
    for (let i = 0; i < 3; i++) expect((await app.request("/v1/models", { headers })).status).toBe(200);
    expect((await post(app, question, { key: "key-reader" })).status).toBe(403);
    expect((await post(app, "no JSON")).status).toBe(400);
    expect((await post(app, "no JSON")).status).toBe(429);
  });
});

describe("tokens a minute", () => {
  test("are settled by the answer's usage", async () => {
    const { app, limiter } = limitedRig({ tokensPerMinute: 10_000 });
    const response = await post(app, { ...question, max_tokens: 4 });
    const { usage } = (await response.json()) as { usage: { total_tokens: number } };
    expect(usage.total_tokens).toBeGreaterThan(4);
    expect(response.headers.get("x-ratelimit-remaining-tokens")).toBe(String(10_000 - usage.total_tokens));
    expect(limiter.running("tenant_a")).toBe(0);
  });

  test("a stream that is cut costs what it gave, and its prompt", async () => {
    const { app, processes, limiter } = limitedRig({ tokensPerMinute: 10_000 }, { ticking: false });
    const leaving = new AbortController();
    const pending = post(app, { ...question, max_tokens: 500, stream: true }, { signal: leaving.signal });
    const core = processes[0]?.core;
    await settled(() => core?.runningCount === 1);
    core?.tick();
    const response = await pending;
    const reserved = 10_000 - Number(response.headers.get("x-ratelimit-remaining-tokens"));
    expect(reserved).toBeGreaterThan(500);
    await response.body?.cancel();
    await settled(() => limiter.running("tenant_a") === 0 && core?.runningCount === 0);
    const owners = [{ id: "tenant_a", kind: "tenant", limits: { ...none, tokensPerMinute: 10_000 } }] as const;
    const taken = 10_000 - (limiter.standing(owners, "tokens")?.remaining ?? 0);
    expect(taken).toBe(reserved - 500 + 1);
  });
});

describe("requests at the same time", () => {
  test("a stream counts until it has ended", async () => {
    const { app, processes, limiter } = limitedRig({ concurrency: 1 }, { ticking: false });
    const pending = post(app, { ...question, stream: true });
    const core = processes[0]?.core;
    await settled(() => core?.runningCount === 1);
    core?.tick();
    const stream = await pending;
    const refused = await post(app, question);
    expect([refused.status, refused.headers.get("retry-after")]).toEqual([429, "1"]);
    expect(await refused.json()).toMatchObject({ error: { code: "concurrency_limited", type: "rate_limit_error" } });
    while (core?.runningCount === 1) core.tick();
    expect(await stream.text()).toEndWith("data: [DONE]\n\n");
    await settled(() => limiter.running("tenant_a") === 0);
    const whole = post(app, question);
    await settled(() => core?.runningCount === 1);
    while (core?.runningCount === 1) core.tick();
    expect((await whole).status).toBe(200);
    expect(limiter.running("tenant_a")).toBe(0);
  });
});

describe("what counts", () => {
  const limits = { ...none, requestsPerMinute: 1 };
  const limiter = new RateLimiter(10, () => 1_000);
  const app = createApp({
    authenticator: {
      authenticate: () => ({ keyId: "k", tenantId: "tenant_t", scopes: new Set<Scope>(["corpus:read"]) }),
    },
    rateLimits: { limiter, ownersOf: () => [{ id: "t", kind: "tenant", limits }] },
    routes: [
      (it) =>
        declareRoute(it, { method: "POST", path: "/v1/search", scope: "corpus:read", count: "request" }, (context) =>
          context.text("ok"),
        ),
      (it) =>
        declareRoute(it, { method: "GET", path: "/v1/files", scope: "corpus:read", count: "request" }, (context) =>
          context.text("ok"),
        ),
      (it) =>
        declareRoute(
          it,
          { method: "GET", path: "/v1/files/:file_id", scope: "corpus:read", count: "look" },
          (context) => context.text("ok"),
        ),
      (it) =>
        declareRoute(
          it,
          { method: "DELETE", path: "/v1/files/:file_id", scope: "corpus:read", count: "free" },
          (context) => context.text("ok"),
        ),
      (it) =>
        declareRoute(
          it,
          { method: "POST", path: "/v1/batches/:id/cancel", scope: "corpus:read", count: "free" },
          (context) => context.text("ok"),
        ),
      (it) =>
        declareRoute(it, { method: "POST", path: "/open", scope: "public", count: "free" }, (context) =>
          context.text("ok"),
        ),
    ],
    metrics: new Metrics(),
    log: () => undefined,
  });
  const call = async (method: string, path: string) =>
    (await app.request(path, { method, headers: { authorization: "Bearer k" } })).status;

  test("whatever computes, writes or lists is a request; looks have a limit of their own, and what ends work has none", async () => {
    expect(await call("POST", "/v1/search")).toBe(200);
    expect([await call("POST", "/v1/search"), await call("GET", "/v1/files")]).toEqual([429, 429]);
    for (let round = 0; round < 700; round++) {
      expect(await call("GET", "/v1/files/a")).toBe(round < 600 ? 200 : 429);
      expect(await call("DELETE", "/v1/files/a")).toBe(200);
      expect(await call("POST", "/v1/batches/a/cancel")).toBe(200);
      expect(await call("POST", "/open")).toBe(200);
    }
    expect(limiter.running("t")).toBe(0);
  });
});

test("durations as OpenAI's servers write them", () => {
  expect([0, 16.2, 999, 1_000, 1_549, 59_900, 60_000, 372_000].map(durationText)).toEqual([
    ...["0ms", "17ms", "999ms", "1s", "1.6s", "59.9s", "1m0s", "6m12s"],
  ]);
});
