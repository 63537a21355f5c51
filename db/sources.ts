import { and, eq, gt, isNotNull, lte, min, sql } from "drizzle-orm";
import { findCorpus } from "./corpora.ts";
import type { CorpusId, SourceId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import type { Page, PageRange } from "./page.ts";
import { countRows, findRow, insertRow, listRows, pageOfRows, updateRow } from "./rows.ts";
import { sources } from "./schema.ts";

export type SourceRow = typeof sources.$inferSelect;

const ofActiveTenant = sql`exists (select 1 from tenants t where t.id = sources.tenant_id and t.status = 'active')`;
const due = (now: number) => and(isNotNull(sources.nextRunAt), lte(sources.nextRunAt, now), ofActiveTenant);

/** @returns why it cannot be: the corpus is gone, or has a source of this label */
export function insertSource(db: Db, row: Omit<SourceRow, "seq" | "lastRun">): SourceRow | "gone" | "taken" {
  return db.transaction("insertSource", () => {
    const { corpusId, tenantId, label } = row;
    if (findCorpus(db, tenantId, corpusId, "own") === undefined) return "gone";
    if (findRow(db, "findSourceByLabel", sources, { corpusId, label }) !== undefined) return "taken";
    return insertRow(db, "insertSource", sources, row);
  });
}

export function findSource(db: Db, tenantId: TenantId, id: SourceId): SourceRow | undefined {
  return findRow(db, "findSource", sources, { id, tenantId });
}

export function listSources(db: Db, corpusId: CorpusId, range: PageRange): Page<SourceRow> {
  return pageOfRows(db, "listSources", sources, { corpusId }, range);
}

export function countSources(db: Db, tenantId: TenantId): number {
  return countRows(db, "countSources", sources, { tenantId });
}

/** The tenant's source that has been due longest. */
export function nextDueSource(db: Db, tenantId: TenantId, now: number): SourceRow | undefined {
  const range = { orderBy: sources.nextRunAt, limit: 1 };
  return listRows(db, "nextDueSource", sources, { tenantId }, range, due(now))[0];
}

/** The tenants with sources that are due. */
export function listDueSourceTenants(db: Db, now: number): readonly TenantId[] {
  const rows = db.statement("listDueSourceTenants", (orm) =>
    orm.selectDistinct({ tenantId: sources.tenantId }).from(sources).where(due(now)).all(),
  );
  return rows.map(({ tenantId }) => tenantId);
}

/** When the next source will be due that is not so yet; undefined: none will. */
export function nextSourceTime(db: Db, now: number): number | undefined {
  const row = db.statement("nextSourceTime", (orm) =>
    orm
      .select({ at: min(sources.nextRunAt) })
      .from(sources)
      .where(gt(sources.nextRunAt, now))
      .get(),
  );
  return row?.at ?? undefined;
}

/** @returns undefined when the source is gone */
export function updateSource(
  db: Db,
  id: SourceId,
  change: Partial<Pick<SourceRow, "nextRunAt" | "lastRun">>,
): SourceRow | undefined {
  return updateRow(db, "updateSource", sources, { id }, change);
}

export function removeSource(db: Db, id: SourceId): void {
  db.statement("removeSource", (orm) => orm.delete(sources).where(eq(sources.id, id)).run());
}
