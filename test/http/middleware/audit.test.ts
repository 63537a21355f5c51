/** Every change that the audit log tells of is made together with its row: both, or neither. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { createApp } from "../../../gateway/http/app.ts";
import { declaredRoutes, declareRoute } from "../../../gateway/http/transport/route.ts";
import { Metrics } from "../../../gateway/telemetry/metrics.ts";
import { AuditLog } from "../../../gateway/tenant/audit.ts";
import { createWorld } from "../../corpus/world.ts";
import { type Answer, call, createStoreApp, type StoreApp, upload } from "../store-app.ts";

/** What the routes are called on. */
interface Objects {
  readonly tenantId: string;
  readonly otherId: string;
  readonly key: string;
  readonly keyId: string;
  readonly fileId: string;
  readonly storeId: string;
  readonly sharedId: string;
  readonly jobId: string;
  readonly fragmentId: string;
  readonly sourceId: string;
}

/** An address that nobody is asked for: a source of a private network is not read. */
const sourceUrl = "http://127.0.0.1:9/";

type By = "admin" | "tenant";
/** Route, who calls it, and the body that it succeeds with. */
const changes: readonly (readonly [route: string, by: By, body?: object])[] = [
  ["POST /admin/v1/tenants", "admin", { name: "new" }],
  ["PATCH /admin/v1/tenants/:tenant_id", "admin", { name: "other name" }],
  ["DELETE /admin/v1/tenants/:tenant_id", "admin"],
  ["POST /admin/v1/tenants/:tenant_id/salt/rotate", "admin", {}],
  ["DELETE /admin/v1/tenants/:tenant_id/cache", "admin"],
  ["POST /admin/v1/tenants/:tenant_id/keys", "admin", { scopes: ["inference"] }],
  ["DELETE /admin/v1/keys/:key_id", "admin"],
  ["PUT /admin/v1/tenants/:tenant_id/limits", "admin", { concurrency: 3 }],
  ["PUT /admin/v1/keys/:key_id/limits", "admin", { concurrency: 3 }],
  ["POST /admin/v1/vector_stores/:vector_store_id/salt/rotate", "tenant", {}],
  ["POST /admin/v1/vector_stores/:vector_store_id/grants", "tenant", { tenant_id: "" }],
  ["DELETE /admin/v1/vector_stores/:shared_id/grants/:other_id", "tenant"],
  ["POST /admin/v1/vector_stores/:vector_store_id/prepare", "tenant", {}],
  ["POST /admin/v1/jobs/:job_id/cancel", "tenant", {}],
  ["POST /admin/v1/fragments/:fragment_id/pin", "tenant", {}],
  ["POST /admin/v1/fragments/:fragment_id/unpin", "tenant", {}],
  ["POST /admin/v1/fragments/:fragment_id/evict", "tenant", {}],
  ["POST /admin/v1/vector_stores/:vector_store_id/sources", "tenant", { url: sourceUrl, name: "new" }],
  ["POST /admin/v1/sources/:source_id/run", "tenant", {}],
  ["DELETE /admin/v1/sources/:source_id", "tenant"],
  ["DELETE /v1/vector_stores/:vector_store_id/files/:file_id", "tenant"],
  ["DELETE /v1/vector_stores/:vector_store_id", "tenant"],
  ["DELETE /v1/files/:file_id", "tenant"],
];

