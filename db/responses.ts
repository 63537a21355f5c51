import { and, desc, eq, lt, lte } from "drizzle-orm";
import type { ResponseId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import { responses } from "./schema.ts";
import { findTenant } from "./tenants.ts";

export type ResponseRow = typeof responses.$inferSelect;

/** Which stored responses stay. */
export interface Retention {
  /** Of one tenant: the newest ones. */
  readonly perTenant: number;
  /** Unix milliseconds; those that were made before go. */
  readonly since: number;
}

/** Inserts a row and deletes those that the retention leaves out. @returns false when the tenant is gone */
export function insertResponse(db: Db, row: Omit<ResponseRow, "seq">, { perTenant, since }: Retention): boolean {
  return db.transaction("insertResponse", () => {
    if (findTenant(db, row.tenantId) === undefined) return false;
    db.statement("insertResponse", (orm) => {
      const own = eq(responses.tenantId, row.tenantId);
      orm.insert(responses).values(row).run();
      orm.delete(responses).where(lt(responses.createdAt, since)).run();
      const first = orm
        .select({ seq: responses.seq })
        .from(responses)
        .where(own)
        .orderBy(desc(responses.seq))
        .limit(1)
        .offset(perTenant)
        .get();
      if (first !== undefined)
        orm
          .delete(responses)
          .where(and(own, lte(responses.seq, first.seq)))
          .run();
    });
    return true;
  });
}

export function findResponse(db: Db, tenantId: TenantId, id: ResponseId, since: number): ResponseRow | undefined {
  const row = db.statement("findResponse", (orm) =>
    orm
      .select()
      .from(responses)
      .where(and(eq(responses.id, id), eq(responses.tenantId, tenantId)))
      .get(),
  );
  return row !== undefined && row.createdAt >= since ? row : undefined;
}

/** @returns false when there is no such response */
export function deleteResponse(db: Db, tenantId: TenantId, id: ResponseId): boolean {
  const deleted = db.statement("deleteResponse", (orm) =>
    orm
      .delete(responses)
      .where(and(eq(responses.id, id), eq(responses.tenantId, tenantId)))
      .returning({ seq: responses.seq })
      .get(),
  );
  return deleted !== undefined;
}
