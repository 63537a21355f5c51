import { and, asc, count, eq, inArray, isNull } from "drizzle-orm";
import type { CorpusId, JobId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import { jobs } from "./schema.ts";

export type JobRow = typeof jobs.$inferSelect;

const open = inArray(jobs.status, ["queued", "running"]);

export function insertJob(db: Db, row: Pick<JobRow, "id" | "tenantId" | "corpusId" | "total" | "createdAt">): JobRow {
  return db.statement("insertJob", (orm) =>
    orm
      .insert(jobs)
      .values({ ...row, status: "queued" })
      .returning()
      .get(),
  );
}

export function findJob(db: Db, tenantId: TenantId, id: JobId): JobRow | undefined {
  return db.statement("findJob", (orm) =>
    orm
      .select()
      .from(jobs)
      .where(and(eq(jobs.id, id), eq(jobs.tenantId, tenantId)))
      .get(),
  );
}

export function findOpenJob(db: Db, corpusId: CorpusId): JobRow | undefined {
  return db.statement("findOpenJob", (orm) =>
    orm
      .select()
      .from(jobs)
      .where(and(eq(jobs.corpusId, corpusId), open))
      .get(),
  );
}

export function countOpenJobs(db: Db, tenantId: TenantId): number {
  const row = db.statement("countOpenJobs", (orm) =>
    orm
      .select({ n: count() })
      .from(jobs)
      .where(and(eq(jobs.tenantId, tenantId), open))
      .get(),
  );
  return row?.n ?? 0;
}

/**
 * Jobs that a stopped process left: their KV went with its workers, so they start again from nothing.
 */
export function requeueRunningJobs(db: Db): void {
  db.statement("requeueRunningJobs", (orm) =>
    orm.update(jobs).set({ status: "queued", done: 0 }).where(eq(jobs.status, "running")).run(),
  );
}

export function nextQueuedJob(db: Db): JobRow | undefined {
  return db.statement("nextQueuedJob", (orm) =>
    orm.select().from(jobs).where(eq(jobs.status, "queued")).orderBy(asc(jobs.seq)).limit(1).get(),
  );
}

/** @returns the job as it is now; undefined when it has ended meanwhile (cancelled, or its corpus deleted). */
export function updateOpenJob(
  db: Db,
  id: JobId,
  change: Partial<Pick<JobRow, "status" | "done" | "total" | "errorCode" | "errorMessage" | "finishedAt">>,
): JobRow | undefined {
  return db.statement("updateOpenJob", (orm) =>
    orm
      .update(jobs)
      .set(change)
      .where(and(eq(jobs.id, id), isNull(jobs.finishedAt)))
      .returning()
      .get(),
  );
}
