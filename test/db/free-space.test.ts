/** Indexes that are dropped as a whole: fast, and without a byte of them left once the free space is zeroed. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type CorpusRow,
  dropDeletedIndexes,
  eraseDeletedTexts,
  insertCorpus,
  markCorpusDeleted,
  removeDeletedFiles,
  removeSweptCorpora,
} from "../../db/corpora.ts";
import { attachFile, type CorpusFileRow } from "../../db/corpus-files.ts";
import { insertFileOnce, listDeletedFiles, listSweptFileIds, markFileDeleted } from "../../db/files.ts";
import { insertFragments, peekFragments } from "../../db/fragments.ts";
import { zeroFreeSpace } from "../../db/free-space.ts";
import { fullTextBlocks } from "../../db/fts.ts";
import { newId, type TenantId } from "../../db/ids.ts";
import { type Db, openDb } from "../../db/open.ts";
import { insertTenant } from "../../db/tenants.ts";
import { vectorModel } from "../../db/vectors.ts";

let dir = "";
let db: Db;
let tenantId: TenantId;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "spangate-free-space-"));
  db = openDb(join(dir, "spangate.db"));
  tenantId = insertTenant(db, { id: newId("tenant"), name: "t", createdAt: 1 }).id;
});
afterEach(() => {
  db.close();
  rmSync(dir, { recursive: true, force: true });
});

/** A corpus of one file, whose fragments all have words of their own that begin with `word`. */
function corpusOf(word: string, fragmentCount: number): { readonly corpus: CorpusRow; readonly file: CorpusFileRow } {
  const fields = { tenantId, createdAt: 1 };
  const corpus = insertCorpus(db, { ...fields, id: newId("corpus"), name: "", description: null, metadata: {} });
  const upload = { filename: "a", purpose: "assistants", mediaType: "text/plain", byteCount: 1, sha256: newId("file") };
  const source = insertFileOnce(db, { ...fields, ...upload, id: newId("file") });
  if (corpus === undefined || source === undefined) throw new Error("not inserted");
  const chunking = { attributes: {}, maxChunkTokens: 64, overlapTokens: 0 };
  const file = attachFile(db, { ...fields, ...chunking, corpusId: corpus.id, fileId: source.id });
  const piece = Array.from({ length: fragmentCount }, (_, ordinal) => {
    const text = Array.from({ length: 10 }, (_, i) => `${word}${ordinal * 10 + i}`).join(" ");
    return { id: newId("fragment"), ordinal, text, firstChar: 0, endChar: text.length, tokenCount: 10 };
  });
  db.unsynced(() => insertFragments(db, corpus.seq, file, piece));
  return { corpus, file };
}

/** Files of the folder that hold the text, the log moved into the database. */
function traces(text: string): readonly string[] {
  db.truncateLog();
  return readdirSync(dir).filter((name) => readFileSync(join(dir, name)).toString("latin1").includes(text));
}

function removeRows(): void {
  const left = () => removeDeletedFiles(db, tenantId, 256);
  while (left());
}

const isWhole = () => db.client.query<{ integrity_check: string }, []>("pragma integrity_check").get();
const tables = () =>
  db.client
    .query<{ name: string }, []>("select name from sqlite_schema where name like 'fts_%' or name = 'free_space'")
    .all();

