import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import JSZip from "jszip";
import { DbError } from "../../../db/errors.ts";
import type { TenantId } from "../../../db/ids.ts";
import type { AttachRequest } from "../../../gateway/corpus/ingest/corpus-files.ts";
import { docxOf, paragraph, pdfOf, pdfPage } from "../../extract/documents.ts";
import { countTokens } from "../fixtures.ts";
import { createWorld, ingestText, type World } from "../world.ts";

let world: World;
let tenantId: TenantId;

beforeEach(() => {
  world = createWorld();
  tenantId = world.tenants.create("acme").id;
});
afterEach(() => world.remove());

const newStore = (name = "store") => world.corpus.corpora.create(tenantId, { name, metadata: {} });
const fragmentCount = () =>
  world.db.client.query<{ n: number }, []>("select count(*) as n from fragments").get()?.n ?? -1;
const sentences = (n: number, word = "Word") =>
  Array.from({ length: n }, (_, i) => `${word} number ${i} stands here.`).join(" ");

async function upload(filename: string, bytes: Uint8Array | string, mediaType = "") {
  const content = typeof bytes === "string" ? new TextEncoder().encode(bytes) : bytes;
  return world.corpus.files.upload(tenantId, { filename, purpose: "assistants", mediaType, bytes: content });
}

const zipOf = (name: string) => new JSZip().file(name, "x").generateAsync({ type: "uint8array" });

async function attach(store: ReturnType<typeof newStore>, fileId: string, maxTokens = 32) {
  const chunking = { maxTokens, overlapTokens: 0 };
  await world.corpus.corpusFiles.attach(store, [{ fileId, attributes: {}, chunking }], "file_id");
}

