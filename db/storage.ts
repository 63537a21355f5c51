/** The bytes that a tenant has stored, computed from its rows. */
import { and, eq, inArray, sql } from "drizzle-orm";
import { openBatchStates } from "./batches.ts";
import type { TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import { storedResponseBytes } from "./responses.ts";
import { batches, tenantStorage, uploads } from "./schema.ts";

export interface StoredBytes {
  readonly files: number;
  /** The declared sizes of uploads in parts that have not ended, however many of their bytes have arrived. */
  readonly uploads: number;
  /** Texts of files in vector stores. */
  readonly texts: number;
  readonly responses: number;
  /** Results of batches that have not ended. After the end they are files. */
  readonly batches: number;
}

export function storedBytes(db: Db, tenantId: TenantId): StoredBytes {
  return db.statement("storedBytes", (orm) => {
    const counted = orm.select().from(tenantStorage).where(eq(tenantStorage.tenantId, tenantId)).get();
    const pending = orm
      .select({ bytes: sql<number>`coalesce(sum(${uploads.byteCount}), 0)` })
      .from(uploads)
      .where(and(eq(uploads.tenantId, tenantId), eq(uploads.status, "pending")))
      .get();
    const results = orm
      .select({ bytes: sql<number>`coalesce(sum(${batches.outputBytes}), 0)` })
      .from(batches)
      .where(and(eq(batches.tenantId, tenantId), inArray(batches.status, [...openBatchStates])))
      .get();
    return {
      files: counted?.fileBytes ?? 0,
      uploads: pending?.bytes ?? 0,
      texts: counted?.textBytes ?? 0,
      responses: storedResponseBytes(db, tenantId),
      batches: results?.bytes ?? 0,
    };
  });
}
