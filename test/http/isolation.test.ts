/**
 * Who may do what, over every route there is: another tenant's object answers exactly like none, and a key
 * without a route's scope is refused before anything is looked up. A new route without a row here fails.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { insertGrant } from "../../db/corpora.ts";
import { type IdKind, newId } from "../../db/ids.ts";
import { declaredRoutes, type RouteDeclaration } from "../../gateway/http/transport/route.ts";
import { type Scope, scopes } from "../../gateway/tenant/principal.ts";
import { call, createStoreApp, form, type StoreApp, upload } from "./store-app.ts";

let it: StoreApp;
let alice: ReturnType<StoreApp["tenant"]>;
let bob: ReturnType<StoreApp["tenant"]>;
/** Alice's objects, by the name of the path parameter that takes them. */
const owned: Record<string, string> = {};
let bobsStore = "";
let bobsFile = "";

/** Nothing is fetched from there: it is not of the public internet. */
const sourceUrl = "http://127.0.0.1:1/";
const uploadRequest = { bytes: 8, filename: "a.txt", mime_type: "text/plain", purpose: "assistants" };

const kinds: Readonly<Record<string, IdKind>> = {
  file_id: "file",
  vector_store_id: "corpus",
  batch_id: "fileBatch",
  job_id: "job",
  tenant_id: "tenant",
  key_id: "apiKey",
  upload_id: "upload",
  source_id: "source",
};

/** A body that is valid for the route; `file` stands for a file id. */
function bodyOf({ method, path }: RouteDeclaration, file: string): unknown {
  const bodies: Readonly<Record<string, unknown>> = {
    "POST /v1/vector_stores": { name: "n" },
    "POST /v1/vector_stores/:vector_store_id": { name: "n" },
    "POST /v1/vector_stores/:vector_store_id/search": { query: "words" },
    "POST /v1/vector_stores/:vector_store_id/files": { file_id: file },
    "POST /v1/vector_stores/:vector_store_id/files/:file_id": { attributes: { a: 1 } },
    "POST /v1/vector_stores/:vector_store_id/file_batches": { file_ids: [file] },
    "POST /v1/uploads": uploadRequest,
    "POST /v1/uploads/:upload_id/parts": form("data", "12345678"),
    "POST /v1/uploads/:upload_id/complete": { part_ids: [newId("uploadPart")] },
    "POST /admin/v1/vector_stores/:vector_store_id/grants": { tenant_id: bob.id },
    "POST /admin/v1/vector_stores/:vector_store_id/sources": { url: sourceUrl },
    "POST /admin/v1/tenants": { name: "n" },
    "PATCH /admin/v1/tenants/:tenant_id": { name: "n" },
    "POST /admin/v1/tenants/:tenant_id/keys": { scopes: ["inference"] },
    "PUT /admin/v1/tenants/:tenant_id/limits": { concurrency: 1 },
    "PUT /admin/v1/keys/:key_id/limits": { concurrency: 1 },
  };
  return bodies[`${method} ${path}`];
}

const fill = (path: string, ids: Readonly<Record<string, string>>) =>
  path.replace(/:([a-z_]+)/g, (_, name: string) => ids[name] ?? "missing");
const randomIds = () => Object.fromEntries(Object.entries(kinds).map(([name, kind]) => [name, newId(kind)]));
const idRoutes = () => declaredRoutes(it.app).filter((route) => route.path.includes(":"));

