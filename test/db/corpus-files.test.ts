import { afterEach, beforeEach, expect, test } from "bun:test";
import { insertCorpus } from "../../db/corpora.ts";
import {
  attachFile,
  type CorpusFileRow,
  cancelFileBatch,
  completeFile,
  failFile,
  insertFileBatch,
} from "../../db/corpus-files.ts";
import { insertFileOnce, markFileDeleted } from "../../db/files.ts";
import { insertFragments, peekFragments } from "../../db/fragments.ts";
import { newId } from "../../db/ids.ts";
import { type Db, openDb } from "../../db/open.ts";
import { insertTenant, markTenantDeleting } from "../../db/tenants.ts";

let db: Db;
let attached: CorpusFileRow;
const createdAt = 1;
const tenantId = newId("tenant");
const corpusId = newId("corpus");
const fileId = newId("file");
const file = {
  id: fileId,
  tenantId,
  filename: "a",
  purpose: "assistants",
  mediaType: "",
  byteCount: 1,
  sha256: "x",
  createdAt,
};
const corpus = { id: corpusId, tenantId, name: "", description: null, metadata: {}, createdAt };
const attachment = { corpusId, fileId, tenantId, attributes: {}, maxChunkTokens: 16, overlapTokens: 0, createdAt };

beforeEach(() => {
  db = openDb(":memory:");
  insertTenant(db, { id: tenantId, name: "a", createdAt });
  insertFileOnce(db, file);
  insertCorpus(db, corpus);
  attached = attachFile(db, attachment);
});
afterEach(() => db.close());

const insert = (attempt: CorpusFileRow) => {
  const fragment = { id: newId("fragment"), ordinal: 0, text: "Text.", firstChar: 0, endChar: 5, tokenCount: 2 };
  return insertFragments(db, 1, attempt, [fragment]);
};

/** An attempt that has ended can neither store nor settle anything. */
function expectPowerless(attempt: CorpusFileRow): void {
  expect(insert(attempt)).toBe(false);
  expect(completeFile(db, attempt, 1)).toBe(false);
  expect(failFile(db, attempt, "server_error", "late")).toBe(false);
  expect(peekFragments(db, attempt.seq, 10)).toEqual([]);
}

test("an attempt that was cancelled and begun anew is powerless, the new one is not", () => {
  const batch = insertFileBatch(db, { id: newId("fileBatch"), corpusId, createdAt }, [attached.seq]);
  cancelFileBatch(db, batch.id);
  expectPowerless(attached);
  const again = attachFile(db, { ...attachment, maxChunkTokens: 64 });
  expect(again).toMatchObject({ seq: attached.seq, attempt: 1, maxChunkTokens: 64, status: "in_progress" });
  expectPowerless(attached);
  expect([insert(again), completeFile(db, again, 1)]).toEqual([true, true]);
});

test("an attempt on a deleted file is powerless", () => {
  markFileDeleted(db, tenantId, fileId, 2);
  expectPowerless(attached);
});

test("a tenant that is being deleted gets nothing new", () => {
  markTenantDeleting(db, tenantId, 2);
  expectPowerless(attached);
  expect(insertFileOnce(db, { ...file, id: newId("file"), sha256: "y" })).toBeUndefined();
  expect(insertCorpus(db, { ...corpus, id: newId("corpus") })).toBeUndefined();
});
