import { and, count, eq, gt, inArray, lte, min, ne, notInArray, sql, sum } from "drizzle-orm";
import type { TenantId, UploadId, UploadPartId } from "./ids.ts";
import type { Db } from "./open.ts";
import { countRows, findRow, insertRow, listRows, updateRow } from "./rows.ts";
import { uploadParts, uploads } from "./schema.ts";
import { findTenant } from "./tenants.ts";

export type UploadRow = typeof uploads.$inferSelect;
export type UploadPartRow = typeof uploadParts.$inferSelect;
type NewUpload = Omit<UploadRow, "seq" | "status" | "fileId" | "fileSeconds"> & Partial<Pick<UploadRow, "fileSeconds">>;

const isPending = eq(uploads.status, "pending");

/**
 * Inserts an upload. Of the tenant's ended uploads only the newest stay.
 * @returns undefined when the tenant is gone
 */
export function insertUpload(db: Db, row: NewUpload, keptPerTenant: number): UploadRow | undefined {
  return db.transaction("insertUpload", () => {
    if (findTenant(db, row.tenantId) === undefined) return undefined;
    return db.statement("insertUpload", (orm) => {
      const inserted = orm
        .insert(uploads)
        .values({ ...row, status: "pending" })
        .returning()
        .get();
      orm.run(sql`delete from uploads where tenant_id = ${row.tenantId} and status <> 'pending'
        and not exists (select 1 from upload_parts where upload_seq = uploads.seq) and seq <= coalesce(
          (select seq from uploads where tenant_id = ${row.tenantId} order by seq desc limit 1 offset ${keptPerTenant}),
          0)`);
      return inserted;
    });
  });
}

export function findUpload(db: Db, tenantId: TenantId, id: UploadId): UploadRow | undefined {
  return findRow(db, "findUpload", uploads, { id, tenantId });
}

export function countPendingUploads(db: Db, tenantId: TenantId, now: number): number {
  return countRows(db, "countPendingUploads", uploads, { tenantId }, isPending, gt(uploads.expiresAt, now));
}

/** Why a part is refused: the upload has ended, or the part would exceed its number of parts or bytes. */
export type PartRefusal = "ended" | "parts" | "bytes";

/** Inserts a part, or returns the part of this upload that has the same bytes. */
export function insertPartOnce(
  db: Db,
  part: Omit<UploadPartRow, "seq">,
  maxParts: number,
): UploadPartRow | PartRefusal {
  return db.transaction("insertPartOnce", () => {
    const upload = findRow(
      db,
      "findPendingUpload",
      uploads,
      { seq: part.uploadSeq },
      isPending,
      gt(uploads.expiresAt, part.createdAt),
    );
    if (upload === undefined) return "ended";
    const same = findPartByContent(db, part);
    if (same !== undefined) return same;
    const { n = 0, bytes = 0 } = received(db, part.uploadSeq);
    if (n >= maxParts) return "parts";
    if (bytes + part.byteCount > upload.byteCount) return "bytes";
    return insertRow(db, "insertPart", uploadParts, part);
  });
}

export function findPartByContent(
  db: Db,
  { uploadSeq, sha256 }: Pick<UploadPartRow, "uploadSeq" | "sha256">,
): UploadPartRow | undefined {
  return findRow(db, "findPartByContent", uploadParts, { uploadSeq, sha256 });
}

function received(db: Db, uploadSeq: number): { readonly n: number; readonly bytes: number } {
  const row = db.statement("receivedOfUpload", (orm) =>
    orm
      .select({ n: count(), bytes: sum(uploadParts.byteCount) })
      .from(uploadParts)
      .where(eq(uploadParts.uploadSeq, uploadSeq))
      .get(),
  );
  return { n: row?.n ?? 0, bytes: Number(row?.bytes ?? 0) };
}

export function listParts(db: Db, uploadSeq: number): readonly UploadPartRow[] {
  return listRows(db, "listParts", uploadParts, { uploadSeq }, undefined);
}

/** @returns the upload as it is now; undefined when it had ended before */
export function endUpload(
  db: Db,
  seq: number,
  change: Pick<UploadRow, "status"> & Partial<Pick<UploadRow, "fileId">>,
): UploadRow | undefined {
  return updateRow(db, "endUpload", uploads, { seq }, change, isPending);
}

/** @param busySeqs uploads that are being completed, which do not expire */
export function expireUploads(db: Db, now: number, busySeqs: readonly number[]): void {
  const late = and(isPending, lte(uploads.expiresAt, now), notInArray(uploads.seq, [...busySeqs]));
  db.statement("expireUploads", (orm) => orm.update(uploads).set({ status: "expired" }).where(late).run());
}

/** When the next pending upload expires, in Unix milliseconds; undefined: none is pending. */
export function nextUploadExpiry(db: Db): number | undefined {
  const row = db.statement("nextUploadExpiry", (orm) =>
    orm
      .select({ at: min(uploads.expiresAt) })
      .from(uploads)
      .where(isPending)
      .get(),
  );
  return row?.at ?? undefined;
}

/** The ids of all parts: the files that the folder of parts may hold. */
export function listAllParts(db: Db): readonly Pick<UploadPartRow, "id" | "uploadSeq">[] {
  return db.statement("listAllParts", (orm) =>
    orm.select({ id: uploadParts.id, uploadSeq: uploadParts.uploadSeq }).from(uploadParts).all(),
  );
}

/** The next tenant after `afterTenantId` that has parts of uploads that have ended. */
export function nextEndedPartsTenant(db: Db, afterTenantId: string): TenantId | undefined {
  const hasParts = sql`exists (select 1 from upload_parts where upload_seq = ${uploads.seq})`;
  return db.statement("nextEndedPartsTenant", (orm) =>
    orm
      .select({ tenantId: uploads.tenantId })
      .from(uploads)
      .where(and(sql`${uploads.tenantId} > ${afterTenantId}`, ne(uploads.status, "pending"), hasParts))
      .orderBy(uploads.tenantId)
      .limit(1)
      .get(),
  )?.tenantId;
}

/** The parts of a tenant's ended uploads, whose bytes are to be removed. */
export function listEndedParts(db: Db, tenantId: TenantId, limit: number): readonly UploadPartId[] {
  const rows = db.statement("listEndedParts", (orm) =>
    orm
      .select({ id: uploadParts.id })
      .from(uploads)
      .innerJoin(uploadParts, eq(uploads.seq, uploadParts.uploadSeq))
      .where(and(eq(uploads.tenantId, tenantId), ne(uploads.status, "pending")))
      .limit(limit)
      .all(),
  );
  return rows.map(({ id }) => id);
}

export function removeParts(db: Db, ids: readonly UploadPartId[]): void {
  db.statement("removeParts", (orm) =>
    orm
      .delete(uploadParts)
      .where(inArray(uploadParts.id, [...ids]))
      .run(),
  );
}

/** Removes uploads of deleted tenants once none of their bytes are left. @returns whether there were any */
export function removeUploadsOfGoneTenants(db: Db): boolean {
  return db.statement("removeUploadsOfGoneTenants", (orm) => {
    const gone = sql`${uploads.tenantId} in (select id from tenants where status = 'deleting')
      and not exists (select 1 from upload_parts where upload_seq = ${uploads.seq})`;
    return orm.delete(uploads).where(gone).returning({ seq: uploads.seq }).all().length > 0;
  });
}
