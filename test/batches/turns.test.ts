/** Batches of several tenants: whose lines are sent, when others wait, and what a deletion does to those that run. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import type { TenantId } from "../../db/ids.ts";
import { batchLimits } from "../../gateway/batches/limits.ts";
import type { SendRequest } from "../../gateway/batches/requests.ts";
import { BatchService } from "../../gateway/batches/service.ts";
import type { Principal } from "../../gateway/tenant/principal.ts";
import { createWorld, type World } from "../corpus/world.ts";
import { call, createStoreApp } from "../http/store-app.ts";
import { endpoint, linesOf, until } from "./batch-file.ts";

type Owner = Principal & { readonly tenantId: TenantId };

let world: World;
let service: BatchService;
/** Whose lines were sent, in their order. */
let sent: string[];
let answer: (name: string, id: string, signal: AbortSignal) => Promise<Response> | Response;
let names: Map<string, string>;

const ok = (id: string) => Response.json({ said: id, usage: { prompt_tokens: 1, completion_tokens: 1 } });
const limited = () => Response.json({}, { status: 429, headers: { "retry-after": "60" } });

const send: SendRequest = async (request, { principal }) => {
  const name = names.get(principal.tenantId ?? "") ?? "";
  const { id } = (await request.json()) as { id: string };
  sent.push(name);
  return await answer(name, id, request.signal);
};

function tenant(name: string): Owner {
  const { id } = world.tenants.create(name);
  names.set(id, name);
  const minter = { keyId: "key_0", tenantId: undefined, scopes: new Set(["inference"] as const) };
  return world.tenants.apiKeys.authenticate(world.tenants.apiKeys.mint(minter, id, "k", ["inference"]).apiKey) as Owner;
}

beforeEach(() => {
  world = createWorld();
  sent = [];
  names = new Map();
  answer = (_name, id) => ok(id);
  const { db, storage, corpus, tenants } = world;
  service = new BatchService({
    ...{ db, storage, files: corpus.files, apiKeys: tenants.apiKeys },
    nowMs: Date.now,
    log: () => undefined,
  });
});
afterEach(async () => {
  await service.stop();
  await world.remove();
});

async function create({ tenantId, keyId }: Owner, lines: number, name = "b.jsonl") {
  const bytes = new TextEncoder().encode(linesOf(lines));
  const file = await world.corpus.files.upload(tenantId, { filename: name, purpose: "batch", mediaType: "", bytes });
  return service.create({ keyId }, tenantId, { inputFileId: file.id, endpoint, metadata: null });
}
const get = (owner: Owner, { id }: { readonly id: string }) => service.get(owner.tenantId, id);
const held = (signal: AbortSignal) =>
  new Promise<Response>((resolve) => signal.addEventListener("abort", () => resolve(ok("late"))));

describe("tenants take turns", () => {
  test("two whose limits refuse all but a line do not keep a third's from being run", async () => {
    const [first, second, third] = [tenant("first"), tenant("second"), tenant("third")];
    const taken = new Set<string>();
    answer = (name, id) => {
      if (name === "third") return ok(id);
      if (taken.has(name)) return limited();
      taken.add(name);
      return ok(id);
    };
    service.start(send);
    const waiting = [await create(first, 2_000), await create(second, 2_000)] as const;
    await until(() => get(first, waiting[0]).completed === 1 && get(second, waiting[1]).completed === 1);
    const batch = await create(third, 3);
    await until(() => get(third, batch).status === "completed");
    expect(get(third, batch)).toMatchObject({ completed: 3, failed: 0 });
    expect(get(first, waiting[0])).toMatchObject({ status: "in_progress", completed: 1 });
    // Each is asked once for the lines that it may run at once, and then waits.
    expect(sent.filter((name) => name !== "third").length).toBeLessThanOrEqual(2 * (batchLimits.linesPerTenant + 1));
  });

  test("lines that never end of as many tenants as fill all lanes leave one to every other", async () => {
    answer = (name, id, signal) => (name.startsWith("slow") ? held(signal) : ok(id));
    service.start(send);
    const slow = [tenant("slow 0"), tenant("slow 1"), tenant("slow 2")];
    for (const owner of slow) await create(owner, 100);
    await until(() => sent.length >= batchLimits.linesAtOnce);
    const other = tenant("other");
    const batch = await create(other, 20);
    await until(() => get(other, batch).status === "completed");
    expect(sent.filter((name) => name !== "other").length).toBeLessThanOrEqual(batchLimits.linesAtOnce + slow.length);
  });

  test("a small batch is done after a few lines of a large one that came before it", async () => {
    const [large, small] = [tenant("large"), tenant("small")];
    const turn = () => new Promise<void>((resolve) => setImmediate(resolve));
    answer = async (_name, id) => {
      await turn();
      return ok(id);
    };
    service.start(send);
    const long = await create(large, 2_000);
    await until(() => get(large, long).completed > 0);
    const begun = sent.length;
    const batch = await create(small, 10);
    await until(() => get(small, batch).status === "completed");
    const last = sent.lastIndexOf("small");
    // Of what was sent between its creation and its last line; the first lines go while its file is checked.
    const between = sent.slice(sent.indexOf("small"), last).filter((name) => name === "large");
    expect(between.length).toBeLessThanOrEqual(10 + batchLimits.linesAtOnce);
    expect(begun).toBeLessThan(2_000);
  });

  test("of one tenant's the oldest goes first, and one that waits lets the next", async () => {
    const owner = tenant("owner");
    const [a, b] = [await create(owner, 30, "a.jsonl"), await create(owner, 2, "b.jsonl")];
    let aSent = 0;
    answer = (_name, id) => {
      const isOfA = get(owner, b).status !== "in_progress" || aSent < batchLimits.linesPerTenant;
      aSent += isOfA ? 1 : 0;
      return isOfA ? limited() : ok(id);
    };
    service.start(send);
    await until(() => get(owner, b).status === "completed");
    expect(get(owner, a)).toMatchObject({ status: "in_progress", completed: 0 });
  });
});

