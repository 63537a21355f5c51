import { expect, test } from "bun:test";
import {
  endBatch,
  findBatch,
  insertBatch,
  listDoneLines,
  recordResult,
  sweepResults,
  updateBatch,
} from "../../db/batches.ts";
import { newId } from "../../db/ids.ts";
import { openDb } from "../../db/open.ts";
import { insertTenant } from "../../db/tenants.ts";

function opened() {
  const db = openDb(":memory:");
  const tenantId = newId("tenant");
  insertTenant(db, { id: tenantId, name: "acme", createdAt: 0 });
  const insert = (kept = 100) => {
    const ids = { id: newId("batch"), keyId: newId("apiKey"), inputFileId: newId("file"), tenantId };
    const row = { ...ids, endpoint: "/v1/embeddings", metadata: null, createdAt: 0, expiresAt: 1 };
    const inserted = insertBatch(db, row, kept);
    if (inserted === undefined) throw new Error("no tenant");
    return inserted;
  };
  return { db, tenantId, insert };
}

test("a line has one result, and only while its batch runs", () => {
  const { db, tenantId, insert } = opened();
  const { seq, id } = insert();
  const result = { line: 1, isError: false, body: "{}", inputTokens: 3, outputTokens: 2 };
  expect(recordResult(db, seq, result)).toBe(false);
  updateBatch(db, seq, ["validating"], { status: "in_progress" });
  expect(recordResult(db, seq, result)).toBe(true);
  expect(recordResult(db, seq, { ...result, isError: true, body: "other" })).toBe(false);
  expect(findBatch(db, tenantId, id)).toMatchObject({ completed: 1, failed: 0, inputTokens: 3, outputBytes: 2 });
  expect(listDoneLines(db, seq, 1, 2)).toEqual([1]);
  expect(endBatch(db, seq, { status: "completed" })).toBe(true);
  expect(recordResult(db, seq, { ...result, line: 2 })).toBe(false);
  expect(endBatch(db, seq, { status: "failed" })).toBe(false);
  while (sweepResults(db, 1));
  expect(listDoneLines(db, seq, 1, 2)).toEqual([]);
});

test("results of a batch that has ended go in pieces of so many bytes, and one at least", () => {
  const { db, insert } = opened();
  const { seq } = insert();
  const { seq: running } = insert();
  for (const each of [seq, running]) updateBatch(db, each, ["validating"], { status: "in_progress" });
  for (const [line, letters] of [900, 10, 10, 10].entries()) {
    for (const each of [seq, running]) recordResult(db, each, { line, isError: false, body: "x".repeat(letters) });
  }
  expect(sweepResults(db, 25)).toBe(false);
  endBatch(db, seq, { status: "completed" });
  const counts: number[] = [];
  while (sweepResults(db, 25)) counts.push(listDoneLines(db, seq, 0, 9).length);
  // The last one only tells that none is left.
  expect(counts).toEqual([3, 1, 0, 0]);
  expect(listDoneLines(db, running, 0, 9).length).toBe(4);
});

test("of those that have ended the newest stay", () => {
  const { db, tenantId, insert } = opened();
  const batches = Array.from({ length: 5 }, () => insert());
  for (const { seq } of batches.slice(1)) updateBatch(db, seq, ["validating"], { status: "completed" });
  insert(3);
  const isThere = batches.map(({ id }) => findBatch(db, tenantId, id) !== undefined);
  // The first runs still.
  expect(isThere).toEqual([true, false, false, true, true]);
});

test("none is made for a tenant that is gone", () => {
  const { db, insert } = opened();
  db.client.run("update tenants set status = 'deleting'");
  expect(insert).toThrow("no tenant");
});
