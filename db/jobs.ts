import { and, asc, count, eq, inArray, isNull, notInArray } from "drizzle-orm";
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

/** Jobs marked as running that nobody runs (their process ended, or gave up for now) start again from nothing. */
export function requeueAbandonedJobs(db: Db, runningIds: readonly JobId[]): void {
  const abandoned = and(eq(jobs.status, "running"), notInArray(jobs.id, [...runningIds]));
  db.statement("requeueAbandonedJobs", (orm) =>
    orm.update(jobs).set({ status: "queued", done: 0 }).where(abandoned).run(),
  );
}

/** The oldest waiting job of a tenant that is not among `busyTenantIds`. */
export function nextQueuedJob(db: Db, busyTenantIds: readonly TenantId[]): JobRow | undefined {
  const waiting = and(eq(jobs.status, "queued"), notInArray(jobs.tenantId, [...busyTenantIds]));
  return db.statement("nextQueuedJob", (orm) =>
    orm.select().from(jobs).where(waiting).orderBy(asc(jobs.seq)).limit(1).get(),
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
