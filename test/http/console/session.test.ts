/** The console's cookie: who gets one, what it counts for, and where a request may come from that it counts for. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import type { Hono } from "hono";
import { addTenantRoutes } from "../../../gateway/http/admin/tenants.ts";
import { createApp } from "../../../gateway/http/app.ts";
import { addConsoleRoutes } from "../../../gateway/http/console/console.ts";
import { addSessionRoutes } from "../../../gateway/http/console/session.ts";
import type { AppEnv } from "../../../gateway/http/transport/context.ts";
import { Metrics } from "../../../gateway/telemetry/metrics.ts";
import { AuditLog } from "../../../gateway/tenant/audit.ts";
import { ServerSecret } from "../../../gateway/tenant/secret.ts";
import { Sessions } from "../../../gateway/tenant/sessions.ts";
import { SignInFailures } from "../../../gateway/tenant/sign-in-failures.ts";
import { createWorld, type World } from "../../corpus/world.ts";

const publicUrl = "https://spangate.example.com";
const local = "http://127.0.0.1:8080";
const path = "/admin/v1/session";
const own = { "x-spangate-console": "1", "sec-fetch-site": "same-origin" };

describe("the console's cookie", () => {
  let world: World;
  let app: Hono<AppEnv>;
  let sessions: Sessions;
  let adminKey: string;
  let address: string;
  beforeEach(() => {
    world = createWorld();
    address = "10.0.0.1";
    const { tenants } = world;
    adminKey = tenants.apiKeys.bootstrap(undefined)?.apiKey ?? "";
    sessions = new Sessions({
      secret: new ServerSecret(new Uint8Array(32)),
      principalOf: (keyId) => tenants.apiKeys.principalOf(keyId),
      bounds: { sessionMs: 60_000, sessionIdleMs: 60_000, sessionsPerKey: 9, sessions: 9, signInLinks: 9 },
      nowMs: Date.now,
    });
    const door = { sessions, publicUrl };
    const failures = new SignInFailures({ mostAMinute: 3, addresses: 9, nowMs: Date.now });
    const others = { stored: { wake: () => undefined }, traces: { forget: () => undefined } };
    app = createApp({
      authenticator: tenants.apiKeys,
      door,
      routes: [
        (it) => addSessionRoutes(it, { door, failures, tenants }),
        (it) => addConsoleRoutes(it, "1.2.3"),
        (it) => addTenantRoutes(it, { ...world, ...others, batches: { recheck: () => undefined } }),
      ],
      audit: new AuditLog(world.db),
      metrics: new Metrics(),
      log: () => undefined,
    });
  });
  afterEach(() => world.remove());

  type Headers = Readonly<Record<string, string>>;
  const send = async (url: string, method: string, headers: Headers, body?: unknown) => {
    const init = { method, headers: { ...headers, ...(body !== undefined && { "content-type": "application/json" }) } };
    const request = new Request(url, { ...init, ...(body !== undefined && { body: JSON.stringify(body) }) });
    const response = await app.fetch(request, { address: () => address });
    const answer = (await response.json()) as { error?: { code: string; param: string | null } } & Record<
      string,
      unknown
    >;
    const cookie = response.headers.get("set-cookie") ?? "";
    return { status: response.status, code: answer.error?.code, param: answer.error?.param, body: answer, cookie };
  };
  const signIn = (origin = local, headers: Headers = own, given: object = { api_key: adminKey }) =>
    send(origin + path, "POST", headers, given);
  /** `name=value` of the cookie that a sign-in has set. */
  const cookieOf = async (origin = local): Promise<string> => (await signIn(origin)).cookie.split(";")[0] ?? "";
  const outcome = ({ status, code }: { status: number; code: string | undefined }) => `${status} ${code ?? ""}`.trim();

  test("is set for a key, in the form that fits the address, and is on record", async () => {
    const here = await signIn();
    expect(here.status).toBe(201);
    expect(here.body).toMatchObject({ object: "session", tenant_id: null, tenant_name: null });
    expect(here.cookie).toMatch(/^spangate-session-8080=[\w-]{43}; Path=\/; HttpOnly; SameSite=Strict$/);
    const there = await signIn(publicUrl);
    expect(there.cookie).toMatch(/^__Host-spangate-session=[\w-]{43}; Path=\/; HttpOnly; Secure; SameSite=Strict$/);
    const rows = world.db.client.query("select action, key_id from audit_events").all();
    const row = { action: "POST /admin/v1/session", key_id: here.body.key_id };
    expect(rows).toEqual([row, row]);
  });

  test("stands for the key on its routes, and only until the key is revoked", async () => {
    const { id } = world.tenants.create("acme");
    const admin = world.tenants.apiKeys.valid(adminKey);
    if (admin === undefined) throw new Error("no admin");
    const { apiKey, row } = world.tenants.apiKeys.mint(admin, id, "k", ["tenant:admin"]);
    const [cookie = ""] = (await signIn(local, own, { api_key: apiKey })).cookie.split(";");
    const headers = { ...own, cookie };
    expect((await send(local + path, "GET", headers)).body).toMatchObject({
      ...{ key_id: row.id, tenant_id: id, tenant_name: "acme", scopes: ["tenant:admin"] },
      expires_at: expect.any(Number),
    });
    expect(outcome(await send(`${local}/admin/v1/tenants/${id}`, "GET", headers))).toBe("200");
    expect(outcome(await send(`${local}/admin/v1/tenants`, "POST", headers, { name: "x" }))).toBe(
      "403 insufficient_scope",
    );
    world.tenants.apiKeys.revoke(admin, row.id);
    expect(outcome(await send(`${local}/admin/v1/tenants/${id}`, "GET", headers))).toBe("401 session_ended");
  });

  test.each([
    ["without the console's header", local, { "sec-fetch-site": "same-origin" }, "403 not_from_console"],
    ["with another value of it", local, { ...own, "x-spangate-console": "0" }, "403 not_from_console"],
    ["from another site", local, { ...own, "sec-fetch-site": "cross-site" }, "403 not_from_console"],
    ["from another port of this host", local, { ...own, "sec-fetch-site": "same-site" }, "403 not_from_console"],
    ["typed into the address bar", local, { ...own, "sec-fetch-site": "none" }, "403 not_from_console"],
    ["from nowhere", local, { "x-spangate-console": "1" }, "403 not_from_console"],
    [
      "from another origin",
      local,
      { "x-spangate-console": "1", origin: "http://localhost:8080" },
      "403 not_from_console",
    ],
    ["from no origin", local, { "x-spangate-console": "1", origin: "null" }, "403 not_from_console"],
    ["from its own origin", local, { "x-spangate-console": "1", origin: local }, "ok"],
    ["at localhost", "http://localhost:8080", own, "ok"],
    ["at loopback in IPv6", "http://[::1]:8080", own, "ok"],
    ["at a name that leads to this machine", "http://rebound.example.com:8080", own, "403 console_address"],
    ["at a name that begins like loopback", "http://127.0.0.1.example.com:8080", own, "403 console_address"],
    ["at an address of the network", "http://10.0.0.7:8080", own, "403 console_address"],
    ["at the public address", publicUrl, own, "ok"],
    ["at another port of it", `${publicUrl}:8443`, own, "403 console_address"],
  ])("a request %s", async (_name, origin, headers, expected) => {
    const signedIn = await signIn(origin, headers);
    expect(outcome(signedIn)).toBe(expected === "ok" ? "201" : expected);
    expect(signedIn.cookie === "").toBe(expected !== "ok");
    // The cookie of a session that was begun as it should, under both names.
    const { token } = sessions.begin((await signIn()).body.key_id as `key_${string}`);
    const cookie = `spangate-session-8080=${token}; __Host-spangate-session=${token}`;
    const made = await send(`${origin}/admin/v1/tenants`, "POST", { ...headers, cookie }, { name: "forged" });
    // At an address that is none of ours the cookie is not even looked at.
    const refused = expected === "403 console_address" ? "401 missing_api_key" : expected;
    expect(outcome(made)).toBe(expected === "ok" ? "201" : refused);
    expect(world.tenants.list({ limit: 9, order: "asc" }).rows).toHaveLength(expected === "ok" ? 1 : 0);
  });

  test("counts for nothing beside a key, wrong ones too, and a port's own for that port alone", async () => {
    const cookie = await cookieOf();
    const both = { ...own, cookie, authorization: "Bearer sk-wrong" };
    expect(outcome(await send(local + path, "GET", both))).toBe("401 invalid_api_key");
    expect(outcome(await send(`http://127.0.0.1:9090${path}`, "GET", { ...own, cookie }))).toBe("401 missing_api_key");
  });

  test("ends by signing out, and is taken back", async () => {
    const headers = { ...own, cookie: await cookieOf() };
    const out = await send(local + path, "DELETE", headers);
    expect(out.body).toEqual({ object: "session.deleted", deleted: true });
    expect(out.cookie).toMatch(/^spangate-session-8080=; Max-Age=0; Path=\//);
    expect(outcome(await send(local + path, "GET", headers))).toBe("401 session_ended");
  });

  test("a link signs in once", async () => {
    const keyId = world.tenants.apiKeys.valid(adminKey)?.keyId as `key_${string}`;
    const link = sessions.makeLink(keyId);
    expect((await signIn(local, own, { link })).body).toMatchObject({ key_id: keyId });
    expect(await signIn(local, own, { link })).toMatchObject({ status: 401, code: "invalid_api_key", param: "link" });
  });

  test.each([[{}], [{ api_key: "a", link: "b" }]])("what is neither a key nor a link: %j", async (given) => {
    expect(await signIn(local, own, given)).toMatchObject({ status: 400, param: "api_key" });
  });

  test("after three sign-ins of an address that failed none is looked at; behind the proxy, of the one that it names", async () => {
    const wrong = { api_key: "sk-wrong" };
    for (let at = 0; at < 3; at++) expect(outcome(await signIn(local, own, wrong))).toBe("401 invalid_api_key");
    expect(outcome(await signIn())).toBe("429 rate_limited");
    // On the machine itself nobody names another address.
    expect(outcome(await signIn(local, { ...own, "x-forwarded-for": "10.0.0.9" }))).toBe("429 rate_limited");
    address = "10.0.0.2";
    expect(outcome(await signIn())).toBe("201");
    const from = (last: string) => ({ ...own, "x-forwarded-for": `1.2.3.4, ${last}` });
    for (let at = 0; at < 3; at++) await signIn(publicUrl, from("10.0.0.3"), wrong);
    expect(outcome(await signIn(publicUrl, from("10.0.0.3")))).toBe("429 rate_limited");
    expect(outcome(await signIn(publicUrl, from("10.0.0.4")))).toBe("201");
  });

  test("who asks with a key is told whose it is", async () => {
    const answer = await send(local + path, "GET", { authorization: `Bearer ${adminKey}` });
    expect(answer.body).toMatchObject({ tenant_id: null, expires_at: null });
    expect(outcome(await send(local + path, "GET", {}))).toBe("401 missing_api_key");
  });
});