describe("a deleted corpus' index", () => {
  test("what is dropped while earlier free space is being zeroed is zeroed too", () => {
    const [first, second] = [corpusOf("xylophone", 2_000), corpusOf("glockenspiel", 2_000)];
    markCorpusDeleted(db, first.corpus.id, 2);
    void [...dropDeletedIndexes(db, tenantId, 0)];
    removeRows();
    let pieces = 0;
    const isEmptying = () => db.client.query("select 1 from free_space where zeros is not null").get() !== null;
    for (const _ of zeroFreeSpace(db)) {
      pieces += 1;
      // All that was free is overwritten by now, and the zeros are on their way out.
      const pages = db.client.query<{ freelist_count: number }, []>("pragma freelist_count").get()?.freelist_count ?? 0;
      if (pieces < 3 || pages === 0 || !isEmptying() || fullTextBlocks(db, second.corpus.seq, 10) === undefined)
        continue;
      markCorpusDeleted(db, second.corpus.id, 3);
      void [...dropDeletedIndexes(db, tenantId, 0)];
      removeRows();
    }
    expect(fullTextBlocks(db, second.corpus.seq, 10)).toBeUndefined();
    expect(traces("lockenspiel1999")).toEqual([]);
    expect(tables().map(({ name }) => name)).not.toContain("free_space");
  });

  test("is dropped at once; its words stay in free space until that is zeroed", () => {
    const doomed = corpusOf("xylophone", 2_000);
    const kept = corpusOf("marimba", 50);
    markCorpusDeleted(db, doomed.corpus.id, 2);
    void [...dropDeletedIndexes(db, tenantId, 0)];
    expect(fullTextBlocks(db, doomed.corpus.seq, 10)).toBeUndefined();
    expect(fullTextBlocks(db, kept.corpus.seq, 10)).toBeGreaterThan(0);
    removeRows();
    // A page of the index has its first word whole, and of others what differs from the one before.
    expect(traces("ylophone1")).toEqual(["spangate.db"]);
    expect([...zeroFreeSpace(db)].length).toBeGreaterThan(2);
    expect(traces("ylophone")).toEqual([]);
    expect([...zeroFreeSpace(db)]).toEqual([]);
    expect(isWhole()).toEqual({ integrity_check: "ok" });
    removeSweptCorpora(db, tenantId, 10);
    expect(tables().every(({ name }) => name.startsWith(`fts_${kept.corpus.seq}`))).toBe(true);
    expect(traces("arimba49").length).toBe(1);
  });

  test("its texts and vectors go before its rows: a file that is done is not looked at again", () => {
    const [doomed, kept] = [corpusOf("xylophone", 300), corpusOf("marimba", 50)];
    const count = (table: string) =>
      db.client.query<{ n: number }, []>(`select count(*) as n from ${table}`).get()?.n ?? 0;
    vectorModel(db, "m", 8);
    db.client.run(
      "insert into fragment_vectors (fragment_seq, model_seq, vector) select seq, 1, zeroblob(8) from fragments",
    );
    const erase = (erased: Set<number>) => [...eraseDeletedTexts(db, tenantId, erased)].length;
    expect(erase(new Set())).toBe(0);
    markCorpusDeleted(db, doomed.corpus.id, 2);
    void [...dropDeletedIndexes(db, tenantId, 0)];
    const erased = new Set<number>();
    expect(erase(erased)).toBeGreaterThan(2);
    expect(erased).toEqual(new Set([doomed.file.seq]));
    void [...zeroFreeSpace(db)];
    expect([traces("ylophone"), traces("marimba49")]).toEqual([[], ["spangate.db"]]);
    expect([count("fragments"), count("fragment_vectors")]).toEqual([350, 50]);
    const before = db.changeCount();
    erase(erased);
    expect(db.changeCount()).toBe(before);
    expect(peekFragments(db, kept.file.seq, 1)[0]?.text).toStartWith("marimba0 ");
    removeRows();
    expect([count("fragments"), count("fragment_vectors"), isWhole()]).toEqual([50, 50, { integrity_check: "ok" }]);
  });

  test("zeroing that was cut off, in any of its steps, is begun anew by the next that opens the database", () => {
    for (const steps of [0, 1, 2, 5]) {
      const doomed = corpusOf(`xylophone${steps}x`, 1_500);
      markCorpusDeleted(db, doomed.corpus.id, 2);
      void [...dropDeletedIndexes(db, tenantId, 0)];
      removeRows();
      const zeroing = zeroFreeSpace(db);
      for (let step = 0; step < steps; step++) zeroing.next();
      db.close();
      db = openDb(join(dir, "spangate.db"));
      Array.from(zeroFreeSpace(db));
      expect([steps, traces("xylophone")]).toEqual([steps, []]);
      removeSweptCorpora(db, tenantId, 10);
      expect([tables(), isWhole()]).toEqual([[], { integrity_check: "ok" }]);
    }
  });

  test("a small one is zeroed while it is dropped", () => {
    const doomed = corpusOf("xylophone", 50);
    markCorpusDeleted(db, doomed.corpus.id, 2);
    void [...dropDeletedIndexes(db, tenantId)];
    removeRows();
    expect(tables()).toEqual([]);
    expect(traces("ylophone")).toEqual([]);
  });

  test("secure_delete is back on, also after a failure", () => {
    const pragma = () => db.client.query<{ secure_delete: number }, []>("pragma secure_delete").get()?.secure_delete;
    const { corpus } = corpusOf("xylophone", 10);
    markCorpusDeleted(db, corpus.id, 2);
    db.client.run("pragma query_only = on");
    expect(() => [...dropDeletedIndexes(db, tenantId, 0)]).toThrow();
    expect(pragma()).toBe(1);
    db.client.run("pragma query_only = off");
    void [...dropDeletedIndexes(db, tenantId, 0)];
    expect(pragma()).toBe(1);
    expect([...zeroFreeSpace(db)].length).toBeGreaterThan(0);
    expect(pragma()).toBe(1);
  });
});

test("a deleted file's row goes once no corpus names it", () => {
  const { corpus, file } = corpusOf("xylophone", 1);
  markFileDeleted(db, tenantId, file.fileId, 2);
  expect(listDeletedFiles(db, tenantId, 0, 9).map(({ id }) => id)).toEqual([file.fileId]);
  expect(listSweptFileIds(db, tenantId, 9)).toEqual([]);
  markCorpusDeleted(db, corpus.id, 2);
  removeRows();
  expect(listSweptFileIds(db, tenantId, 9)).toEqual([file.fileId]);
});
