import { and, eq, isNull, ne, or, sql } from "drizzle-orm";
import type { TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import type { Page, PageRange } from "./page.ts";
import { findRow, insertRow, pageOfRows, updateRow } from "./rows.ts";
import { apiKeys, batches, corpora, corpusGrants, jobs, responseHeads, sources, tenants, uploads } from "./schema.ts";

export type TenantRow = typeof tenants.$inferSelect;

const visible = ne(tenants.status, "deleting");

export function insertTenant(db: Db, row: Pick<TenantRow, "id" | "name" | "createdAt">): TenantRow {
  return insertRow(db, "insertTenant", tenants, { ...row, status: "active" });
}

export function findTenant(db: Db, id: TenantId): TenantRow | undefined {
  return findRow(db, "findTenant", tenants, { id }, visible);
}

/** undefined: no such tenant. Runs on every request that contains text of its own. */
export function findTenantSaltEpoch(db: Db, id: TenantId): number | undefined {
  const row = db.statement("findTenantSaltEpoch", () =>
    db.client
      .query<{ salt_epoch: number }, [string]>("select salt_epoch from tenants where id = ? and status <> 'deleting'")
      .get(id),
  );
  return row?.salt_epoch;
}

export function listTenants(db: Db, range: PageRange): Page<TenantRow> {
  return pageOfRows(db, "listTenants", tenants, {}, range, visible);
}

export function updateTenant(
  db: Db,
  id: TenantId,
  change: { readonly name?: string | undefined; readonly status?: "active" | "disabled" | undefined },
): TenantRow | undefined {
  if (change.name === undefined && change.status === undefined) return findTenant(db, id);
  return updateRow(db, "updateTenant", tenants, { id }, change, visible);
}

/** @returns the new epoch; undefined when there is no such tenant. */
export function raiseTenantSaltEpoch(db: Db, id: TenantId): number | undefined {
  return updateRow(db, "raiseTenantSaltEpoch", tenants, { id }, { saltEpoch: sql`${tenants.saltEpoch} + 1` }, visible)
    ?.saltEpoch;
}

/**
 * Makes a tenant and all that it owns invisible at once. The sweep removes the rows.
 * @returns false when there is no such tenant
 */
export function markTenantDeleting(db: Db, id: TenantId, now: number): boolean {
  return db.transaction("markTenantDeleting", () =>
    db.statement("markTenantDeleting", (orm) => {
      const marked = orm
        .update(tenants)
        .set({ status: "deleting" })
        .where(and(eq(tenants.id, id), visible));
      if (marked.returning({ id: tenants.id }).get() === undefined) return false;
      orm.delete(apiKeys).where(eq(apiKeys.tenantId, id)).run();
      orm.delete(corpusGrants).where(eq(corpusGrants.tenantId, id)).run();
      orm.delete(sources).where(eq(sources.tenantId, id)).run();
      orm.update(responseHeads).set({ state: "deleted" }).where(eq(responseHeads.tenantId, id)).run();
      orm.update(batches).set({ status: "failed", resultsLeft: true }).where(eq(batches.tenantId, id)).run();
      orm
        .update(uploads)
        .set({ status: "expired" })
        .where(and(eq(uploads.tenantId, id), eq(uploads.status, "pending")))
        .run();
      orm
        .update(jobs)
        .set({ status: "cancelled", finishedAt: now })
        .where(and(eq(jobs.tenantId, id), isNull(jobs.finishedAt)))
        .run();
      orm
        .update(corpora)
        .set({ deletedAt: now, expired: false })
        .where(and(eq(corpora.tenantId, id), or(isNull(corpora.deletedAt), eq(corpora.expired, true))))
        .run();
      return true;
    }),
  );
}

/** The deleted tenants that still own something. */
export function listDeletedTenants(db: Db): readonly TenantId[] {
  const rows = db.statement("listDeletedTenants", (orm) =>
    orm.select({ id: tenants.id }).from(tenants).where(eq(tenants.status, "deleting")).all(),
  );
  return rows.map(({ id }) => id);
}

/** Removes deleted tenants that own nothing any more. */
export function removeSweptTenants(db: Db): void {
  db.statement("removeBatchesOfGoneTenants", (orm) =>
    orm.run(sql`delete from batches where results_left = 0
      and tenant_id in (select id from tenants where status = 'deleting')`),
  );
  db.statement("removeSweptTenants", (orm) =>
    orm.run(sql`delete from tenants where status = 'deleting'
      and not exists (select 1 from corpora where corpora.tenant_id = tenants.id)
      and not exists (select 1 from files where files.tenant_id = tenants.id)
      and not exists (select 1 from batches where batches.tenant_id = tenants.id)
      and not exists (select 1 from responses where responses.tenant_id = tenants.id)
      and not exists (select 1 from uploads where uploads.tenant_id = tenants.id)
      and not exists (select 1 from jobs where jobs.tenant_id = tenants.id)`),
  );
}