describe("audited changes", () => {
  let store: StoreApp;
  let objects: Objects;
  beforeEach(async () => {
    store = createStoreApp();
    const { app, adminKey } = store;
    const { id: tenantId, key } = store.tenant("one");
    const { id: otherId } = store.tenant("two");
    const create = async (file_ids: readonly string[]) =>
      (await call(app, key, "POST", "/v1/vector_stores", { name: "s", file_ids })).id;
    const keys = await call(app, adminKey, "GET", `/admin/v1/tenants/${tenantId}/keys`);
    const fileId = await upload(app, key, "a.txt", "some text");
    const [storeId, sharedId] = [await create([fileId]), await create([])];
    await call(app, key, "POST", `/admin/v1/vector_stores/${sharedId}/grants`, { tenant_id: otherId });
    const job = await call(app, key, "POST", `/admin/v1/vector_stores/${sharedId}/prepare`, {});
    const source = await call(app, key, "POST", `/admin/v1/vector_stores/${storeId}/sources`, { url: sourceUrl });
    await store.world.corpus.idle();
    const [fragmentId = ""] = (await call(app, key, "GET", `/admin/v1/vector_stores/${storeId}/fragments`)).ids;
    objects = {
      tenantId,
      otherId,
      key,
      keyId: keys.ids[0] ?? "",
      fileId,
      storeId,
      sharedId,
      jobId: job.id,
      fragmentId,
      sourceId: source.id,
    };
  });
  afterEach(() => store.world.remove());

  const make = ([route, by, body]: (typeof changes)[number]): Promise<Answer> => {
    const { tenantId, otherId, key, keyId, fileId, storeId, sharedId, jobId, fragmentId, sourceId } = objects;
    const ids: Record<string, string> = {
      ...{ tenant_id: tenantId, other_id: otherId, key_id: keyId, file_id: fileId },
      ...{ vector_store_id: storeId, shared_id: sharedId, job_id: jobId, fragment_id: fragmentId, source_id: sourceId },
    };
    const [method = "", path = ""] = route.split(" ");
    const url = path.replace(/:(\w+)/g, (_, name) => ids[name] ?? "");
    const sent = body !== undefined && "tenant_id" in body ? { tenant_id: otherId } : body;
    return call(store.app, by === "admin" ? store.adminKey : key, method, url, sent);
  };
  const rowsOf = (table: string) => store.world.db.client.query(`select * from ${table}`).all();
  const tables = [
    "tenants",
    "api_keys",
    "corpora",
    "corpus_grants",
    "files",
    "tenant_limits",
    "api_key_limits",
    "fragment_pins",
    "sources",
  ];
  const state = () => JSON.stringify([...tables, "corpus_files"].map((table) => [table, rowsOf(table)]));
  const events = () => rowsOf("audit_events") as { action: string; object_ids: string; tenant_id: string | null }[];

  test("are all there are: every such route is among them", () => {
    const named = (path: string) => path.replace(/:\w+(\{[^}]*\})?/g, ":");
    const made = new Set(changes.map(([route]) => named(route)));
    const audited = declaredRoutes(store.app)
      .filter(({ method, path }) => method === "DELETE" || (path.startsWith("/admin/v1/") && method !== "GET"))
      .map(({ method, path }) => named(`${method} ${path}`));
    expect(audited.filter((route) => !made.has(route))).toEqual([]);
  });

  test.each(changes.map((change) => [change[0], change] as const))(
    "%s: neither the change nor its row when the row cannot be written, then both",
    async (_route, change) => {
      const { db } = store.world;
      db.client.run("create trigger no_audit before insert on audit_events begin select raise(abort, 'no'); end");
      const jobs = rowsOf("jobs").length;
      const before = state();
      expect((await make(change)).status).toBeGreaterThanOrEqual(500);
      expect(state()).toBe(before);
      expect(rowsOf("jobs")).toHaveLength(jobs);

      db.client.run("drop trigger no_audit");
      const [eventCount, lineCount] = [events().length, store.logged.length];
      expect((await make(change)).status).toBeLessThan(300);
      const written = events().slice(eventCount);
      expect(written).toHaveLength(1);
      const [method] = change[0].split(" ");
      expect(written[0]?.action).toStartWith(`${method} /`);
      expect(store.logged.slice(lineCount).filter((line) => line.startsWith("error"))).toEqual([]);
    },
  );

  test("a tenant is shown what the platform did to what is its own", async () => {
    const rotation = "POST /admin/v1/vector_stores/:vector_store_id/salt/rotate";
    const others = ["POST /admin/v1/tenants", "DELETE /admin/v1/keys/:key_id", "DELETE /admin/v1/tenants/:tenant_id"];
    const done = changes.filter(([route, by]) => by === "admin" && !others.includes(route));
    for (const [route, , body] of [...done, [rotation, "admin", {}] as const]) {
      expect((await make([route, "admin", body])).status).toBeLessThan(300);
      const { body: seen } = await call(store.app, objects.key, "GET", "/admin/v1/audit?limit=1");
      const action = route.replace(/:(\w+)/g, "{$1}");
      expect(seen).toMatchObject({ data: [{ action, tenant_id: objects.tenantId, actor: { tenant_id: null } }] });
    }
    // With its key gone it sees no more: the row says whose it was.
    await make(["DELETE /admin/v1/keys/:key_id", "admin"]);
    expect(events().at(-1)).toMatchObject({ action: "DELETE /admin/v1/keys/{key_id}", tenant_id: objects.tenantId });
  });

  test("a grant names whom it is for", async () => {
    await make(["POST /admin/v1/vector_stores/:vector_store_id/grants", "tenant", { tenant_id: "" }]);
    expect(JSON.parse(events().at(-1)?.object_ids ?? "{}")).toEqual({
      vector_store_id: objects.storeId,
      tenant_id: objects.otherId,
    });
  });

  test("the platform may rotate any corpus' salt; a tenant another's never, as if it were unknown", async () => {
    const rotate = (key: string, id: string) =>
      call(store.app, key, "POST", `/admin/v1/vector_stores/${id}/salt/rotate`, {});
    expect((await rotate(store.adminKey, objects.storeId)).body).toMatchObject({ id: objects.storeId, epoch: 1 });
    expect((await rotate(objects.key, objects.storeId)).body).toMatchObject({ epoch: 2 });
    const { key } = store.tenant("three");
    const unknown = `vs_${"0".repeat(24)}`;
    const [theirs, none] = [await rotate(key, objects.storeId), await rotate(key, unknown)];
    expect([theirs.status, theirs.body]).toEqual([404, none.body]);
    expect((await rotate(store.adminKey, unknown)).status).toBe(404);
    await call(store.app, objects.key, "DELETE", `/v1/vector_stores/${objects.storeId}`);
    expect((await rotate(store.adminKey, objects.storeId)).status).toBe(404);
  });
});

