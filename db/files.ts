import { and, eq, inArray, isNotNull, isNull, notExists, sql } from "drizzle-orm";
import type { FileId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import { type Page, type PageRange, pageClause, pageOf } from "./page.ts";
import { corpusFiles, files } from "./schema.ts";
import { findTenant } from "./tenants.ts";

export type FileRow = typeof files.$inferSelect;
type NewFile = Omit<FileRow, "seq" | "deletedAt">;

const visible = isNull(files.deletedAt);

/**
 * Inserts, or answers the row that the tenant already has of the same content, name and purpose.
 * @returns undefined when the tenant is gone
 */
export function insertFileOnce(db: Db, row: NewFile): FileRow | undefined {
  return db.transaction("insertFileOnce", () => {
    if (findTenant(db, row.tenantId) === undefined) return undefined;
    const same = findFileByContent(db, row);
    return same ?? db.statement("insertFile", (orm) => orm.insert(files).values(row).returning().get());
  });
}

export function findFileByContent(
  db: Db,
  key: Pick<FileRow, "tenantId" | "sha256" | "filename" | "purpose">,
): FileRow | undefined {
  return db.statement("findFileByContent", (orm) =>
    orm
      .select()
      .from(files)
      .where(
        and(
          eq(files.tenantId, key.tenantId),
          eq(files.sha256, key.sha256),
          eq(files.filename, key.filename),
          eq(files.purpose, key.purpose),
          visible,
        ),
      )
      .get(),
  );
}

export function findFile(db: Db, tenantId: TenantId, id: FileId): FileRow | undefined {
  return db.statement("findFile", (orm) =>
    orm
      .select()
      .from(files)
      .where(and(eq(files.id, id), eq(files.tenantId, tenantId), visible))
      .get(),
  );
}

/** Those of `ids` that are the tenant's. */
export function findFiles(db: Db, tenantId: TenantId, ids: readonly FileId[]): readonly FileRow[] {
  return db.statement("findFiles", (orm) =>
    orm
      .select()
      .from(files)
      .where(and(inArray(files.id, [...ids]), eq(files.tenantId, tenantId), visible))
      .all(),
  );
}

export function listFiles(
  db: Db,
  tenantId: TenantId,
  range: PageRange & { readonly purpose?: string | undefined },
): Page<FileRow> {
  const page = pageClause(files.seq, range);
  const purpose = range.purpose === undefined ? undefined : eq(files.purpose, range.purpose);
  const rows = db.statement("listFiles", (orm) =>
    orm
      .select()
      .from(files)
      .where(and(eq(files.tenantId, tenantId), visible, purpose, page.where))
      .orderBy(page.orderBy)
      .limit(range.limit + 1)
      .all(),
  );
  return pageOf(rows, range);
}

/** The file and its place in every corpus are invisible from here on. @returns false: no such file. */
export function markFileDeleted(db: Db, tenantId: TenantId, id: FileId, now: number): boolean {
  return db.transaction("markFileDeleted", () =>
    db.statement("markFileDeleted", (orm) => {
      const marked = orm
        .update(files)
        .set({ deletedAt: now })
        .where(and(eq(files.id, id), eq(files.tenantId, tenantId), visible))
        .returning({ id: files.id })
        .get();
      if (marked === undefined) return false;
      orm.update(corpusFiles).set({ status: "deleting" }).where(eq(corpusFiles.fileId, id)).run();
      return true;
    }),
  );
}

export function listDeletedFileIds(db: Db, limit: number): readonly FileId[] {
  const rows = db.statement("listDeletedFileIds", (orm) =>
    orm.select({ id: files.id }).from(files).where(isNotNull(files.deletedAt)).limit(limit).all(),
  );
  return rows.map((row) => row.id);
}

/** Deleted files that are in no corpus any more, so that their rows can go. */
export function listSweptFileIds(db: Db, limit: number): readonly FileId[] {
  const rows = db.statement("listSweptFileIds", (orm) => {
    const places = orm.select({ one: sql`1` }).from(corpusFiles).where(eq(corpusFiles.fileId, files.id));
    return orm
      .select({ id: files.id })
      .from(files)
      .where(and(isNotNull(files.deletedAt), notExists(places)))
      .limit(limit)
      .all();
  });
  return rows.map((row) => row.id);
}

/** Ids of all rows, deleted ones that are not yet swept too: what the content folder may hold. */
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