beforeAll(async () => {
  it = createStoreApp();
  alice = it.tenant("alice");
  bob = it.tenant("bob");
  const { app } = it;
  const file = await upload(app, alice.key, "a.txt", "Alice has words. Secret words.");
  const store = await call(app, alice.key, "POST", "/v1/vector_stores", { name: "alice's" });
  const batch = await call(app, alice.key, "POST", `/v1/vector_stores/${store.id}/file_batches`, { file_ids: [file] });
  await it.world.corpus.idle();
  const job = await call(app, alice.key, "POST", `/admin/v1/vector_stores/${store.id}/prepare`);
  await it.world.corpus.idle();
  const key = await call(app, it.adminKey, "POST", `/admin/v1/tenants/${alice.id}/keys`, { scopes: ["inference"] });
  const pending = await call(app, alice.key, "POST", "/v1/uploads", uploadRequest);
  const source = await call(app, alice.key, "POST", `/admin/v1/vector_stores/${store.id}/sources`, { url: sourceUrl });
  const ids = {
    file_id: file,
    upload_id: pending.id,
    vector_store_id: store.id,
    batch_id: batch.id,
    job_id: job.id,
    tenant_id: alice.id,
    key_id: key.id,
    source_id: source.id,
  };
  Object.assign(owned, ids);
  bobsStore = (await call(app, bob.key, "POST", "/v1/vector_stores", { name: "bob's" })).id;
  bobsFile = await upload(app, bob.key, "b.txt", "Bob has words as well.");
});
afterAll(() => it.world.remove());

describe("another tenant's objects", () => {
  test("answer like unknown ones, on every route that takes an id", async () => {
    expect(idRoutes().length).toBeGreaterThan(20);
    for (const route of idRoutes()) {
      const asked = (ids: Readonly<Record<string, string>>) =>
        call(it.app, bob.key, route.method, fill(route.path, ids), bodyOf(route, bobsFile));
      const foreign = await asked(owned);
      const unknown = await asked(randomIds());
      const label = `${route.method} ${route.path}`;
      expect([label, foreign.status, foreign.body]).toEqual([label, unknown.status, unknown.body]);
      // 403: routes of the platform's operators, which Bob's key cannot even try.
      expect([label, foreign.status]).toEqual([label, route.scope === "platform:admin" ? 403 : 404]);
    }
  });

  test("nor can they be reached through an object of one's own", async () => {
    const attempts: readonly (readonly [
      method: string,
      path: string,
      make: (ids: Record<string, string>) => unknown,
    ])[] = [
      ["POST", "/v1/vector_stores", (ids) => ({ file_ids: [ids.file_id] })],
      ["POST", `/v1/vector_stores/${bobsStore}/files`, (ids) => ({ file_id: ids.file_id })],
      ["POST", `/v1/vector_stores/${bobsStore}/file_batches`, (ids) => ({ file_ids: [bobsFile, ids.file_id] })],
      ["POST", `/v1/vector_stores/${bobsStore}/file_batches`, (ids) => ({ files: [{ file_id: ids.file_id }] })],
    ];
    for (const [method, path, make] of attempts) {
      const foreign = await call(it.app, bob.key, method, path, make(owned));
      const unknown = await call(it.app, bob.key, method, path, make(randomIds()));
      expect(foreign.status).toBe(404);
      expect(foreign.body).toEqual(unknown.body);
    }
    const nested = [
      `/v1/vector_stores/${bobsStore}/files/${owned.file_id}`,
      `/v1/vector_stores/${bobsStore}/files/${owned.file_id}/content`,
      `/v1/vector_stores/${bobsStore}/file_batches/${owned.batch_id}`,
      `/v1/vector_stores/${bobsStore}/file_batches/${owned.batch_id}/files`,
      `/admin/v1/vector_stores/${bobsStore}/fragments?file_id=${owned.file_id}`,
    ];
    for (const path of nested) {
      const { status, ids } = await call(it.app, bob.key, "GET", path);
      expect([path, status === 404 || (status === 200 && ids.length === 0)]).toEqual([path, true]);
    }
  });

  test("cursors of another tenant are unknown cursors", async () => {
    const lists: readonly (readonly [path: string, cursor: string])[] = [
      ["/v1/files", "file_id"],
      ["/v1/vector_stores", "vector_store_id"],
      [`/v1/vector_stores/${bobsStore}/files`, "file_id"],
      [`/admin/v1/tenants/${bob.id}/keys`, "key_id"],
    ];
    for (const [path, cursor] of lists) {
      for (const param of ["after", "before"]) {
        const foreign = await call(it.app, bob.key, "GET", `${path}?${param}=${owned[cursor]}`);
        const unknown = await call(it.app, bob.key, "GET", `${path}?${param}=${randomIds()[cursor]}`);
        expect([path, foreign.status, foreign.body]).toEqual([path, 404, unknown.body]);
        expect(foreign.body).toMatchObject({ error: { param } });
      }
    }
  });

  test("are in nobody else's lists and searches", async () => {
    expect((await call(it.app, bob.key, "GET", "/v1/files")).ids).toEqual([bobsFile]);
    expect((await call(it.app, bob.key, "GET", "/v1/vector_stores")).ids).toEqual([bobsStore]);
    const search = await call(it.app, bob.key, "POST", `/v1/vector_stores/${bobsStore}/search`, {
      query: "secret words",
    });
    expect(search.body).toMatchObject({ data: [] });
  });

  test("all is still there for their owner", async () => {
    for (const route of idRoutes().filter(({ method, path }) => method === "GET" && !path.endsWith("/events"))) {
      const key = route.scope === "platform:admin" ? it.adminKey : alice.key;
      const { status } = await call(it.app, key, "GET", fill(route.path, owned));
      expect([route.path, status]).toEqual([route.path, 200]);
    }
  });
});

