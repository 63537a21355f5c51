import { afterEach, beforeEach, describe, expect, spyOn, test } from "bun:test";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { DbError } from "../../../db/errors.ts";
import type { TenantId } from "../../../db/ids.ts";
import { yieldsDuring } from "../../support/yields.ts";
import { createWorld, ingestText, type World } from "../world.ts";

let world: World;
let tenantId: TenantId;

beforeEach(() => {
  world = createWorld();
  tenantId = world.tenants.create("acme").id;
});
afterEach(() => world.remove());

const canary = "xylophonecanary";
const secretText = `The ${canary} stands in the hall. Nobody knows of it. `.repeat(30);

/** Files below the data folder that hold the bytes, in any state of the database. */
function traces(text: string): string[] {
  return readdirSync(world.dir, { recursive: true, encoding: "utf8" }).filter((name) => {
    const path = join(world.dir, name);
    return statSync(path).isFile() && readFileSync(path).toString("latin1").toLowerCase().includes(text);
  });
}

async function populated() {
  const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
  const doomed = await ingestText(world, store, "secret.txt", secretText);
  const kept = await ingestText(world, store, "kept.txt", "Something else that stays. Really.");
  world.corpus.prepare.create(tenantId, store.id);
  await world.corpus.idle();
  return { store, doomed, kept };
}

/** Completed files of one fragment each. */
function seedFiles({ id, seq }: { readonly id: string; readonly seq: number }, count: number): void {
  const { client } = world.db;
  const insert = (table: string, columns: string) =>
    client.query<{ seq: number }, (string | number)[]>(
      `insert into ${table} (${columns}) values (${columns.replace(/[^,]+/g, "?")}) returning seq`,
    );
  const file = insert("files", "id,tenant_id,filename,purpose,media_type,byte_count,sha256,created_at");
  const place = "corpus_id,file_id,tenant_id,status,attributes,max_chunk_tokens,overlap_tokens,created_at";
  const attached = insert("corpus_files", place);
  const fragment = insert("fragments", "id,corpus_file_seq,ordinal,text,first_char,end_char,token_count");
  const indexed = client.query(`insert into fts_${seq} (rowid, text) values (?, ?)`);
  world.db.transaction("seedFiles", () => {
    for (let i = 0; i < count; i++) {
      const fileId = `file_${id}_${i}`;
      file.get(fileId, tenantId, "a", "assistants", "", 1, fileId, 1);
      const fileSeq = attached.get(id, fileId, tenantId, "completed", "{}", 64, 0, 1)?.seq ?? 0;
      const text = `Text number ${i} of a small file.`;
      indexed.run(fragment.get(`frag_${id}_${i}`, fileSeq, 0, text, 0, text.length, 8)?.seq ?? 0, text);
    }
  });
}

const search = (storeId: string) =>
  world.corpus.retrieve({ tenantId, vectorStoreIds: [storeId], query: `${canary} something`, maxResults: 50 });

