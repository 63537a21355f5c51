/** Which tenants may read which corpora that are not theirs. */
import { and, asc, eq, ne } from "drizzle-orm";
import type { CorpusId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import { countRows, findRow } from "./rows.ts";
import { corpusGrants, tenants } from "./schema.ts";

export type GrantRow = typeof corpusGrants.$inferSelect;

export function listGrants(db: Db, corpusId: CorpusId): readonly GrantRow[] {
  return db.statement("listGrants", (orm) =>
    orm
      .select({
        corpusId: corpusGrants.corpusId,
        tenantId: corpusGrants.tenantId,
        createdAt: corpusGrants.createdAt,
      })
      .from(corpusGrants)
      .innerJoin(tenants, and(eq(tenants.id, corpusGrants.tenantId), ne(tenants.status, "deleting")))
      .where(eq(corpusGrants.corpusId, corpusId))
      .orderBy(asc(corpusGrants.createdAt), asc(corpusGrants.tenantId))
      .all(),
  );
}

export function findGrant(db: Db, corpusId: CorpusId, tenantId: TenantId): GrantRow | undefined {
  return findRow(db, "findGrant", corpusGrants, {}, same(corpusId, tenantId));
}

export function countGrants(db: Db, corpusId: CorpusId): number {
  return countRows(db, "countGrants", corpusGrants, { corpusId });
}

/** @returns false when there was none */
export function removeGrant(db: Db, corpusId: CorpusId, tenantId: TenantId): boolean {
  const removed = db.statement("removeGrant", (orm) =>
    orm.delete(corpusGrants).where(same(corpusId, tenantId)).returning({ tenantId: corpusGrants.tenantId }).get(),
  );
  return removed !== undefined;
}

function same(corpusId: CorpusId, tenantId: TenantId) {
  return and(eq(corpusGrants.corpusId, corpusId), eq(corpusGrants.tenantId, tenantId));
}
