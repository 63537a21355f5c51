/** A sentence of a large document changes: what is computed anew, and what is kept. */
import { afterEach, beforeEach, expect, test } from "bun:test";
import type { TenantId } from "../../db/ids.ts";
import type { Embedder } from "../../gateway/corpus/base/ports.ts";
import { isLong } from "../support/effort.ts";
import { createWorld, ingestText, type World } from "./world.ts";

class CountingEmbedder implements Embedder {
  readonly texts: string[] = [];

  card() {
    return Promise.resolve({ modelId: "letters", dimensions: 16 });
  }

  embed(texts: readonly string[], role: "query" | "document") {
    if (role === "document") this.texts.push(...texts);
    const vectorOf = (text: string) =>
      Float32Array.from({ length: 16 }, (_, i) => ((text.charCodeAt((i * 7) % text.length) * (i + 3)) % 11) - 5);
    return Promise.resolve(texts.map(vectorOf));
  }
}

let world: World;
let embedder: CountingEmbedder;
let tenantId: TenantId;
let store: ReturnType<World["corpus"]["corpora"]["create"]>;

beforeEach(() => {
  embedder = new CountingEmbedder();
  world = createWorld(undefined, { embedder });
  tenantId = world.tenants.create("acme").id;
  store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
});
afterEach(() => world.remove());

/** About 1,000 fragments of up to 64 tokens. */
const document = Array.from(
  { length: 3_600 },
  (_, i) => `The guest in room ${i} came from town ${(i * 7_919) % 9_973}. `,
);
const changedAt = (at: number): string => document.with(at, "Nobody stays in this room any more. ").join("");

async function prepare(): Promise<{ done: number; computed: number }> {
  const before = world.spans.computed.length;
  const { id } = world.corpus.prepare.create(tenantId, store.id);
  await world.corpus.idle();
  const job = world.corpus.prepare.get(tenantId, id);
  expect(job.status).toBe("completed");
  return { done: job.done, computed: world.spans.computed.length - before };
}

/** Puts a new version into the store and takes the old one out, as a sync does. */
async function replace(oldId: string, text: string) {
  const file = await ingestText(world, store, "guests.txt", text, {}, 64);
  world.corpus.corpusFiles.detach(store, oldId, { deleteUnused: true });
  await world.corpus.idle();
  return file.id;
}

/** Block keys of all visible fragments. */
async function visibleKeys(): Promise<Set<string>> {
  const keys = new Set<string>();
  const { salt } = (await search("guest"))[0] ?? {};
  if (salt === undefined) throw new Error("nothing is found");
  const texts = world.db.client.query<{ text: string }, []>(
    "select f.text from fragments f join corpus_files cf on cf.seq = f.corpus_file_seq where cf.status = 'completed'",
  );
  for (const { text } of texts.all())
    for (const key of world.spans.lowerSpan({ id: "", text, salt }).blockKeys) keys.add(key);
  return keys;
}

const search = (query: string) =>
  world.corpus.retrieve({ tenantId, vectorStoreIds: [store.id], query, maxResults: 50 });

test("of a document of 1,000 fragments, at most 4 are computed and embedded anew; no KV of the old text is left", async () => {
  let fileId = (await ingestText(world, store, "guests.txt", document.join(""), {}, 64)).id;
  const first = await prepare();
  expect(first.done).toBeGreaterThanOrEqual(1_000);
  expect(first.computed).toBe(first.done);
  expect(embedder.texts.length).toBe(first.done);
  for (const at of isLong ? [0, 1_200, 2_777, 3_599] : [0, 2_777]) {
    const embedded = embedder.texts.length;
    fileId = await replace(fileId, changedAt(at));
    const { done, computed } = await prepare();
    // The sentence that had changed before is as it was again, so there are two edits.
    const edits = at === 0 ? 1 : 2;
    expect(done).toBeGreaterThanOrEqual(990);
    expect([at, computed >= 1, computed <= 4 * edits]).toEqual([at, true, true]);
    expect(embedder.texts.length - embedded).toBeGreaterThanOrEqual(1);
    expect(embedder.texts.length - embedded).toBeLessThanOrEqual(4 * edits);
    expect(new Set<string>(world.spans.resident)).toEqual(await visibleKeys());
  }
  expect(world.spans.evictedSalts).toEqual([]);
  expect((await search("Nobody stays in this room")).some(({ text }) => text.includes("Nobody stays"))).toBe(true);
});

test("of two files with the same texts one goes: the other keeps its KV and stays found by its vectors", async () => {
  const text = document.slice(0, 60).join("");
  const file = await ingestText(world, store, "one.txt", text);
  const embedded = embedder.texts.length;
  await ingestText(world, store, "two.txt", text);
  expect(embedder.texts.length).toBe(embedded);
  await prepare();
  const keys = new Set<string>(world.spans.resident);
  world.corpus.files.delete(tenantId, file.id);
  await world.corpus.idle();
  expect(new Set<string>(world.spans.resident)).toEqual(keys);
  const vectors = world.db.client.query<{ n: number }, []>("select count(*) n from fragment_vectors").get()?.n;
  expect([
    vectors,
    world.db.client.query<{ n: number }, []>(`select count(*) n from vectors_${store.seq}`).get()?.n,
  ]).toEqual([embedded, embedded]);
  const weights = { hybridSearch: { embedding: 1, text: 0 } };
  const found = await world.corpus.retrieve({
    ...{ tenantId, vectorStoreIds: [store.id], query: "town", maxResults: 5 },
    ...weights,
  });
  expect(found.length).toBe(5);
});

test("another corpus with the same text shares nothing: its vectors are made, and it keeps its own KV", async () => {
  const text = document.slice(0, 20).join("");
  const file = await ingestText(world, store, "one.txt", text);
  const embedded = embedder.texts.length;
  const other = world.corpus.corpora.create(tenantId, { name: "other", metadata: {} });
  await ingestText(world, other, "two.txt", text);
  expect(embedder.texts.length).toBe(2 * embedded);
  await prepare();
  world.corpus.files.delete(tenantId, file.id);
  await world.corpus.idle();
  // The other corpus still has the text, and the KV of this one goes all the same.
  expect(world.spans.resident.size).toBe(0);
});

test("a file of over 2,048 fragments goes span by span, and leaves the KV of the other files", async () => {
  await ingestText(world, store, "kept.txt", document.slice(0, 60).join(""));
  await prepare();
  const kept = new Set<string>(world.spans.resident);
  const large = Array.from({ length: 5_200 }, (_, i) => `In year ${i} there were ${(i * 7_919) % 9_973} guests. `);
  const file = await ingestText(world, store, "large.txt", large.join(""));
  expect((await prepare()).computed).toBeGreaterThan(2_048);
  world.corpus.files.delete(tenantId, file.id);
  await world.corpus.idle();
  expect(world.spans.evictedSalts).toEqual([]);
  expect(new Set<string>(world.spans.resident)).toEqual(kept);
});

test("what the template puts before every text stays as long as any text does", async () => {
  world.spans.headerTokens = 9;
  await ingestText(world, store, "kept.txt", "Nothing of this is in the other file.");
  await prepare();
  const kept = new Set<string>(world.spans.resident);
  const file = await ingestText(world, store, "gone.txt", document.slice(0, 20).join(""));
  await prepare();
  expect(world.spans.resident.size).toBeGreaterThan(kept.size);
  world.corpus.files.delete(tenantId, file.id);
  await world.corpus.idle();
  expect(new Set<string>(world.spans.resident)).toEqual(kept);
});