describe("deleting", () => {
  test("a file's bytes go first, so that a full disk can be emptied", async () => {
    const { doomed } = await populated();
    const transaction = world.db.transaction.bind(world.db);
    const full = spyOn(world.db, "transaction").mockImplementation((name, work) => {
      if (name === "removeFragments") throw new DbError("full", name, "SQLITE_FULL");
      return transaction(name, work);
    });
    world.corpus.files.delete(tenantId, doomed.id);
    while (readdirSync(join(world.dir, "files")).includes(doomed.id)) await Bun.sleep(1);
    expect(traces(canary)).not.toEqual([]);
    full.mockRestore();
    await world.corpus.idle();
    expect(traces(canary)).toEqual([]);
  });

  test("a file: no search finds it, its KV is evicted, and no byte of it is left on disk", async () => {
    const { store, doomed, kept } = await populated();
    const before = world.spans.resident.size;
    // "canary" occurs in the index only as a stemmed term; look for what both share.
    expect(traces("xylophonecanar").length).toBeGreaterThan(0);
    world.corpus.files.delete(tenantId, doomed.id);
    expect((await search(store.id)).map((hit) => hit.fileId)).toEqual([kept.id]);
    expect(() => world.corpus.files.get(tenantId, doomed.id)).toThrow("No such object.");
    await world.corpus.idle();
    expect(traces("xylophonecanar")).toEqual([]);
    expect(world.spans.resident.size).toBeGreaterThan(0);
    expect(world.spans.resident.size).toBeLessThan(before);
    expect((await search(store.id)).map((hit) => hit.fileId)).toEqual([kept.id]);
  });

  test("a file from one corpus: the upload stays and can be attached again", async () => {
    const { store, doomed } = await populated();
    world.corpus.corpusFiles.detach(store, doomed.id);
    await world.corpus.idle();
    expect((await search(store.id)).some((hit) => hit.fileId === doomed.id)).toBe(false);
    expect(world.corpus.files.get(tenantId, doomed.id).id).toBe(doomed.id);
    await ingestText(world, store, "secret.txt", secretText);
    expect((await search(store.id)).some((hit) => hit.fileId === doomed.id)).toBe(true);
  });

  test("a corpus and a tenant: all rows, indexes and KV go", async () => {
    const { store } = await populated();
    world.corpus.corpora.delete(tenantId, store.id);
    await expect(search(store.id)).rejects.toThrow("No such vector store.");
    await world.corpus.idle();
    expect(world.spans.resident.size).toBe(0);
    const tables = world.db.client
      .query<{ n: number }, []>("select count(*) n from sqlite_schema where name like 'fts_%'")
      .get();
    expect(tables?.n).toBe(0);

    await populated();
    world.tenants.delete(tenantId);
    world.corpus.tenantDeleted(tenantId);
    expect(() => world.tenants.get(tenantId)).toThrow("No such object.");
    await world.corpus.idle();
    for (const table of ["tenants", "corpora", "files", "corpus_files", "fragments", "jobs", "api_keys"]) {
      const { n } = world.db.client.query<{ n: number }, []>(`select count(*) n from ${table}`).get() ?? { n: -1 };
      expect([table, n]).toEqual([table, 0]);
    }
    expect(traces("xylophonecanar")).toEqual([]);
    expect(world.spans.resident.size).toBe(0);
  });

  test("a tenant with many corpora: others have turns while their KV is evicted", async () => {
    for (let count = 0; count < 400; count++) world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
    world.tenants.delete(tenantId);
    const { yields } = await yieldsDuring(() => world.corpus.tenantDeleted(tenantId));
    expect(yields).toBeGreaterThanOrEqual(6);
    await world.corpus.idle();
  });

  test("KV costs what it has, not what the corpus has: of a corpus and of a large file nothing is keyed again", async () => {
    const { store, doomed, kept } = await populated();
    const text = Array.from({ length: 2_100 }, (_, i) => `Line ${i} of many. `.repeat(8)).join("\n\n");
    const large = await ingestText(world, store, "large.txt", text);
    const { n } = world.db.client.query<{ n: number }, []>("select count(*) n from fragments").get() ?? { n: 0 };
    expect(n).toBeGreaterThan(2_100);
    const { spans } = world;
    const salt = (await search(store.id))[0]?.salt;
    spans.lowered = 0;
    world.corpus.files.delete(tenantId, kept.id);
    await world.corpus.idle();
    expect([spans.lowered > 0, spans.evictedSalts.length]).toEqual([true, 0]);
    world.corpus.files.delete(tenantId, doomed.id);
    await world.corpus.idle();
    spans.lowered = 0;
    world.corpus.files.delete(tenantId, large.id);
    await world.corpus.idle();
    // As many as are evicted by key before it turns out to be large, each compared with one that begins alike at most.
    expect(spans.lowered).toBeLessThanOrEqual(2_048 + 8);
    expect(spans.evictedSalts).toEqual([salt]);
    spans.lowered = 0;
    world.corpus.corpora.delete(tenantId, store.id);
    // At once, before anything is swept.
    expect([spans.evictedSalts.length, spans.resident.size]).toEqual([2, 0]);
    await world.corpus.idle();
    expect([spans.lowered, spans.evictedSalts.length]).toEqual([0, 2]);
  });

  test("the KV of files that are deleted goes before any of their rows", async () => {
    const { store, doomed, kept } = await populated();
    const transaction = world.db.transaction.bind(world.db);
    const residents: number[] = [];
    spyOn(world.db, "transaction").mockImplementation((name, work) => {
      if (name === "removeFragments") residents.push(world.spans.resident.size);
      return transaction(name, work);
    });
    world.corpus.corpusFiles.detach(store, doomed.id);
    world.corpus.corpusFiles.detach(store, kept.id);
    await world.corpus.idle();
    expect(residents.length).toBeGreaterThan(0);
    expect(new Set(residents)).toEqual(new Set([0]));
  });

  test("a corpus: no byte of its text is left while most of its rows still are", async () => {
    const { store } = await populated();
    const text = Array.from({ length: 3_000 }, (_, i) => `Line ${i} of many. `.repeat(8)).join("\n\n");
    await ingestText(world, store, "large.txt", text);
    const left = () => world.db.client.query<{ n: number }, []>("select count(*) n from fragments").get()?.n ?? 0;
    const before = left();
    world.corpus.corpora.delete(tenantId, store.id);
    const trace = () => traces("line 2999 of many").filter((name) => name.startsWith("spangate.db"));
    while (left() === before) await new Promise((resolve) => setImmediate(resolve));
    world.db.truncateLog();
    expect(left()).toBeGreaterThan(before / 2);
    expect([trace(), traces("xylophonecanar").filter((name) => name.startsWith("spangate.db"))]).toEqual([[], []]);
    await world.corpus.idle();
    expect(left()).toBe(0);
  });

  test("the database's log is emptied again and again meanwhile, and never becomes long", async () => {
    const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
    seedFiles(store, 20_000);
    world.db.truncateLog();
    const { emptyLog } = world.db;
    const emptied: number[] = [];
    world.db.emptyLog = () => {
      emptied.push(world.db.logBytes);
      return emptyLog();
    };
    world.corpus.corpora.delete(tenantId, store.id);
    await world.corpus.idle();
    expect(emptied.length).toBeGreaterThan(1);
    expect(Math.max(...emptied)).toBeLessThan(64 * 2 ** 20);
    expect(world.db.logBytes).toBe(0);
  });

  test("what is deleted during a long sweep does not wait for its end: bytes and KV go at once", async () => {
    const { store, doomed } = await populated();
    const text = Array.from({ length: 3_000 }, (_, i) => `Line ${i} of many. `.repeat(8)).join("\n\n");
    const large = await ingestText(world, store, "large.txt", text);
    const keys = (await search(store.id))
      .filter((hit) => hit.fileId === doomed.id)
      .flatMap((hit) => world.spans.lowerSpan(hit).blockKeys);
    expect(keys.some((key) => world.spans.resident.has(key))).toBe(true);
    const left = () => world.db.client.query<{ n: number }, []>("select count(*) n from fragments").get()?.n ?? 0;
    const before = left();
    world.corpus.files.delete(tenantId, large.id);
    while (left() === before) await new Promise((resolve) => setImmediate(resolve));
    world.corpus.files.delete(tenantId, doomed.id);
    const isThere = () =>
      readdirSync(join(world.dir, "files")).includes(doomed.id) || keys.some((key) => world.spans.resident.has(key));
    while (isThere()) await new Promise((resolve) => setImmediate(resolve));
    expect(left()).toBeGreaterThan(1_000);
    await world.corpus.idle();
    expect(traces("xylophonecanar")).toEqual([]);
  });

  test("one tenant's does not wait for the end of another's large one", async () => {
    const other = world.tenants.create("other").id;
    const theirs = world.corpus.corpora.create(other, { name: "s", metadata: {} });
    const doomed = await ingestText(world, theirs, "secret.txt", secretText);
    const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
    seedFiles(store, 6_000);
    const count = (of: string, table: string) =>
      world.db.client.query<{ n: number }, [string]>(`select count(*) n from ${table} where tenant_id = ?`).get(of)
        ?.n ?? 0;
    world.corpus.corpora.delete(tenantId, store.id);
    while (count(tenantId, "corpus_files") === 6_000) await new Promise((resolve) => setImmediate(resolve));
    world.corpus.files.delete(other, doomed.id);
    while (count(other, "files") > 0) await new Promise((resolve) => setImmediate(resolve));
    expect(count(tenantId, "corpus_files")).toBeGreaterThan(0);
    await world.corpus.idle();
    expect(count(tenantId, "corpus_files")).toBe(0);
    expect(traces("xylophonecanar")).toEqual([]);
  });

  test("a corpus while it is being ingested: nothing comes after, and nothing is logged", async () => {
    const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
    const upload = { filename: "long.txt", purpose: "assistants", mediaType: "text/plain" };
    const bytes = new TextEncoder().encode(secretText.repeat(40));
    const file = await world.corpus.files.upload(tenantId, { ...upload, bytes });
    const chunking = { maxTokens: 16, overlapTokens: 0 };
    await world.corpus.corpusFiles.attach(store, [{ fileId: file.id, attributes: {}, chunking }], "file_id");
    const count = (table: string) =>
      world.db.client.query<{ n: number }, []>(`select count(*) n from ${table}`).get()?.n ?? -1;
    while (count("fragments") === 0) await new Promise((resolve) => setImmediate(resolve));
    world.corpus.corpora.delete(tenantId, store.id);
    await world.corpus.idle();
    expect(["fragments", "corpus_files", "corpora"].map(count)).toEqual([0, 0, 0]);
    expect(world.logged.filter((line) => line.startsWith("error"))).toEqual([]);
    expect(world.corpus.files.get(tenantId, file.id).id).toBe(file.id);
  });

  test("of thousands of files, a corpus or one by one: a few rows are written at once, and others run meanwhile", async () => {
    for (const way of ["corpus", "files"] as const) {
      const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
      seedFiles(store, way === "corpus" ? 4_000 : 500);
      const changes = () => world.db.client.query<{ n: number }, []>("select total_changes() n").get()?.n ?? 0;
      const before = changes();
      if (way === "corpus") {
        world.corpus.corpora.delete(tenantId, store.id);
        expect(changes() - before).toBeLessThan(5);
      } else {
        world.db.client.run("update corpus_files set status = 'deleting'");
        world.corpus.corpusFiles.detach(store, (await ingestText(world, store, "last.txt", "The last one.")).id);
      }
      let turns = 0;
      const ended = world.corpus.idle().then(() => true);
      while (!(await Promise.race([ended, new Promise<false>((resolve) => setImmediate(() => resolve(false)))]))) {
        turns += 1;
      }
      expect([way, turns > 3]).toEqual([way, true]);
      const left = world.db.client.query<{ n: number }, []>("select count(*) n from corpus_files").get();
      expect([way, left]).toEqual([way, { n: 0 }]);
    }
  });

  test("a sweep that was cut off goes on at the next start; nothing comes back", async () => {
    const { store, doomed } = await populated();
    world.corpus.files.delete(tenantId, doomed.id);
    await world.close();
    world = createWorld(world.dir);
    expect((await search(store.id)).some((hit) => hit.fileId === doomed.id)).toBe(false);
    await world.corpus.start();
    await world.corpus.idle();
    expect(traces("xylophonecanar")).toEqual([]);
  });

  test("a request that ran during the delete leaves no KV behind", async () => {
    const { store, doomed } = await populated();
    const used = (await search(store.id)).filter((hit) => hit.fileId === doomed.id);
    expect(used.length).toBeGreaterThan(0);
    world.corpus.files.delete(tenantId, doomed.id);
    await world.corpus.idle();
    const keys = used.flatMap((hit) => world.spans.lowerSpan(hit).blockKeys);
    // What the worker stores for the request after the sweep had passed.
    for (const key of keys) world.spans.resident.add(key);
    world.corpus.fragmentsUsed(used, { tenantId, readAtMs: performance.now() });
    expect(keys.filter((key) => world.spans.resident.has(key))).toEqual([]);
    const kept = await search(store.id);
    const residentBefore = world.spans.resident.size;
    world.corpus.fragmentsUsed(kept, { tenantId, readAtMs: performance.now() });
    expect(world.spans.resident.size).toBe(residentBefore);
  });

  test("rotating a corpus' salt: other keys, and the old KV is dropped", async () => {
    const { store } = await populated();
    const [hit] = await search(store.id);
    const old = hit === undefined ? [] : world.spans.lowerSpan(hit).blockKeys;
    expect(old.every((key) => world.spans.resident.has(key))).toBe(true);
    expect(world.corpus.corpora.rotateSalt(tenantId, store.id)).toBe(1);
    const [after] = await search(store.id);
    expect(after?.salt).not.toBe(hit?.salt as string);
    await world.corpus.idle();
    expect(world.spans.resident.size).toBe(0);
    const { rows } = await world.corpus.fragments.list(tenantId, store.id, { limit: 1, order: "asc" });
    expect(rows[0]?.span?.residentWorkers).toEqual([]);
  });
});
