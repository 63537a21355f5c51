import { describe, expect, test } from "bun:test";
import type { Hono } from "hono";
import { ApiError, errorBody, errorCodes, errorEntry } from "../../gateway/base/errors.ts";
import { createApp } from "../../gateway/http/app.ts";
import type { AppEnv } from "../../gateway/http/transport/context.ts";
import { declaredRoutes, declareRoute } from "../../gateway/http/transport/route.ts";
import { Metrics } from "../../gateway/telemetry/metrics.ts";
import type { Principal, Scope } from "../../gateway/tenant/principal.ts";

function appWith(addRoutes: (app: Hono<AppEnv>) => void, log: (line: string) => void = () => undefined) {
  const principal: Principal = { keyId: "k", tenantId: "tenant_t", scopes: new Set<Scope>(["corpus:read"]) };
  return createApp({
    authenticator: { authenticate: (apiKey) => (apiKey === "good" ? principal : undefined) },
    routes: [addRoutes],
    metrics: new Metrics(),
    log: (level, message, fields) => log(JSON.stringify({ level, message, ...fields })),
  });
}
const withKey = { headers: { authorization: "Bearer good" } };

describe("default deny", () => {
  test("a route that declares no scope does not start", () => {
    const sneaky = (app: Hono<AppEnv>) => void app.get("/open", (context) => context.text("hello"));
    expect(() => appWith(sneaky)).toThrow("route GET /open declares no scope");
  });

  test("any one of the scopes of a list is enough, none is not", async () => {
    const app = appWith((it) => {
      declareRoute(
        it,
        { method: "GET", path: "/either", scope: ["platform:admin", "corpus:read"], count: "request" },
        (context) => context.text("ok"),
      );
      declareRoute(
        it,
        { method: "GET", path: "/other", scope: ["platform:admin", "tenant:admin"], count: "request" },
        (context) => context.text("ok"),
      );
      declareRoute(it, { method: "GET", path: "/open", scope: "public", count: "free" }, (context) =>
        context.text("ok"),
      );
    });
    expect((await app.request("/either", withKey)).status).toBe(200);
    expect((await app.request("/other", withKey)).status).toBe(403);
    expect((await app.request("/either")).status).toBe(401);
    expect((await app.request("/open")).status).toBe(200);
    expect(declaredRoutes(app).map((route) => route.path)).toEqual(["/either", "/other", "/open"]);
  });
});

describe("errors", () => {
  test("every code has a 4xx or 5xx status and text, and only what may pass by itself is retryable", () => {
    for (const code of errorCodes) {
      const { status, text, retryable } = errorEntry(code);
      expect(status).toBeGreaterThanOrEqual(400);
      expect(text.length).toBeGreaterThan(10);
      if (status >= 500) expect(retryable).toBe(true);
      expect(new ApiError(code).retryAfterS).toBe(retryable ? 1 : undefined);
    }
    expect(errorBody(new ApiError("worker_lost"))).toEqual({
      error: {
        message: "The worker that ran this request was lost.",
        type: "server_error",
        param: null,
        code: "worker_lost",
      },
    });
  });

  test("what a handler throws never reaches the client or the log in its own words", async () => {
    const lines: string[] = [];
    const throwing = (app: Hono<AppEnv>) =>
      declareRoute(app, { method: "GET", path: "/boom", scope: "public", count: "free" }, () => {
        throw new TypeError("tenant's\nsecret\n    at secret");
      });
    const response = await appWith(throwing, (line) => void lines.push(line)).request("/boom");
    expect(response.status).toBe(500);
    expect(await response.text()).not.toContain("secret");
    const line = lines.find((text) => text.includes("request failed"));
    expect(line).toContain('"kind":"TypeError"');
    expect(line).not.toContain("secret");
    expect(line).toMatch(/"at":"at [^"]*app\.test\.ts:\d+:\d+/);
  });

  test("an unknown route is 404 in the same shape, with a request id", async () => {
    const response = await appWith(() => undefined).request("/v2/everything");
    expect(response.status).toBe(404);
    expect(await response.json()).toMatchObject({ error: { code: "route_not_found", type: "not_found_error" } });
    expect(response.headers.get("x-request-id")).toMatch(/^req_[0-9a-f]{32}$/);
  });

  test("a request id of the caller's is never ours", async () => {
    const headers = { "x-request-id": "mine" };
    const response = await appWith(() => undefined).request("/x", { headers });
    expect(response.headers.get("x-request-id")).not.toBe("mine");
  });

  test("strange credentials are refused like unknown ones", async () => {
    const app = appWith((it) =>
      declareRoute(it, { method: "GET", path: "/x", scope: "corpus:read", count: "request" }, (context) =>
        context.text("ok"),
      ),
    );
    for (const authorization of [
      "Bearer ' OR 1=1 --",
      "Bearer",
      "bearer  ",
      `Bearer ${"k".repeat(100_000)}`,
      "Bearer é",
    ]) {
      const response = await app.request("/x", { headers: { authorization } });
      expect([response.status, await response.json()]).toMatchObject([401, { error: { code: "invalid_api_key" } }]);
    }
  });
});
