/** Pins are walked by themselves: a tenant that pins one fragment must not cost a look at everybody's fragments. */
import { expect, spyOn, test } from "bun:test";
import { insertCorpus } from "../../db/corpora.ts";
import { attachFile, completeFile } from "../../db/corpus-files.ts";
import { insertFileOnce } from "../../db/files.ts";
import { insertFragments } from "../../db/fragments.ts";
import { newId } from "../../db/ids.ts";
import { type Db, openDb } from "../../db/open.ts";
import { putPin, walkPins } from "../../db/pins.ts";
import { insertTenant } from "../../db/tenants.ts";

const createdAt = 1;

function tenantWithFragments(db: Db, count: number) {
  const { id: tenantId } = insertTenant(db, { id: newId("tenant"), name: "a", createdAt });
  const fields = { tenantId, createdAt };
  const corpus = insertCorpus(db, { id: newId("corpus"), name: "", description: null, metadata: {}, ...fields });
  const content = { filename: "a.txt", purpose: "assistants", mediaType: "text/plain", byteCount: 1, sha256: "x" };
  const file = insertFileOnce(db, { id: newId("file"), ...content, ...fields });
  if (corpus === undefined || file === undefined) throw new Error("not inserted");
  const ids = { corpusId: corpus.id, fileId: file.id, ...fields };
  const attached = attachFile(db, { ...ids, attributes: {}, maxChunkTokens: 16, overlapTokens: 0 });
  const rows = Array.from({ length: count }, (_, ordinal) => {
    return { id: newId("fragment"), ordinal, text: `Page ${ordinal}.`, firstChar: 0, endChar: 8, tokenCount: 1 };
  });
  insertFragments(db, corpus.seq, attached, rows);
  completeFile(db, attached, 1);
  return { tenantId, fragmentIds: rows.map(({ id }) => id) };
}

test("walking the pins reads the pinned fragments, in order, and looks at no other", () => {
  const db = openDb(":memory:");
  const { tenantId, fragmentIds } = tenantWithFragments(db, 40);
  for (const seq of [30, 3, 17]) putPin(db, { fragmentSeq: seq, tenantId, blocks: 1, tier: "device" });
  const prepared = spyOn(db.client, "prepare");
  const walked = walkPins(db, 0, 2);
  expect(walked.map(({ seq, id }) => [seq, id])).toEqual([3, 17].map((seq) => [seq, fragmentIds[seq - 1]]));
  expect(walkPins(db, 17, 2).map(({ seq }) => seq)).toEqual([30]);
  expect(walkPins(db, 30, 2)).toEqual([]);
  const [sql = ""] = prepared.mock.calls[0] ?? [];
  const plan = db.client
    .query<{ detail: string }, [string, number, number]>(`explain query plan ${sql}`)
    .all("completed", 0, 2);
  expect(plan[0]?.detail).toStartWith("SEARCH fragment_pins USING INTEGER PRIMARY KEY");
  expect(plan.map(({ detail }) => detail).join()).not.toContain("TEMP B-TREE");
  db.close();
});
