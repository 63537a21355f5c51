/** Files and vector stores that end by themselves: when they are due, after a restart too, and without a trace. */
import { afterEach, beforeEach, expect, test } from "bun:test";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import type { CorpusRow } from "../../../db/corpora.ts";
import type { TenantId } from "../../../db/ids.ts";
import { delay } from "../../../gateway/base/pace.ts";
import { createWorld, ingestText, type World } from "../world.ts";

let world: World;
let tenantId: TenantId;

beforeEach(() => {
  world = createWorld();
  tenantId = world.tenants.create("acme").id;
});
afterEach(() => world.remove());

const canary = "xylophonecanary";
const secretText = `The ${canary} stands in the hall. Nobody knows of it.`;
const day = 86_400_000;
const hour = 3_600;

/** Files below the data folder that hold the canary, in any state of the database. */
const traces = (): string[] =>
  readdirSync(world.dir, { recursive: true, encoding: "utf8" }).filter((name) => {
    const path = join(world.dir, name);
    return statSync(path).isFile() && readFileSync(path).toString("latin1").toLowerCase().includes(canary);
  });
const bytesOf = (text: string) => new TextEncoder().encode(text);
const upload = (filename: string, text: string, lastsSeconds?: number) =>
  world.corpus.files.upload(tenantId, {
    ...{ filename, purpose: "assistants", mediaType: "text/plain", bytes: bytesOf(text), lastsSeconds },
  });
const search = (store: CorpusRow, query: string) =>
  world.corpus.retrieve({ tenantId, vectorStoreIds: [store.id], query, maxResults: 5 });

/** A store with a prepared file. */
async function storeWith(filename: string, text: string, expiresAfterDays?: number): Promise<CorpusRow> {
  const store = world.corpus.corpora.create(tenantId, { name: filename, metadata: {}, expiresAfterDays });
  await ingestText(world, store, filename, text);
  world.corpus.prepare.create(tenantId, store.id);
  await world.corpus.idle();
  return store;
}

/** Goes on with the same folder, as after a stop of the server. */
async function restart(): Promise<void> {
  await world.close();
  world = createWorld(world.dir);
  await world.corpus.start();
  await world.corpus.idle();
}

async function until(holds: () => boolean): Promise<void> {
  for (let tries = 0; !holds() && tries < 500; tries++) await delay(20, new AbortController().signal);
  expect(holds()).toBe(true);
}

test("a file ends when it is due, out of its stores too; one that stays is not its twin", async () => {
  const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
  const before = Date.now();
  const doomed = await upload("a.txt", secretText, hour);
  expect(doomed.expiresAt).toBeGreaterThanOrEqual(before + hour * 1_000);
  expect((await upload("a.txt", secretText, hour)).id).not.toBe(doomed.id);
  const chunking = { maxTokens: 32, overlapTokens: 0 };
  await world.corpus.corpusFiles.attach(store, [{ fileId: doomed.id, attributes: {}, chunking }], "file_id");
  await world.corpus.idle();
  const kept = await upload("b.txt", "Something else stays.");
  expect(kept.expiresAt).toBeNull();
  expect(await search(store, canary)).toHaveLength(1);
  // All are due in a moment; a further upload sets the timer anew.
  world.db.client.run("update files set expires_at = ? where expires_at is not null", [Date.now() + 300]);
  await upload("c.txt", "Another that ends.", hour);
  await until(() => world.corpus.files.find(tenantId, doomed.id) === undefined);
  await world.corpus.idle();
  expect(await search(store, canary)).toEqual([]);
  expect(traces()).toEqual([]);
  expect(world.corpus.files.get(tenantId, kept.id).id).toBe(kept.id);
  expect((await upload("b.txt", "Something else stays.")).id).toBe(kept.id);
});

