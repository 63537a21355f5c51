/** Stored sources: when they are read, whose turn it is, and what ends them. */
import { afterEach, beforeEach, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import type { CorpusRow } from "../../../db/corpora.ts";
import { newId, type TenantId } from "../../../db/ids.ts";
import { markTenantDeleting } from "../../../db/tenants.ts";
import type { NewSource } from "../../../gateway/corpus/sources/sources.ts";
import { until } from "../../support/until.ts";
import { createWorld, type World } from "../world.ts";

setDefaultTimeout(60_000);

let world: World;
let tenantId: TenantId;
let store: CorpusRow;
/** Paths that were asked for, and those that are answered only once they are let go. */
let asked: string[] = [];
let held = new Map<string, PromiseWithResolvers<void>>();
const site = Bun.serve({
  ...{ hostname: "127.0.0.1", port: 0 },
  async fetch(request) {
    const { pathname } = new URL(request.url);
    if (pathname === "/robots.txt") return new Response("", { status: 404 });
    asked.push(pathname);
    await held.get(pathname)?.promise;
    return new Response(`The page ${pathname} of the site.`, { headers: { "content-type": "text/plain" } });
  },
});

const open = (dir?: string) => createWorld(dir, { sourceNetworks: ["127.0.0.1/32"] });
const storeOf = (owner: TenantId) => world.corpus.corpora.create(owner, { name: "docs", metadata: {} });

beforeEach(async () => {
  [asked, held] = [[], new Map()];
  world = open();
  await world.corpus.start();
  tenantId = world.tenants.create("acme").id;
  store = storeOf(tenantId);
});
afterEach(async () => {
  for (const { resolve } of held.values()) resolve();
  await world.remove();
});

const hold = (path: string) => held.set(path, Promise.withResolvers());
const at = (path: string, more: Partial<NewSource> = {}): NewSource => ({
  ...{ url: `http://127.0.0.1:${site.port}${path}`, label: path, intervalMinutes: null, secretAccessKey: undefined },
  ...{ options: { maxPages: 10, maxDepth: 1 }, ...more },
});
const add = (path: string, more?: Partial<NewSource>, owner = tenantId, into = store) =>
  world.corpus.sources.create(owner, into.id, at(path, more)).id;
const stateOf = (id: string, owner = tenantId) => {
  const row = world.corpus.sources.get(owner, id);
  return { status: world.corpus.sources.statusOf(row), run: row.lastRun, nextRunAt: row.nextRunAt };
};
const fetched = () => readdirSync(join(world.dir, "fetched"));

test("it is read once it is added, and again when it is asked to or due", async () => {
  const id = add("/once");
  expect(stateOf(id).status).not.toBe("idle");
  await world.corpus.idle();
  expect(stateOf(id)).toMatchObject({ status: "idle", nextRunAt: null, run: { added: 1, error: null, isWhole: true } });
  expect(fetched()).toEqual([]);
  world.corpus.sources.run(tenantId, id);
  await world.corpus.idle();
  expect(stateOf(id).run).toMatchObject({ added: 0, unchanged: 1 });
  // 0.3 s: the bounds of what a request may ask for are the route's.
  const often = add("/often", { intervalMinutes: 0.005 });
  await until(() => asked.filter((path) => path === "/often").length >= 3, "it was read three times");
  expect(stateOf(often).run).toMatchObject({ unchanged: 1 });
});

test("what a stopped server was reading, or was to read, is read by the next; nothing of it is left lying", async () => {
  hold("/slow");
  const id = add("/slow");
  await until(() => asked.includes("/slow"), "it is being read");
  expect([stateOf(id).status, fetched().length]).toEqual(["in_progress", 1]);
  await world.close();
  expect(readdirSync(join(world.dir, "fetched"))).toEqual([]);
  held.get("/slow")?.resolve();
  world = open(world.dir);
  expect(stateOf(id)).toMatchObject({ status: "queued", run: null });
  await world.corpus.start();
  await world.corpus.idle();
  expect(stateOf(id)).toMatchObject({ status: "idle", run: { added: 1 } });
});

test("a vector store, a tenant or a source that goes ends what is being read for it", async () => {
  const other = world.tenants.create("other").id;
  const otherStore = storeOf(other);
  const third = storeOf(tenantId);
  for (const path of ["/a", "/b", "/c"]) hold(path);
  const removed = add("/a");
  await until(() => asked.includes("/a"), "the first is being read");
  expect(world.corpus.sources.remove(tenantId, removed)).toBe(removed);
  const ofStore = add("/b", {}, tenantId, third);
  await until(() => asked.includes("/b"), "the second is being read");
  world.corpus.corpora.delete(tenantId, third.id);
  const ofTenant = add("/c", {}, other, otherStore);
  await until(() => asked.includes("/c"), "the third is being read");
  markTenantDeleting(world.db, other, Date.now());
  world.corpus.tenantDeleted(other);
  // Nobody lets the pages go: only the ends of the runs make this resolve.
  await world.corpus.idle();
  for (const [owner, id] of [
    [tenantId, removed],
    [tenantId, ofStore],
    [other, ofTenant],
  ] as const) {
    expect(() => world.corpus.sources.get(owner, id)).toThrow("No such object");
  }
  expect(fetched()).toEqual([]);
  expect(world.logged.filter((line) => line.startsWith("error"))).toEqual([]);
});

test("a tenant has one source read at a time, and others do not wait for it", async () => {
  const other = world.tenants.create("other").id;
  const paths = Array.from({ length: 6 }, (_, index) => `/slow/${index}`);
  for (const path of paths) hold(path);
  const ids = paths.map((path) => add(path));
  await until(() => asked.length > 0, "the first is being read");
  const quick = add("/quick", {}, other, storeOf(other));
  await until(() => stateOf(quick, other).status === "idle", "the other tenant's has been read");
  expect(asked).toEqual(["/slow/0", "/quick"]);
  expect(ids.map((id) => stateOf(id).status)).toEqual(["in_progress", ...Array<"queued">(5).fill("queued")]);
  for (const { resolve } of held.values()) resolve();
  await world.corpus.idle();
  expect(ids.map((id) => stateOf(id).run?.added)).toEqual([1, 1, 1, 1, 1, 1]);
});

test("sources of a disabled tenant wait until it is enabled", async () => {
  world.tenants.update(tenantId, { status: "disabled" });
  const id = add("/waits");
  await world.corpus.idle();
  expect([stateOf(id).status, asked]).toEqual(["queued", []]);
  world.tenants.update(tenantId, { status: "active" });
  add("/wakes");
  await world.corpus.idle();
  expect(stateOf(id).run).toMatchObject({ added: 1 });
});

test("a disk that is nearly full is said, and nothing is fetched", async () => {
  world.disk.freeBytes = 100 * 2 ** 20;
  const id = add("/large");
  await world.corpus.idle();
  expect([stateOf(id).run?.error, asked]).toEqual(["The server's storage is full.", []]);
});

test("what cannot be a source is refused by the field that is wrong", () => {
  const refused = (source: Partial<NewSource>, into: string = store.id) => {
    try {
      world.corpus.sources.create(tenantId, into, at("/x", source));
    } catch (error) {
      const { code, param } = error as { code: string; param?: string };
      return `${code} ${param ?? ""}`;
    }
    return "taken";
  };
  const s3 = { maxPages: 1, maxDepth: 1, s3: { accessKeyId: "id" } };
  for (const url of ["file:///etc/passwd", "docs", "ftp://docs.test/", "http://", "http://u:p@docs.test/"]) {
    expect([url, refused({ url })]).toEqual([url, "invalid_value url"]);
  }
  expect(refused({ url: "s3://Bad_Bucket/", options: s3 })).toBe("invalid_value url");
  expect(refused({ url: "s3://papers/" })).toBe("invalid_value s3");
  expect(refused({ options: s3 })).toBe("invalid_value s3");
  expect(refused({ label: undefined, url: `http://docs.test/${"a".repeat(600)}/` })).toBe("invalid_value name");
  const endpoint = "http://u:p@s3.test/";
  const withPassword = { ...s3, s3: { ...s3.s3, endpoint } };
  expect(refused({ url: "s3://papers/", options: withPassword })).toBe("invalid_value s3.endpoint");
  expect(refused({}, newId("corpus"))).toBe("not_found ");
  expect([refused({}), refused({})]).toEqual(["taken", "conflict name"]);
  for (let count = 1; count < 100; count++) add(`/${count}`);
  expect(refused({ label: "one too many" })).toBe("quota_exceeded ");
});