test("a handler that makes its change without its row is told of, and its change is on record all the same", async () => {
  const world = createWorld();
  const { tenants, db } = world;
  const lines: string[] = [];
  const app = createApp({
    authenticator: tenants.apiKeys,
    routes: [
      (it) =>
        declareRoute(
          it,
          { method: "DELETE", path: "/v1/things/:thing_id", scope: "platform:admin", count: "free" },
          (c) => c.json({}),
        ),
    ],
    audit: new AuditLog(db),
    metrics: new Metrics(),
    log: (level, message) => void lines.push(`${level} ${message}`),
  });
  const { apiKey = "" } = tenants.apiKeys.bootstrap(undefined) ?? {};
  const headers = { authorization: `Bearer ${apiKey}` };
  await app.request("/v1/things/file-000000000000000000000000", { method: "DELETE", headers });
  expect(lines.filter((line) => line.startsWith("error"))).toEqual(["error a change was made before its audit event"]);
  const rows = db.client.query("select action, object_ids from audit_events").all();
  const objectIds = JSON.stringify({ thing_id: "file-000000000000000000000000" });
  expect(rows).toEqual([{ action: "DELETE /v1/things/{thing_id}", object_ids: objectIds }]);
  world.remove();
});

test("a caller of no tenant sees nothing of the log but with platform:admin", () => {
  const world = createWorld();
  const audit = new AuditLog(world.db);
  const caller = { keyId: "key", tenantId: undefined, scopes: new Set(["tenant:admin"] as const) };
  expect(() => audit.list(caller, { limit: 5, order: "asc" })).toThrow(expect.objectContaining({ code: "no_tenant" }));
  expect(audit.list({ ...caller, scopes: new Set(["platform:admin"]) }, { limit: 5, order: "asc" }).rows).toEqual([]);
  world.remove();
});