describe("scopes", () => {
  test("every route refuses every scope it does not name, and no key at all", async () => {
    const keyOf = new Map<Scope, string>(scopes.map((scope) => [scope, it.tenant(`only ${scope}`, scope).key]));
    for (const route of declaredRoutes(it.app)) {
      const path = fill(route.path, randomIds());
      const accepted: readonly string[] = typeof route.scope === "string" ? [route.scope] : route.scope;
      const label = `${route.method} ${route.path}`;
      for (const [scope, key] of keyOf) {
        const { status } = await call(it.app, key, route.method, path, bodyOf(route, newId("file")));
        if (accepted.includes(scope)) expect([label, scope, status]).not.toEqual([label, scope, 403]);
        else expect([label, scope, status]).toEqual([label, scope, 403]);
      }
      expect([label, (await call(it.app, undefined, route.method, path)).status]).toEqual([label, 401]);
      expect([label, (await call(it.app, "sk-wrong", route.method, path)).status]).toEqual([label, 401]);
    }
  });

  test("a tenant's admin mints for its own tenant, and only what it holds", async () => {
    const admin = it.tenant("own", "tenant:admin", "corpus:read");
    const mint = (id: string, wanted: readonly string[]) =>
      call(it.app, admin.key, "POST", `/admin/v1/tenants/${id}/keys`, { scopes: wanted });
    expect(await mint(admin.id, ["corpus:read"])).toMatchObject({ status: 201, body: { scopes: ["corpus:read"] } });
    for (const wanted of [["corpus:write"], ["platform:admin"], ["corpus:read", "inference"]]) {
      expect(await mint(admin.id, wanted)).toMatchObject({ status: 403, body: { error: { param: "scopes" } } });
    }
    expect((await mint(alice.id, ["corpus:read"])).status).toBe(404);
    expect((await mint(admin.id, ["everything"])).status).toBe(400);
    expect((await call(it.app, admin.key, "DELETE", `/admin/v1/keys/${owned.key_id}`)).status).toBe(404);
  });

  test("the platform's key acts for no tenant", async () => {
    const { status, body } = await call(it.app, it.adminKey, "GET", "/v1/files");
    expect([status, body]).toMatchObject([403, { error: { code: "no_tenant" } }]);
  });

  test("a grant opens a corpus for reading only", async () => {
    const store = owned.vector_store_id as `vs_${string}`;
    const friend = it.tenant("friend");
    insertGrant(it.world.db, store, friend.id, 1);
    const as = (method: string, path: string, body?: unknown) =>
      call(it.app, friend.key, method, `/v1/vector_stores/${store}${path}`, body);
    expect((await as("POST", "/search", { query: "secret" })).status).toBe(200);
    expect((await as("GET", "")).status).toBe(200);
    expect((await as("POST", "", { name: "mine" })).status).toBe(404);
    expect((await as("DELETE", "")).status).toBe(404);
    expect((await as("DELETE", `/files/${owned.file_id}`)).status).toBe(404);
    expect((await call(it.app, friend.key, "GET", `/v1/files/${owned.file_id}/content`)).status).toBe(404);
    expect((await call(it.app, friend.key, "POST", `/admin/v1/vector_stores/${store}/salt/rotate`)).status).toBe(404);
  });
});
