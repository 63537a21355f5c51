import { and, count, eq, gt, inArray, ne, notInArray, sql } from "drizzle-orm";
import { type FileCounts, fileCountsOf } from "./corpora.ts";
import type { CorpusId, FileBatchId, FileId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import type { Page, PageRange } from "./page.ts";
import { countRows, findRow, insertRow, pageOfRows, updateRow } from "./rows.ts";
import {
  type CorpusFileErrorCode,
  type CorpusFileStatus,
  corpusFiles,
  fileBatches,
  fileBatchMembers,
} from "./schema.ts";

export type CorpusFileRow = typeof corpusFiles.$inferSelect;
export type FileBatchRow = typeof fileBatches.$inferSelect;
type NewCorpusFile = Pick<
  CorpusFileRow,
  "corpusId" | "fileId" | "tenantId" | "attributes" | "maxChunkTokens" | "overlapTokens" | "createdAt"
>;
export type VisibleStatus = Exclude<CorpusFileStatus, "deleting">;

const visible = ne(corpusFiles.status, "deleting");
/**
 * Selects files of corpora that are not deleted. Deleting a corpus marks only the corpus's own row; the rows of its
 * files stay unchanged until the sweep removes them.
 */
export const ofLiveCorpus = sql`exists (
  select 1 from corpora c where c.id = corpus_files.corpus_id and c.deleted_at is null
)`;

/**
 * Attaches a file, to be ingested. A file that is attached already keeps its row: one that failed or was
 * cancelled is tried again, any other is left as it is, so that a client may repeat the call.
 */
export function attachFile(db: Db, row: NewCorpusFile): CorpusFileRow {
  return db.transaction("attachFile", () => {
    const present = findCorpusFile(db, row.corpusId, row.fileId);
    if (present === undefined) {
      return insertRow(db, "attachFile", corpusFiles, { ...row, status: "in_progress" });
    }
    if (present.status !== "failed" && present.status !== "cancelled") return present;
    const { attributes, maxChunkTokens, overlapTokens } = row;
    const again = { attributes, maxChunkTokens, overlapTokens, errorCode: null, errorMessage: null } as const;
    return db.statement("attachFileAgain", (orm) =>
      orm
        .update(corpusFiles)
        .set({ ...again, status: "in_progress", attempt: present.attempt + 1 })
        .where(eq(corpusFiles.seq, present.seq))
        .returning()
        .get(),
    );
  });
}

export function findCorpusFile(db: Db, corpusId: CorpusId, fileId: FileId): CorpusFileRow | undefined {
  return findRow(db, "findCorpusFile", corpusFiles, { corpusId, fileId }, visible);
}

/** Whether any corpus has the file. */
export function isAttached(db: Db, fileId: FileId): boolean {
  return findRow(db, "isAttached", corpusFiles, { fileId }, visible, ofLiveCorpus) !== undefined;
}

/** Whether any file of the corpus has visible fragments. */
export function hasCompletedFile(db: Db, corpusId: CorpusId): boolean {
  return findRow(db, "hasCompletedFile", corpusFiles, { corpusId, status: "completed" }) !== undefined;
}

export interface CorpusFileFilter {
  readonly status?: VisibleStatus | undefined;
  readonly batchId?: FileBatchId | undefined;
}

export function listCorpusFiles(db: Db, corpusId: CorpusId, range: PageRange & CorpusFileFilter): Page<CorpusFileRow> {
  const { status, batchId } = range;
  const members = sql`${corpusFiles.seq} in (select corpus_file_seq from file_batch_members where batch_id = ${batchId})`;
  const fields = { corpusId, ...(status === undefined ? {} : { status }) };
  return pageOfRows(
    db,
    "listCorpusFiles",
    corpusFiles,
    fields,
    range,
    visible,
    batchId === undefined ? undefined : members,
  );
}

/** Attributes of a corpus' completed files after `afterSeq`, oldest first, for filters. */
export function listFileAttributes(
  db: Db,
  corpusId: CorpusId,
  afterSeq: number,
  limit: number,
): readonly Pick<CorpusFileRow, "seq" | "attributes">[] {
  const completed = and(eq(corpusFiles.corpusId, corpusId), eq(corpusFiles.status, "completed"));
  return db.statement("listFileAttributes", (orm) =>
    orm
      .select({ seq: corpusFiles.seq, attributes: corpusFiles.attributes })
      .from(corpusFiles)
      .where(and(completed, gt(corpusFiles.seq, afterSeq)))
      .orderBy(corpusFiles.seq)
      .limit(limit)
      .all(),
  );
}

export function countPendingFiles(db: Db, tenantId: TenantId): number {
  return countRows(db, "countPendingFiles", corpusFiles, { tenantId, status: "in_progress" });
}

/**
 * The oldest waiting file of the next tenant after `afterTenantId` that has one.
 * @param exceptSeqs files that are being ingested already
 */
export function nextPendingFile(
  db: Db,
  afterTenantId: string,
  exceptSeqs: readonly number[] = [],
): CorpusFileRow | undefined {
  const pending = eq(corpusFiles.status, "in_progress");
  return db.statement("nextPendingFile", (orm) =>
    orm
      .select()
      .from(corpusFiles)
      .where(
        and(
          pending,
          sql`${corpusFiles.tenantId} > ${afterTenantId}`,
          notInArray(corpusFiles.seq, [...exceptSeqs]),
          ofLiveCorpus,
        ),
      )
      .orderBy(corpusFiles.tenantId, corpusFiles.seq)
      .limit(1)
      .get(),
  );
}

/** One attempt at ingesting a file. */
export type IngestAttempt = Pick<CorpusFileRow, "seq" | "attempt">;

function current(attempt: IngestAttempt) {
  const { seq, attempt: number } = attempt;
  const inProgress = eq(corpusFiles.status, "in_progress");
  return and(eq(corpusFiles.seq, seq), eq(corpusFiles.attempt, number), inProgress, ofLiveCorpus);
}

/** Whether the attempt is still current; false: the file was cancelled, deleted or begun anew meanwhile. */
export function isCurrentAttempt(db: Db, attempt: IngestAttempt): boolean {
  const row = db.statement("isCurrentAttempt", (orm) =>
    orm.select({ seq: corpusFiles.seq }).from(corpusFiles).where(current(attempt)).get(),
  );
  return row !== undefined;
}

/** Makes all fragments of a file visible at once. @returns false when the attempt is no longer the current one */
export function completeFile(db: Db, attempt: IngestAttempt, usageBytes: number): boolean {
  return settle(db, "completeFile", attempt, { status: "completed", usageBytes });
}

export function failFile(
  db: Db,
  attempt: IngestAttempt,
  errorCode: CorpusFileErrorCode,
  errorMessage: string,
): boolean {
  return settle(db, "failFile", attempt, { status: "failed", errorCode, errorMessage });
}

function settle(db: Db, name: string, attempt: IngestAttempt, change: Partial<CorpusFileRow>): boolean {
  const row = db.statement(name, (orm) =>
    orm.update(corpusFiles).set(change).where(current(attempt)).returning({ seq: corpusFiles.seq }).get(),
  );
  return row !== undefined;
}

export function updateFileAttributes(
  db: Db,
  seq: number,
  attributes: CorpusFileRow["attributes"],
): CorpusFileRow | undefined {
  return updateRow(db, "updateFileAttributes", corpusFiles, { seq }, { attributes }, visible);
}

/** Makes the file invisible in its corpus. The sweep removes its fragments. */
export function markCorpusFileDeleting(db: Db, seq: number): void {
  db.statement("markCorpusFileDeleting", (orm) =>
    orm.update(corpusFiles).set({ status: "deleting" }).where(eq(corpusFiles.seq, seq)).run(),
  );
}

/** The tenant's next file that was deleted on its own. Files of deleted corpora are removed with their corpus. */
export function nextDeletingFile(db: Db, tenantId: TenantId, afterSeq = 0): CorpusFileRow | undefined {
  return db.statement("nextDeletingFile", (orm) =>
    orm
      .select()
      .from(corpusFiles)
      .where(
        and(
          eq(corpusFiles.tenantId, tenantId),
          sql`${corpusFiles.status} = 'deleting'`,
          gt(corpusFiles.seq, afterSeq),
          ofLiveCorpus,
        ),
      )
      .orderBy(corpusFiles.seq)
      .limit(1)
      .get(),
  );
}

export function removeCorpusFile(db: Db, seq: number): void {
  db.statement("removeCorpusFile", (orm) => orm.delete(corpusFiles).where(eq(corpusFiles.seq, seq)).run());
}

export function insertFileBatch(
  db: Db,
  row: Pick<FileBatchRow, "id" | "corpusId" | "createdAt">,
  members: readonly number[],
): FileBatchRow {
  return db.statement("insertFileBatch", (orm) => {
    const batch = orm.insert(fileBatches).values(row).returning().get();
    for (const corpusFileSeq of members) {
      orm.insert(fileBatchMembers).values({ batchId: row.id, corpusFileSeq }).onConflictDoNothing().run();
    }
    return batch;
  });
}

export function findFileBatch(db: Db, corpusId: CorpusId, id: FileBatchId): FileBatchRow | undefined {
  return findRow(db, "findFileBatch", fileBatches, { id, corpusId });
}

export function fileBatchCounts(db: Db, id: FileBatchId): FileCounts {
  const rows = db.statement("fileBatchCounts", (orm) =>
    orm
      .select({ status: corpusFiles.status, n: count() })
      .from(fileBatchMembers)
      .innerJoin(corpusFiles, eq(corpusFiles.seq, fileBatchMembers.corpusFileSeq))
      .where(and(eq(fileBatchMembers.batchId, id), visible))
      .groupBy(corpusFiles.status)
      .all(),
  );
  return fileCountsOf(rows);
}

/** Cancels the files of the batch that are not finished. */
export function cancelFileBatch(db: Db, id: FileBatchId): void {
  db.statement("cancelFileBatch", (orm) => {
    const members = orm
      .select({ seq: fileBatchMembers.corpusFileSeq })
      .from(fileBatchMembers)
      .where(eq(fileBatchMembers.batchId, id));
    return orm
      .update(corpusFiles)
      .set({ status: "cancelled" })
      .where(and(inArray(corpusFiles.seq, members), eq(corpusFiles.status, "in_progress")))
      .run();
  });
}
