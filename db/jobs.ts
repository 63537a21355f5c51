import { and, eq, inArray, isNull } from "drizzle-orm";
import type { CorpusId, JobId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import { countRows, findRow, insertRow, listRows, updateRow } from "./rows.ts";
import { jobs } from "./schema.ts";

export type JobRow = typeof jobs.$inferSelect;

const open = inArray(jobs.status, ["queued", "running"]);

export function insertJob(
  db: Db,
  row: Pick<JobRow, "id" | "tenantId" | "corpusId" | "target" | "total" | "createdAt">,
): JobRow {
  return insertRow(db, "insertJob", jobs, { ...row, status: "queued" });
}

export function findJob(db: Db, tenantId: TenantId, id: JobId): JobRow | undefined {
  return findRow(db, "findJob", jobs, { id, tenantId });
}

/** @param target the job's; null: one without */
export function findOpenJob(db: Db, corpusId: CorpusId, target: JobRow["target"]): JobRow | undefined {
  const isSame = target === null ? isNull(jobs.target) : eq(jobs.target, target);
  return findRow(db, "findOpenJob", jobs, { corpusId }, and(open, isSame));
}

export function countOpenJobs(db: Db, tenantId: TenantId): number {
  return countRows(db, "countOpenJobs", jobs, { tenantId }, open);
}

/** The tenant's oldest job that has not ended. */
export function nextOpenJob(db: Db, tenantId: TenantId): JobRow | undefined {
  return listRows(db, "nextOpenJob", jobs, { tenantId }, { orderBy: jobs.seq, limit: 1 }, open)[0];
}

/** The tenants with jobs that have not ended. */
export function listJobTenants(db: Db): readonly TenantId[] {
  const rows = db.statement("listJobTenants", (orm) =>
    orm.selectDistinct({ tenantId: jobs.tenantId }).from(jobs).where(open).all(),
  );
  return rows.map(({ tenantId }) => tenantId);
}

/** @returns the job as it is now; undefined when it has ended meanwhile (cancelled, or its corpus deleted). */
export function updateOpenJob(
  db: Db,
  id: JobId,
  change: Partial<Pick<JobRow, "status" | "done" | "total" | "errorCode" | "errorMessage" | "finishedAt">>,
): JobRow | undefined {
  return updateRow(db, "updateOpenJob", jobs, { id }, change, isNull(jobs.finishedAt));
}