describe("ingestion", () => {
  test("stores fragments that make up the text, found by search", async () => {
    const store = newStore();
    const text = `${sentences(40)} Zanzibar is a word. ${sentences(3)}`;
    const file = await ingestText(world, store, "a.txt", text);
    const row = world.corpus.corpusFiles.get(store, file.id);
    expect(row).toMatchObject({ status: "completed", usageBytes: text.length, errorCode: null });
    expect(world.corpus.corpusFiles.texts(store, file.id).join("")).toBe(text);
    const found = await world.corpus.retrieve({
      tenantId,
      vectorStoreIds: [store.id],
      query: "zanzibar?",
      maxResults: 5,
    });
    expect(found.map((hit) => [hit.fileId, hit.text.includes("Zanzibar")])).toEqual([[file.id, true]]);
  });

  test("what is no text says why", async () => {
    const store = newStore();
    const cases: readonly (readonly [string, Uint8Array | string, string, string, RegExp])[] = [
      ["bad.txt", new Uint8Array([0x41, 0xff, 0xfe]), "text/plain", "invalid_file", /UTF-8/],
      ["cut.txt", new TextEncoder().encode("é").subarray(0, 1), "text/plain", "invalid_file", /UTF-8/],
      ["empty.txt", "", "text/plain", "invalid_file", /no text/],
      ["blank.md", " \n\n ", "text/markdown", "invalid_file", /no text/],
      ["nul.txt", "a\0b", "text/plain", "invalid_file", /NUL/],
      ["paper.pdf", "%PDF-1.7", "application/pdf", "invalid_file", /damaged/],
      ["words.pdf", "Some words.", "application/pdf", "invalid_file", /named \.pdf, but it is no PDF/],
      ["words.docx", "Some words.", "", "invalid_file", /no DOCX/],
      ["sheet.xlsx", await zipOf("a.txt"), "", "invalid_file", /ZIP archive, but no DOCX/],
      ["words.pptx", "Some words.", "", "invalid_file", /named \.pptx, but it is no PPTX/],
      ["old.doc", new Uint8Array([0xd0, 0xcf, 0x11, 0xe0, 0xa1]), "", "unsupported_file", /Old Word/],
      ["noextension", "{}", "application/octet-stream", "unsupported_file", /octet-stream/],
      ["photo.jpg", "JFIF", "image/jpeg", "unsupported_file", /\.jpg/],
      ["data.json", new Uint8Array([0x7b, 0xff, 0x7d]), "", "invalid_file", /UTF-8/],
      ["code.py", "a\0b", "", "invalid_file", /NUL/],
      ["odd", "words", "application/pdf", "invalid_file", /named application\/pdf, but it is no PDF/],
      ["open.csv", 'a,b\n1,"2\n', "", "invalid_file", /CSV near line/],
      ["wide.csv", "a,".repeat(1_000_000), "text/csv", "invalid_file", /more than 16384 columns/],
      ["names.constructor", "of every object", "", "unsupported_file", /\.constructor/],
      ["names", "of every object", "__proto__", "unsupported_file", /__proto__/],
      ["big.txt", "x ".repeat(4 * 1024 * 1024 + 1), "text/plain", "invalid_file", /characters/],
    ];
    for (const [name, bytes, type, code, message] of cases) {
      const file = await upload(name, bytes, type);
      await attach(store, file.id);
      await world.corpus.idle();
      const row = world.corpus.corpusFiles.get(store, file.id);
      expect([name, row.status, row.errorCode]).toEqual([name, "failed", code as "invalid_file"]);
      expect(row.errorMessage).toMatch(message);
    }
    expect(fragmentCount()).toBe(0);
    const plain = await upload("noextension2", "Some text.", "text/plain; charset=utf-8");
    await attach(store, plain.id);
    await world.corpus.idle();
    expect(world.corpus.corpusFiles.get(store, plain.id).status).toBe("completed");
  });

  test("documents are told by their content, whatever their name", async () => {
    const store = newStore();
    const cases: readonly (readonly [string, Uint8Array | string, string])[] = [
      ["a.pdf", pdfOf([pdfPage("Anna lives in Oslo.")]), "Anna lives in Oslo."],
      ["b.txt", pdfOf([pdfPage("Tom lives in Rome.")]), "Tom lives in Rome."],
      ["c", await docxOf(paragraph("Eve lives in Bonn.")), "Eve lives in Bonn."],
      ["d.html", "<h1>Ada</h1><p>Ada lives<br>in Bern.", "# Ada\n\nAda lives\nin Bern."],
      ["e", "<!doctype html><p>Ian lives in Cork.", "Ian lives in Cork."],
      ["f.txt", "<html> is a tag.", "<html> is a tag."],
    ];
    for (const [name, bytes, text] of cases) {
      const file = await upload(name, bytes);
      await attach(store, file.id);
      await world.corpus.idle();
      expect([name, world.corpus.corpusFiles.get(store, file.id).errorMessage]).toEqual([name, null]);
      expect(world.corpus.corpusFiles.texts(store, file.id).join("")).toBe(text);
    }
  });

  test("data, logs and source code are text as they are; rows of tables name their columns", async () => {
    const store = newStore();
    const code = "def f():\n    return 1\n";
    const asIs: readonly (readonly [string, string, string?])[] = [
      ["a.json", '{"name": "Ann.", "age": 7}'],
      ["b.JSONL", '{"a": 1}\n{"a": 2}\n'],
      ["c.yaml", "a:\n  - b\n"],
      ["d.toml", "[a]\nb = 1\n"],
      ["e.xml", '<?xml version="1.0"?>\n<a><main>b</main></a>'],
      ["f.log", "12:00 started\n12:01 stopped\n"],
      ["g.py", code],
      ["h.d.ts", "export {};\n"],
      ["path/to\\Dockerfile", "FROM scratch\n"],
      [".gitignore", "*.tmp\n"],
      ["i", code, "text/x-python"],
      ["j.unheard", "some words", "text/plain; charset=utf-8"],
      ["k", "{}", "application/geo+json"],
      ["l", "{}", "application/json"],
    ];
    const rows = "name: Ann | age: 7\nname: Tom | age: 8";
    const tables: readonly (readonly [string, string, string?])[] = [
      ["m.csv", "name,age\nAnn,7\nTom,8\n"],
      ["n.tsv", "name\tage\nAnn\t7\nTom\t8\n"],
      ["o", "name;age\nAnn;7\nTom;8\n", "text/csv"],
    ];
    for (const [at, [name, content, type]] of [...asIs, ...tables].entries()) {
      const file = await upload(name, content, type);
      await attach(store, file.id);
      await world.corpus.idle();
      expect([name, world.corpus.corpusFiles.get(store, file.id).errorMessage]).toEqual([name, null]);
      const expected = at < asIs.length ? content : rows;
      expect([name, world.corpus.corpusFiles.texts(store, file.id).join("")]).toEqual([name, expected]);
    }
  });

  test("the same upload is the same file, the same attachment is made once", async () => {
    const store = newStore();
    const [first, second] = await Promise.all([upload("a.txt", "Same text."), upload("a.txt", "Same text.")]);
    expect(second.id).toBe(first.id);
    expect((await upload("b.txt", "Same text.")).id).not.toBe(first.id);
    expect(readdirSync(join(world.dir, "files"))).toHaveLength(2);
    await attach(store, first.id);
    await attach(store, first.id);
    await world.corpus.idle();
    await attach(store, first.id);
    await world.corpus.idle();
    expect(fragmentCount()).toBe(1);
  });

  test("nothing of a file is visible before it is complete, and a restart completes it", async () => {
    const store = newStore();
    const file = await upload("long.txt", sentences(4_000, "Kiwi"));
    await attach(store, file.id, 16);
    const search = () => world.corpus.retrieve({ tenantId, vectorStoreIds: [store.id], query: "kiwi", maxResults: 5 });
    while (fragmentCount() === 0) await new Promise((resolve) => setImmediate(resolve));
    expect(world.corpus.corpusFiles.get(store, file.id).status).toBe("in_progress");
    expect(await search()).toEqual([]);
    expect((await world.corpus.fragments.list(tenantId, store.id, { limit: 5, order: "asc" })).rows).toEqual([]);
    await world.close();

    world = createWorld(world.dir);
    expect(fragmentCount()).toBeGreaterThan(0);
    expect(await search()).toEqual([]);
    await world.corpus.start();
    await world.corpus.idle();
    expect(world.corpus.corpusFiles.texts(store, file.id).join("")).toBe(sentences(4_000, "Kiwi"));
    expect(await search()).toHaveLength(5);
    expect(fragmentCount()).toBe(world.corpus.corpusFiles.texts(store, file.id).length);
  });

  test("cancelled in the middle leaves nothing; attached again with other bounds, only those count", async () => {
    const store = newStore();
    const file = await upload("long.txt", sentences(4_000));
    const request = { fileId: file.id, attributes: {}, chunking: { maxTokens: 16, overlapTokens: 0 } };
    const batch = await world.corpus.corpusFiles.createBatch(store, [request], "file_ids");
    while (fragmentCount() === 0) await new Promise((resolve) => setImmediate(resolve));
    expect(world.corpus.corpusFiles.cancelBatch(store, batch.id).counts).toMatchObject({ cancelled: 1, total: 1 });
    await attach(store, file.id, 64);
    await world.corpus.idle();
    expect(world.corpus.corpusFiles.get(store, file.id)).toMatchObject({ status: "completed", maxChunkTokens: 64 });
    expect(world.corpus.corpusFiles.texts(store, file.id).join("")).toBe(sentences(4_000));
    // Split anew, not what the cancelled attempt would have gone on with.
    expect(Math.max(...world.corpus.corpusFiles.texts(store, file.id).map(countTokens))).toBeGreaterThan(32);
    expect(fragmentCount()).toBe(world.corpus.corpusFiles.texts(store, file.id).length);
  });

  test("deleted in the middle: gone at once, and without trace", async () => {
    const store = newStore();
    const file = await upload("long.txt", sentences(4_000));
    await attach(store, file.id, 16);
    while (fragmentCount() === 0) await new Promise((resolve) => setImmediate(resolve));
    world.corpus.files.delete(tenantId, file.id);
    expect(() => world.corpus.corpusFiles.get(store, file.id)).toThrow("No such object.");
    await world.corpus.idle();
    expect(fragmentCount()).toBe(0);
    expect(readdirSync(join(world.dir, "files"))).toEqual([]);
  });

  test("tenants take turns", async () => {
    const other = world.tenants.create("other").id;
    const mine = newStore();
    const theirs = world.corpus.corpora.create(other, { name: "", metadata: {} });
    const chunking = { maxTokens: 32, overlapTokens: 0 };
    const requests: AttachRequest[] = [];
    for (let i = 0; i < 12; i++)
      requests.push({ fileId: (await upload(`${i}.txt`, sentences(1_500, `A${i}`))).id, attributes: {}, chunking });
    const bytes = new TextEncoder().encode("One file.");
    const single = await world.corpus.files.upload(other, {
      filename: "b.txt",
      purpose: "assistants",
      mediaType: "",
      bytes,
    });
    await world.corpus.corpusFiles.attach(mine, requests, "file_ids");
    const completed = () => world.corpus.corpora.withUsage(mine).usage.fileCounts.completed;
    await world.corpus.corpusFiles.attach(theirs, [{ fileId: single.id, attributes: {}, chunking }], "file_ids");
    const before = completed();
    while (world.corpus.corpusFiles.get(theirs, single.id).status === "in_progress") {
      await new Promise((resolve) => setImmediate(resolve));
    }
    // One that was begun, one of the other's turn, and one that was noticed late; first come, first served would end all.
    expect(before).toBeLessThan(9);
    expect(completed() - before).toBeLessThanOrEqual(3);
    await world.corpus.idle();
  });

  test("a full disk: uploads and attachments are refused, reading goes on, and ingestion ends once there is room", async () => {
    const store = newStore();
    await ingestText(world, store, "a.txt", "Mango grows here. It is sweet.");
    const late = await upload("late.txt", sentences(2_000, "Papaya"));
    await attach(store, late.id, 16);
    const { page_count: pages } = world.db.client.query<{ page_count: number }, []>("pragma page_count").get() ?? {
      page_count: 0,
    };
    world.db.client.run(`pragma max_page_count = ${pages + 4}`);
    while (!world.logged.some((line) => line.includes("SQLITE_FULL")))
      await new Promise((resolve) => setTimeout(resolve, 1));
    expect(world.corpus.corpusFiles.get(store, late.id).status).toBe("in_progress");
    const found = await world.corpus.retrieve({ tenantId, vectorStoreIds: [store.id], query: "mango", maxResults: 5 });
    expect(found).toHaveLength(1);
    let refused: unknown;
    try {
      for (let i = 0; i < 2_000; i++) world.tenants.create("x".repeat(256));
    } catch (error) {
      refused = error;
    }
    expect(refused).toBeInstanceOf(DbError);
    expect((refused as DbError).code).toBe("full");
    world.db.client.run("pragma max_page_count = 1000000");
    await world.corpus.idle();
    expect(world.corpus.corpusFiles.get(store, late.id).status).toBe("completed");
  });

  test("bytes without a row are collected at the next start, and nothing else is", async () => {
    const kept = await upload("a.txt", "Kept.");
    const orphan = `file-${"0".repeat(24)}`;
    await Bun.write(join(world.dir, "files", orphan), "left by a crash");
    await Bun.write(join(world.dir, "files", `${orphan}.tmp`), "half");
    await Bun.write(join(world.dir, "files", "README"), "not ours");
    await world.close();
    world = createWorld(world.dir);
    await world.corpus.start();
    expect(readdirSync(join(world.dir, "files")).sort()).toEqual(["README", kept.id].sort());
  });
});
