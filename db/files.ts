import { and, eq, gt, inArray, isNotNull, isNull, lte, min, notExists, type SQL, sql } from "drizzle-orm";
import type { FileId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import type { Page, PageRange } from "./page.ts";
import { findRow, insertRow, listRows, pageOfRows, updateRow } from "./rows.ts";
import { corpusFiles, files } from "./schema.ts";
import { findTenant } from "./tenants.ts";

export type FileRow = typeof files.$inferSelect;
type NewFile = Omit<FileRow, "seq" | "deletedAt" | "expiresAt"> & Partial<Pick<FileRow, "expiresAt">>;

const visible = isNull(files.deletedAt);
/**
 * Selects the tenant's files. The files of a deleted tenant are marked in pieces, and even before that nobody finds
 * them.
 */
const visibleTo = (tenantId: TenantId): SQL | undefined =>
  and(
    eq(files.tenantId, tenantId),
    visible,
    sql`not exists (select 1 from tenants where id = ${tenantId} and status = 'deleting')`,
  );

/**
 * Inserts a file, or returns the row that the tenant already has of the same content, name and purpose. A file that is
 * to end is always one of its own.
 * @returns undefined when the tenant is gone
 */
export function insertFileOnce(db: Db, row: NewFile): FileRow | undefined {
  return db.transaction("insertFileOnce", () => {
    if (findTenant(db, row.tenantId) === undefined) return undefined;
    const same = (row.expiresAt ?? null) === null ? findFileByContent(db, row) : undefined;
    return same ?? insertRow(db, "insertFile", files, row);
  });
}

/** Among the files that stay. */
export function findFileByContent(
  db: Db,
  { tenantId, sha256, filename, purpose }: Pick<FileRow, "tenantId" | "sha256" | "filename" | "purpose">,
): FileRow | undefined {
  return findRow(
    db,
    "findFileByContent",
    files,
    { sha256, filename, purpose },
    visibleTo(tenantId),
    isNull(files.expiresAt),
  );
}

export function findFile(db: Db, tenantId: TenantId, id: FileId): FileRow | undefined {
  return findRow(db, "findFile", files, { id }, visibleTo(tenantId));
}

/** The files among `ids` that belong to the tenant. */
export function findFiles(db: Db, tenantId: TenantId, ids: readonly FileId[]): readonly FileRow[] {
  return listRows(db, "findFiles", files, {}, undefined, inArray(files.id, [...ids]), visibleTo(tenantId));
}

export function listFiles(
  db: Db,
  tenantId: TenantId,
  range: PageRange & { readonly purpose?: string | undefined },
): Page<FileRow> {
  const purpose = range.purpose === undefined ? undefined : eq(files.purpose, range.purpose);
  return pageOfRows(db, "listFiles", files, {}, range, visibleTo(tenantId), purpose);
}

/** Makes the file invisible, in every corpus too. @returns false when there is no such file */
export function markFileDeleted(db: Db, tenantId: TenantId, id: FileId, now: number): boolean {
  return db.transaction("markFileDeleted", () =>
    db.statement("markFileDeleted", (orm) => {
      const marked = updateRow(db, "markFileDeleted", files, { id, tenantId }, { deletedAt: now }, visible);
      if (marked === undefined) return false;
      orm.update(corpusFiles).set({ status: "deleting" }).where(eq(corpusFiles.fileId, id)).run();
      return true;
    }),
  );
}

const ending = and(visible, isNotNull(files.expiresAt));

/** Files that have come to their end, the earliest first. */
export function listDueFiles(db: Db, now: number, limit: number): readonly Pick<FileRow, "id" | "tenantId">[] {
  const due = lte(files.expiresAt, now);
  return listRows(db, "listDueFiles", files, {}, { orderBy: files.expiresAt, limit }, ending, due);
}

/** When the next file ends, in Unix milliseconds; undefined: none will. */
export function nextFileEnd(db: Db): number | undefined {
  const row = db.statement("nextFileEnd", (orm) =>
    orm
      .select({ at: min(files.expiresAt) })
      .from(files)
      .where(ending)
      .get(),
  );
  return row?.at ?? undefined;
}

/** Marks some files of a deleted tenant as deleted. @returns whether any may be left */
export function deleteFilesOfGoneTenant(db: Db, tenantId: TenantId, now: number, limit: number): boolean {
  return db.statement("deleteFilesOfGoneTenant", () => {
    const some = `update files set deleted_at = ?1 where seq in (
      select f.seq from tenants t cross join files f indexed by files_by_content on f.tenant_id = t.id
      where t.id = ?2 and t.status = 'deleting' and f.deleted_at is null limit ?3)`;
    return db.client.query<never, [number, string, number]>(some).run(now, tenantId, limit).changes > 0;
  });
}

/** The tenant's deleted files after `afterSeq`. */
export function listDeletedFiles(
  db: Db,
  tenantId: TenantId,
  afterSeq: number,
  limit: number,
): readonly Pick<FileRow, "seq" | "id">[] {
  return db.statement("listDeletedFiles", (orm) =>
    orm
      .select({ seq: files.seq, id: files.id })
      .from(files)
      .where(and(eq(files.tenantId, tenantId), isNotNull(files.deletedAt), gt(files.seq, afterSeq)))
      .orderBy(files.seq)
      .limit(limit)
      .all(),
  );
}

/** Deleted files of the tenant that are in no corpus any more, so that their rows can go. */
export function listSweptFileIds(db: Db, tenantId: TenantId, limit: number): readonly FileId[] {
  const rows = db.statement("listSweptFileIds", (orm) => {
    const places = orm.select({ one: sql`1` }).from(corpusFiles).where(eq(corpusFiles.fileId, files.id));
    return orm
      .select({ id: files.id })
      .from(files)
      .where(and(eq(files.tenantId, tenantId), isNotNull(files.deletedAt), notExists(places)))
      .limit(limit)
      .all();
  });
  return rows.map((row) => row.id);
}

/** The ids of all rows, including deleted ones that are not swept yet: the files that the content folder may hold. */
export function listAllFileIds(db: Db): readonly FileId[] {
  return db.statement("listAllFileIds", (orm) => orm.select({ id: files.id }).from(files).all()).map((row) => row.id);
}

export function removeFiles(db: Db, ids: readonly FileId[]): void {
  db.statement("removeFiles", (orm) =>
    orm
      .delete(files)
      .where(inArray(files.id, [...ids]))
      .run(),
  );
}