test("what came to its end while the server stood ends at the start", async () => {
  const file = await upload("a.txt", secretText, hour);
  const store = await storeWith("b.txt", `${secretText} And more.`, 1);
  world.db.client.run("update files set expires_at = ? where expires_at is not null", [Date.now() - 1]);
  world.db.client.run("update corpora set last_active_at = ?", [Date.now() - day - 1]);
  await restart();
  expect(world.corpus.files.find(tenantId, file.id)).toBeUndefined();
  expect(world.corpus.corpora.requireShown(tenantId, store.id, "own").expired).toBe(true);
});

test("a store that nobody used ends: text, index and KV go, its row tells of it until that is deleted", async () => {
  const store = await storeWith("a.txt", secretText, 2);
  const resident = world.spans.resident.size;
  expect(resident).toBeGreaterThan(0);
  const [file] = world.corpus.files.list(tenantId, { limit: 10, order: "asc" }).rows;
  world.corpus.files.delete(tenantId, file?.id ?? "");
  await world.corpus.idle();
  const used = await storeWith("b.txt", secretText, 2);
  world.db.client.run("update corpora set last_active_at = ?", [Date.now() - 2 * day + 400]);
  // A search is a use.
  expect(await search(used, canary)).toHaveLength(1);
  const isExpired = () => world.corpus.corpora.requireShown(tenantId, store.id, "own").expired;
  expect(isExpired()).toBe(false);
  world.corpus.corpora.create(tenantId, { name: "sets the timer", metadata: {}, expiresAfterDays: 9 });
  await until(isExpired);
  await world.corpus.idle();
  expect(() => world.corpus.corpora.require(tenantId, store.id, "own")).toThrow("has expired");
  await expect(search(store, canary)).rejects.toThrow("has expired");
  expect(world.corpus.corpora.requireShown(tenantId, used.id, "own").expired).toBe(false);
  const { usage } = world.corpus.corpora.withUsage(world.corpus.corpora.requireShown(tenantId, store.id, "own"));
  expect(usage.fileCounts.total).toBe(0);
  const indexes = () => world.db.client.query("select 1 from sqlite_schema where name = ?").all(`fts_${store.seq}`);
  expect(indexes()).toEqual([]);
  expect(world.spans.evictedSalts).toContain(world.corpus.corpora.saltOf(store));
  // It is told of after a restart, and gone when it is deleted.
  await restart();
  expect(isExpired()).toBe(true);
  world.corpus.corpora.delete(tenantId, store.id);
  await world.corpus.idle();
  expect(() => world.corpus.corpora.requireShown(tenantId, store.id, "own")).toThrow();
  expect(world.db.client.query("select 1 from corpora where id = ?").all(store.id)).toEqual([]);
});

test("of an expired store no byte is left, and a deleted tenant takes what has expired along", async () => {
  const other = world.tenants.create("other").id;
  const store = world.corpus.corpora.create(other, { name: "s", metadata: {}, expiresAfterDays: 1 });
  const file = await ingestText(world, store, "a.txt", secretText);
  world.db.client.run("update corpora set last_active_at = ?", [Date.now() - 2 * day]);
  await restart();
  // The uploaded file stays, as when a store is deleted.
  expect(traces()).toEqual([join("files", file.id)]);
  world.tenants.delete(other);
  world.corpus.tenantDeleted(other);
  await world.corpus.idle();
  expect(traces()).toEqual([]);
  expect(world.db.client.query("select 1 from corpora").all()).toEqual([]);
});

test("hundreds that are due at once end in pieces between which others have their turns", async () => {
  const insert = world.db.client.query(
    `insert into files (id, tenant_id, filename, purpose, media_type, byte_count, sha256, created_at, expires_at)
     values (?, ?, 'a', 'assistants', '', 1, ?, 1, 1)`,
  );
  world.db.transaction("seed", () => {
    for (let at = 0; at < 400; at++) insert.run(`file-${at}`, tenantId, `${at}`);
  });
  let turns = 0;
  let isDone = false;
  const count = (): void => {
    turns += 1;
    if (!isDone) setImmediate(count);
  };
  setImmediate(count);
  await restart();
  isDone = true;
  expect(world.db.client.query("select 1 from files where deleted_at is null").all()).toEqual([]);
  expect(turns).toBeGreaterThan(400 / 8);
});
