/** Shared vector stores: who may share, what a grant opens, and that nothing is left of it when it is revoked. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { newId, type TenantId } from "../../../db/ids.ts";
import { call, createStoreApp, type StoreApp, upload } from "../store-app.ts";

let it: StoreApp;
let owner: ReturnType<StoreApp["tenant"]>;
let store = "";
let file = "";

beforeAll(async () => {
  it = createStoreApp();
  owner = it.tenant("owner");
  file = await upload(it.app, owner.key, "a.txt", "The heron stands in the reeds. Nobody sees it.");
  store = (await call(it.app, owner.key, "POST", "/v1/vector_stores", { file_ids: [file] })).id;
  await it.world.corpus.idle();
});
afterAll(() => it.world.remove());

const grants = (key: string, method: string, rest = "", body?: unknown) =>
  call(it.app, key, method, `/admin/v1/vector_stores/${store}/grants${rest}`, body);
const search = (key: string, id = store) =>
  call(it.app, key, "POST", `/v1/vector_stores/${id}/search`, { query: "heron" });

describe("a grant", () => {
  test("opens the store for reading, under the owner's salt, and is listed until it is revoked", async () => {
    const friend = it.tenant("friend");
    expect((await search(friend.key)).status).toBe(404);
    const made = await grants(owner.key, "POST", "", { tenant_id: friend.id });
    expect([made.status, made.body]).toMatchObject([201, { object: "vector_store.grant", tenant_id: friend.id }]);
    expect(await grants(owner.key, "GET")).toMatchObject({ status: 200, body: { data: [made.body] } });
    expect((await search(friend.key)).body).toMatchObject({ data: [{ file_id: file }] });
    const read = (tenantId: TenantId) =>
      it.world.corpus.retrieve({ tenantId, vectorStoreIds: [store], query: "heron", maxResults: 1 });
    expect(await read(friend.id)).toEqual(await read(owner.id));
    const fragment = (await read(owner.id))[0]?.id ?? "";
    expect(it.world.corpus.readFragments(friend.id, [fragment])[0]).toBeDefined();

    expect((await grants(owner.key, "DELETE", `/${friend.id}`)).body).toMatchObject({ id: friend.id, deleted: true });
    expect(it.world.spans.evictedDerived.map(([, tenantId]) => tenantId)).toEqual([friend.id]);
    const revoked = await search(friend.key);
    const unknown = await search(friend.key, newId("corpus"));
    expect([revoked.status, revoked.body]).toEqual([404, unknown.body]);
    expect(() => read(friend.id)).toThrow("No such vector store.");
    expect(it.world.corpus.readFragments(friend.id, [fragment])).toEqual([undefined]);
    expect(await grants(owner.key, "GET")).toMatchObject({ body: { data: [] } });
    expect((await grants(owner.key, "DELETE", `/${friend.id}`)).status).toBe(404);
    expect((await search(owner.key)).status).toBe(200);
  });

  test("may be given twice, and goes with the tenant it was given to", async () => {
    const friend = it.tenant("short-lived");
    const first = await grants(owner.key, "POST", "", { tenant_id: friend.id });
    const again = await grants(owner.key, "POST", "", { tenant_id: friend.id });
    expect(again.body).toEqual(first.body);
    expect((await call(it.app, it.adminKey, "DELETE", `/admin/v1/tenants/${friend.id}`)).status).toBe(200);
    expect(await grants(owner.key, "GET")).toMatchObject({ body: { data: [] } });
  });

  test("is the owner's to give: not a reader's, nor without tenant:admin", async () => {
    const friend = it.tenant("reader");
    const other = it.tenant("other");
    await grants(owner.key, "POST", "", { tenant_id: friend.id });
    for (const [method, rest, body] of [
      ["POST", "", { tenant_id: other.id }],
      ["GET", "", undefined],
      ["DELETE", `/${friend.id}`, undefined],
    ] as const) {
      expect((await grants(friend.key, method, rest, body)).status).toBe(404);
    }
    const worker = it.tenant("writer", "corpus:read", "corpus:write", "inference");
    expect((await grants(worker.key, "POST", "", { tenant_id: other.id })).status).toBe(403);
    await grants(owner.key, "DELETE", `/${friend.id}`);
  });

  test("to nobody, to oneself, or with other fields is refused by name", async () => {
    const refused = async (body: unknown, status: number, param: string) => {
      const answer = await grants(owner.key, "POST", "", body);
      expect([answer.status, answer.body]).toMatchObject([status, { error: { param } }]);
    };
    await refused({ tenant_id: newId("tenant") }, 404, "tenant_id");
    await refused({ tenant_id: "me" }, 404, "tenant_id");
    await refused({ tenant_id: owner.id }, 400, "tenant_id");
    await refused({ tenant_id: 7 }, 400, "tenant_id");
    await refused({}, 400, "tenant_id");
    await refused({ tenant_id: "x".repeat(65) }, 400, "tenant_id");
    await refused({ tenant_id: owner.id, access: "write" }, 400, "access");
    expect((await grants(owner.key, "DELETE", "/nobody")).status).toBe(404);
  });
});

describe("a tenant's KV", () => {
  const evicted = () => it.world.spans.evictedTenants;

  test("is purged on request, by its own admin or the platform's; another tenant's is unknown", async () => {
    const tenant = it.tenant("purging");
    const path = `/admin/v1/tenants/${tenant.id}/cache`;
    for (const key of [tenant.key, it.adminKey]) {
      const before = evicted().length;
      expect(await call(it.app, key, "DELETE", path)).toMatchObject({
        status: 200,
        body: { id: tenant.id, object: "tenant_cache.deleted", deleted: true, blocks: it.world.spans.resident.size },
      });
      expect(evicted().slice(before)).toEqual([[tenant.id, "all"]]);
    }
    const before = evicted().length;
    const foreign = await call(it.app, owner.key, "DELETE", path);
    const unknown = await call(it.app, owner.key, "DELETE", `/admin/v1/tenants/${newId("tenant")}/cache`);
    expect([foreign.status, foreign.body]).toEqual([404, unknown.body]);
    expect(evicted().length).toBe(before);
  });

  test("goes with a rotation of the tenant's salt, its corpora's excepted, and with the tenant", async () => {
    const tenant = it.tenant("rotating");
    const before = evicted().length;
    await call(it.app, tenant.key, "POST", `/admin/v1/tenants/${tenant.id}/salt/rotate`);
    await call(it.app, it.adminKey, "DELETE", `/admin/v1/tenants/${tenant.id}`);
    expect(evicted().slice(before)).toEqual([
      [tenant.id, "text"],
      [tenant.id, "all"],
    ]);
  });
});