describe("lines that run end at once when", () => {
  /** A batch whose lines wait for the end of their request, and how many of those were told to end. */
  async function running() {
    const owner = tenant("owner");
    let ended = 0;
    answer = async (_name, _id, signal) => {
      const late = await held(signal);
      ended += 1;
      return late;
    };
    service.start(send);
    const batch = await create(owner, 30);
    await until(() => sent.length === batchLimits.linesPerTenant);
    return { owner, batch, ended: () => ended };
  }

  test("their tenant is deleted: nothing is left", async () => {
    const { owner, ended } = await running();
    world.tenants.delete(owner.tenantId);
    service.recheck(owner.tenantId);
    await service.idle();
    world.corpus.tenantDeleted(owner.tenantId);
    await world.corpus.idle();
    expect(ended()).toBe(batchLimits.linesPerTenant);
    expect(sent).toHaveLength(batchLimits.linesPerTenant);
    world.corpus.tenantDeleted(owner.tenantId);
    await world.corpus.idle();
    expect(world.db.client.query("select 1 from batch_results").all()).toEqual([]);
    expect(world.db.client.query("select 1 from batches").all()).toEqual([]);
    expect(world.db.client.query("select 1 from files where deleted_at is null").all()).toEqual([]);
  });

  test("their key is revoked", async () => {
    const { owner, batch, ended } = await running();
    const admin = { keyId: "key_0", tenantId: undefined, scopes: new Set(["platform:admin"] as const) };
    world.tenants.apiKeys.revoke(admin, owner.keyId);
    service.recheck(owner.tenantId);
    await service.idle();
    expect(ended()).toBe(batchLimits.linesPerTenant);
    expect(get(owner, batch)).toMatchObject({ status: "failed", completed: 0, errors: [{ code: "invalid_api_key" }] });
  });

  test("their file is deleted; another batch of the tenant's goes on", async () => {
    const { owner, batch, ended } = await running();
    const other = await create(owner, 2, "other.jsonl");
    world.corpus.files.delete(owner.tenantId, batch.inputFileId);
    answer = (_name, id) => ok(id);
    service.recheck(owner.tenantId);
    await service.idle();
    expect(ended()).toBe(batchLimits.linesPerTenant);
    expect(get(owner, batch)).toMatchObject({ status: "failed", errors: [{ code: "input_file_deleted" }] });
    expect(get(owner, other)).toMatchObject({ status: "completed", completed: 2 });
  });

  test("their batch expires", async () => {
    await service.stop();
    let shiftMs = 0;
    const { db, storage, corpus, tenants } = world;
    service = new BatchService({
      ...{ db, storage, files: corpus.files, apiKeys: tenants.apiKeys, log: () => undefined },
      nowMs: () => Date.now() + shiftMs,
    });
    const owner = tenant("owner");
    const batch = await create(owner, 9);
    shiftMs = batchLimits.windowMs - 500;
    answer = (_name, _id, signal) => held(signal);
    service.start(send);
    await until(() => sent.length === batchLimits.linesPerTenant);
    shiftMs += 500;
    await service.idle();
    expect(get(owner, batch)).toMatchObject({ status: "expired", completed: 0, failed: 9 });
  });
});

test("the routes that delete or disable a tenant or revoke a key tell its batches", async () => {
  const store = createStoreApp();
  try {
    const { id, key } = store.tenant("acme");
    const ask = (method: string, path: string, body?: unknown) => call(store.app, store.adminKey, method, path, body);
    const { body } = await ask("GET", `/admin/v1/tenants/${id}/keys`);
    const [minted] = (body as { readonly data: readonly { readonly id: string }[] }).data;
    expect(key).not.toBe("");
    expect((await ask("DELETE", `/admin/v1/keys/${minted?.id}`)).status).toBe(200);
    expect(store.rechecked).toEqual([id]);
    expect((await ask("PATCH", `/admin/v1/tenants/${id}`, { status: "disabled" })).status).toBe(200);
    expect(store.rechecked).toEqual([id, id]);
    expect((await ask("PATCH", `/admin/v1/tenants/${id}`, { status: "active" })).status).toBe(200);
    expect((await ask("DELETE", `/admin/v1/tenants/${id}`)).status).toBe(200);
    expect(store.rechecked).toEqual([id, id, id]);
  } finally {
    await store.world.remove();
  }
});
