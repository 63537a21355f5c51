import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type CorpusRow,
  dropDeletedIndexes,
  insertCorpus,
  markCorpusDeleted,
  removeSweptCorpora,
} from "../../db/corpora.ts";
import {
  attachFile,
  type CorpusFileRow,
  completeFile,
  markCorpusFileDeleting,
  removeCorpusFile,
} from "../../db/corpus-files.ts";
import { insertFileOnce } from "../../db/files.ts";
import { insertFragments, peekFragments, readHits, removeFragments } from "../../db/fragments.ts";
import { newId } from "../../db/ids.ts";
import { type Db, openDb } from "../../db/open.ts";
import { insertTenant } from "../../db/tenants.ts";
import {
  insertVectors,
  lastVisibleSeq,
  listUnembedded,
  repairVectorIndexes,
  searchVectors,
  type VectorModel,
  vectorModel,
} from "../../db/vectors.ts";

const createdAt = 1;
const dimensions = 24;
let dir = "";
let db: Db;
let model: VectorModel;
let corpus: CorpusRow;

const open = (vectorExtension?: () => string) =>
  openDb(join(dir, "spangate.db"), vectorExtension === undefined ? {} : { vectorExtension });
const noExtension = () => join(dir, "there-is-none.so");

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "spangate-vectors-"));
  db = open();
  model = vectorModel(db, "first", dimensions);
  const tenant = insertTenant(db, { id: newId("tenant"), name: "t", createdAt });
  const inserted = insertCorpus(db, {
    id: newId("corpus"),
    tenantId: tenant.id,
    name: "",
    description: null,
    metadata: {},
    createdAt,
  });
  if (inserted === undefined) throw new Error("not inserted");
  corpus = inserted;
});
afterEach(() => {
  db.close();
  rmSync(dir, { recursive: true, force: true });
});

/** Angle 0 is the first axis, 1 the opposite direction; signs change one by one on the way. */
function vectorAt(angle: number): Float32Array {
  return Float32Array.from({ length: dimensions }, (_, i) =>
    Math.cos(Math.PI * angle + (i * Math.PI) / dimensions / 2),
  );
}

/** A completed file whose fragment number i is named by its angle. */
function addFile(angles: readonly number[], complete = true): CorpusFileRow {
  const { tenantId } = corpus;
  const content = { filename: "a.txt", purpose: "assistants", mediaType: "text/plain", byteCount: 1 };
  const file = insertFileOnce(db, { id: newId("file"), tenantId, createdAt, sha256: crypto.randomUUID(), ...content });
  if (file === undefined) throw new Error("not inserted");
  const ids = { corpusId: corpus.id, fileId: file.id, tenantId, createdAt };
  const attached = attachFile(db, { ...ids, attributes: {}, maxChunkTokens: 16, overlapTokens: 0 });
  const rows = angles.map((angle, ordinal) => {
    return { id: newId("fragment"), ordinal, text: String(angle), firstChar: 0, endChar: 1, tokenCount: 1 };
  });
  insertFragments(db, corpus.seq, attached, rows);
  if (complete) completeFile(db, attached, 1);
  return attached;
}

function embedAll(of: VectorModel = model): number {
  const piece = listUnembedded(db, of, { afterSeq: 0, lastSeq: lastVisibleSeq(db), limit: 1_000 });
  insertVectors(
    db,
    of,
    piece.map(({ seq, corpusSeq, text }) => ({ seq, corpusSeq, vector: vectorAt(Number(text)) })),
  );
  return piece.length;
}

function found(angle: number, limit = 3, files?: readonly number[]): readonly number[] {
  const hits = searchVectors(db, corpus.seq, { model, vector: vectorAt(angle), limit }, files).map(({ seq }) => seq);
  const rows = readHits(db, hits);
  return hits.map((seq) => Number(rows.get(seq)?.text));
}

