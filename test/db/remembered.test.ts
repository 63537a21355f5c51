/** What is remembered of the database is what stands in it, whoever changes it and whatever is rolled back. */
import { expect, test } from "bun:test";
import { newId } from "../../db/ids.ts";
import { openDb } from "../../db/open.ts";
import { Remembered } from "../../db/remembered.ts";
import { findTenantSaltEpoch, insertTenant, markTenantDeleting, raiseTenantSaltEpoch } from "../../db/tenants.ts";

function opened(most = 10) {
  const db = openDb(":memory:");
  const { id } = insertTenant(db, { id: newId("tenant"), name: "acme", createdAt: 1 });
  const remembered = new Remembered<number>(db, most);
  const reads: string[] = [];
  const epochOf = (tenantId = id) =>
    remembered.get(tenantId, () => {
      reads.push(tenantId);
      return findTenantSaltEpoch(db, tenantId);
    });
  return { db, id, reads, epochOf };
}

test("a row is read once, and again after any change", () => {
  const { db, id, reads, epochOf } = opened();
  const first = epochOf();
  expect([epochOf(), epochOf(), reads.length]).toEqual([first, first, 1]);
  const raised = raiseTenantSaltEpoch(db, id);
  expect(raised).not.toBe(first);
  expect([epochOf(), epochOf(), reads.length]).toEqual([raised, raised, 2]);
  markTenantDeleting(db, id, 2);
  expect(epochOf()).toBeUndefined();
});

test("what is not there is not remembered", () => {
  const { reads, epochOf } = opened();
  const gone = newId("tenant");
  expect([epochOf(gone), epochOf(gone), reads.length]).toEqual([undefined, undefined, 2]);
});

test("what a transaction reads before it is rolled back is not remembered", () => {
  const { db, id, epochOf } = opened();
  const before = epochOf();
  const failing = () =>
    db.transaction("raise", () => {
      raiseTenantSaltEpoch(db, id);
      expect(epochOf()).not.toBe(before);
      throw new Error("no");
    });
  expect(failing).toThrow("no");
  expect(epochOf()).toBe(before);
});

test("no more values are kept than may be", () => {
  const { db, id, reads, epochOf } = opened(2);
  const others = [1, 2].map((n) => insertTenant(db, { id: newId("tenant"), name: `t${n}`, createdAt: n }).id);
  for (const tenantId of [id, ...others, id]) epochOf(tenantId);
  expect(reads).toEqual([id, ...others, id]);
});
