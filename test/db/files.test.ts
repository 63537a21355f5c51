import { expect, test } from "bun:test";
import { deleteFilesOfGoneTenant, findFile, insertFileOnce, listDeletedFiles, listFiles } from "../../db/files.ts";
import { newId, type TenantId } from "../../db/ids.ts";
import { openDb } from "../../db/open.ts";
import { insertTenant, markTenantDeleting } from "../../db/tenants.ts";

test("files of a tenant that is gone are found by nobody at once, and marked in pieces of so many", () => {
  const db = openDb(":memory:");
  const [gone, other] = [newId("tenant"), newId("tenant")];
  for (const id of [gone, other]) insertTenant(db, { id, name: "t", createdAt: 1 });
  const insert = (tenantId: TenantId, sha256: string) => {
    const about = { filename: "a", purpose: "assistants", mediaType: "text/plain", byteCount: 1, createdAt: 1 };
    const row = insertFileOnce(db, { ...about, id: newId("file"), tenantId, sha256 });
    if (row === undefined) throw new Error("not inserted");
    return row;
  };
  const files = ["1", "2", "3", "4", "5"].map((sha256) => insert(gone, sha256));
  const kept = insert(other, "1");
  const list = (tenantId: TenantId) => listFiles(db, tenantId, { limit: 9, order: "asc" }).rows.length;
  expect(deleteFilesOfGoneTenant(db, gone, 5, 2)).toBe(false);
  markTenantDeleting(db, gone, 5);
  expect([list(gone), list(other)]).toEqual([0, 1]);
  expect(files.map(({ id }) => findFile(db, gone, id))).toEqual(files.map(() => undefined));
  expect(listDeletedFiles(db, gone, 0, 9)).toEqual([]);
  const marked: number[] = [];
  while (deleteFilesOfGoneTenant(db, gone, 5, 2)) marked.push(listDeletedFiles(db, gone, 0, 9).length);
  expect(marked).toEqual([2, 4, 5]);
  expect(findFile(db, other, kept.id)?.id).toBe(kept.id);
});