describe("searchVectors", () => {
  test("nearest first by cosine, in the files asked for", () => {
    const first = addFile([0, 0.1, 0.5, 0.9]);
    const second = addFile([0.05, 0.45]);
    expect(embedAll()).toBe(6);
    expect(embedAll()).toBe(0);
    expect(found(0)).toEqual([0, 0.05, 0.1]);
    expect(found(0.47, 2)).toEqual([0.45, 0.5]);
    expect(found(0, 9, [second.seq])).toEqual([0.05, 0.45]);
    expect(found(0.9, 1, [first.seq])).toEqual([0.9]);
    expect(found(0, 9, [])).toEqual([]);
    const [best] = searchVectors(db, corpus.seq, { model, vector: vectorAt(0), limit: 1 });
    expect(best?.cosine).toBeCloseTo(1, 3);
  });

  test("ties by age; another model's vectors are never compared", () => {
    addFile([0.2, 0.2, 0.2]);
    embedAll();
    const seqs = searchVectors(db, corpus.seq, { model, vector: vectorAt(0), limit: 3 }).map(({ seq }) => seq);
    expect(seqs).toEqual([...seqs].sort((a, b) => a - b));
    const other = vectorModel(db, "second", dimensions);
    expect(searchVectors(db, corpus.seq, { model: other, vector: vectorAt(0), limit: 3 })).toEqual([]);
  });

  test("among hundreds the nearest are found, by ranking what the signs find", () => {
    const angles = Array.from({ length: 500 }, (_, i) => (i * 211) % 500).map((n) => n / 500);
    addFile(angles);
    while (embedAll() > 0);
    for (const angle of [0.1, 0.5, 0.8]) {
      const nearest = angles.toSorted((a, b) => Math.abs(a - angle) - Math.abs(b - angle));
      const hits = found(angle, 10);
      for (const hit of hits) expect(Math.abs(hit - angle)).toBeLessThanOrEqual(Math.abs((nearest[60] ?? 9) - angle));
    }
  });

  test("only completed files' fragments have vectors and are found", () => {
    addFile([0.5]);
    addFile([0.1], false);
    expect(embedAll()).toBe(1);
    expect(found(0.1)).toEqual([0.5]);
    const gone = { seq: 999, corpusSeq: corpus.seq, vector: vectorAt(0) };
    insertVectors(db, model, [gone]);
    expect(found(0)).toEqual([0.5]);
  });

  test("files that are being deleted take nobody's place", () => {
    const doomed = addFile(Array.from({ length: 200 }, () => 0));
    addFile([0.5]);
    embedAll();
    markCorpusFileDeleting(db, doomed.seq);
    expect(found(0, 1)).toEqual([0.5]);
  });

  test("a search within files stays within them, also where it finds too few while another is deleted", () => {
    const [doomed, asked] = [addFile([0.1]), addFile([0.5])];
    addFile([0.2]);
    embedAll();
    markCorpusFileDeleting(db, doomed.seq);
    expect(found(0, 9, [asked.seq])).toEqual([0.5]);
    expect(found(0, 9)).toEqual([0.2, 0.5]);
  });
});

describe("what goes", () => {
  const counts = () =>
    ["fragment_vectors", "vector_indexes", `vectors_${corpus.seq}`].map(
      (table) => db.client.query<{ n: number }, []>(`select count(*) n from ${table}`).get()?.n,
    );

  test("removed fragments are out of the index, a removed corpus takes the index with it", () => {
    const file = addFile([0, 0.3, 0.6]);
    embedAll();
    removeFragments(db, corpus.seq, peekFragments(db, file.seq, 2));
    expect(counts()).toEqual([1, 1, 1]);
    expect(found(0)).toEqual([0.6]);
    removeFragments(db, corpus.seq, peekFragments(db, file.seq, 9));
    removeCorpusFile(db, file.seq);
    markCorpusDeleted(db, corpus.id, 2);
    void [...dropDeletedIndexes(db, corpus.tenantId)];
    removeSweptCorpora(db, corpus.tenantId, 10);
    const tables = "select name from sqlite_schema where name like 'vectors_%'";
    expect(db.client.query(tables).all()).toEqual([]);
  });

  test("another model's vectors, at the next repair; all are to be embedded again", () => {
    addFile([0, 0.3]);
    embedAll();
    const other = vectorModel(db, "second", dimensions);
    repairVectorIndexes(db, other);
    expect(embedAll(other)).toBe(2);
    expect(found(0)).toEqual([]);
    model = other;
    expect(found(0)).toEqual([0, 0.3]);
  });
});

describe("without the extension", () => {
  test("says so, searches nothing, removes all the same; a later start cleans up", () => {
    const file = addFile([0, 0.3]);
    embedAll();
    db.close();
    db = open(noExtension);
    expect(db.hasVectors).toBe(false);
    expect(db.vectorsMissing).toContain("there-is-none.so");
    expect(found(0)).toEqual([]);
    removeFragments(db, corpus.seq, peekFragments(db, file.seq, 1));
    insertVectors(db, model, [{ seq: 2, corpusSeq: corpus.seq, vector: vectorAt(0) }]);
    repairVectorIndexes(db, model);
    db.close();
    db = open();
    expect(db.vectorsMissing).toBeUndefined();
    repairVectorIndexes(db, model);
    expect(found(0)).toEqual([0.3]);
    expect(db.client.query<{ n: number }, []>(`select count(*) n from vectors_${corpus.seq}`).get()?.n).toBe(1);
  });
});
