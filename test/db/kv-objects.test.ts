/** What a start reads of KV in files: spans by their last use, and the fragments that they are of. */
import { expect, test } from "bun:test";
import { completeFile } from "../../db/corpus-files.ts";
import { notePrepared } from "../../db/fragments.ts";
import { inBucket } from "../../db/kv-bucket.ts";
import { findKeptFragments, insertKvObject, listKvSpans } from "../../db/kv-objects.ts";
import { openDb } from "../../db/open.ts";
import { tenantWithFile } from "./tenant-with-file.ts";

function world() {
  const db = openDb(":memory:");
  const { tenantId, corpus, file, attached, rows } = tenantWithFile(db, ["one", "two"]);
  const scope = { name: "scope", tenantId, corpusId: corpus.id, saltEpoch: 0, sealedKey: Buffer.alloc(1) };
  const keep = (spanKey: string, usedAt: number, position = 0): void => {
    const keys = { rootKey: "root", previousKey: "root", lastKey: `${spanKey}/${position}`, spanKey, position };
    const size = { tokenCount: 16, blockCount: 1, bytes: 4_096, pinned: 0, onDisk: 1, inBucket: inBucket.no };
    const same = { id: `${spanKey}/${position}`, sealedKey: Buffer.alloc(1), modelDigest: "m", format: "f", tenantId };
    insertKvObject(db, scope, { ...same, ...keys, ...size, usedAt });
  };
  return { db, corpus, file, rows, keep, complete: () => completeFile(db, attached, 1) };
}

test("spans are listed by their last use, each once, whatever else is in files", () => {
  const { db, keep } = world();
  keep("old", 1);
  for (let index = 0; index < 40; index++) keep(`pinned ${index}`, 3 + index);
  keep("long", 2);
  keep("long", 2, 512);
  const spans = listKvSpans(db, 100);
  expect(spans).toHaveLength(42);
  expect([spans[0], spans.at(-2), spans.at(-1)]).toEqual(["pinned 39", "long", "old"]);
  expect(listKvSpans(db, 2)).toEqual(["pinned 39", "pinned 38"]);
});

test("fragments of spans come in the spans' order, and not before their file is complete", () => {
  const { db, corpus, file, rows, complete } = world();
  const [one, two] = rows;
  if (one === undefined || two === undefined) throw new Error("no fragments");
  notePrepared(db, one.id, "key 1", 0, 1);
  notePrepared(db, two.id, "key 2", 0, 1);
  const found = () => findKeptFragments(db, ["key 2", "unknown", "key 1"]);
  expect(found()).toEqual([]);
  complete();
  expect(found().map(({ id, text, fileId, corpusId }) => [id, text, fileId, corpusId])).toEqual([
    [two.id, "two", file.id, corpus.id],
    [one.id, "one", file.id, corpus.id],
  ]);
});
