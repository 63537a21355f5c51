import { and, between, eq, gt, inArray, notInArray, type SQL, sql } from "drizzle-orm";
import type { SQLiteColumn } from "drizzle-orm/sqlite-core";
import type { TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import type { Page, PageRange } from "./page.ts";
import { countRows, findRow, listRows, pageOfRows, updateRow } from "./rows.ts";
import { type BatchStatus, batches, batchResults } from "./schema.ts";
import { findTenant } from "./tenants.ts";

export type BatchRow = typeof batches.$inferSelect;
export type BatchResultRow = typeof batchResults.$inferSelect;
type NewBatch = Pick<
  BatchRow,
  "id" | "tenantId" | "keyId" | "endpoint" | "inputFileId" | "metadata" | "createdAt" | "expiresAt"
> &
  // The first three are set for a batch whose lines were checked before it was inserted.
  Partial<Pick<BatchRow, "status" | "total" | "inProgressAt" | "outputLastsSeconds">>;

export const openBatchStates: readonly BatchStatus[] = ["validating", "in_progress", "finalizing", "cancelling"];
const isOpen = inArray(batches.status, [...openBatchStates]);

/**
 * Inserts a batch. Of the tenant's ended batches only the newest `keptPerTenant` stay.
 * @returns undefined when the tenant is gone
 */
export function insertBatch(db: Db, row: NewBatch, keptPerTenant: number): BatchRow | undefined {
  return db.transaction("insertBatch", () => {
    if (findTenant(db, row.tenantId) === undefined) return undefined;
    return db.statement("insertBatch", (orm) => {
      const inserted = orm
        .insert(batches)
        .values({ status: "validating", ...row })
        .returning()
        .get();
      orm.run(sql`delete from batches where tenant_id = ${row.tenantId}
        and status in ('failed', 'completed', 'expired', 'cancelled') and results_left = 0 and seq <= coalesce(
          (select seq from batches where tenant_id = ${row.tenantId} order by seq desc limit 1 offset ${keptPerTenant}),
          0)`);
      return inserted;
    });
  });
}

const isVisible = sql`not exists (select 1 from tenants where id = ${batches.tenantId} and status = 'deleting')`;

export function findBatch(db: Db, tenantId: TenantId, id: BatchRow["id"]): BatchRow | undefined {
  return findRow(db, "findBatch", batches, { id, tenantId }, isVisible);
}

/** The batch's present state, whoever its tenant is; for the batch runner. */
export function readBatch(db: Db, seq: number): BatchRow | undefined {
  return findRow(db, "readBatch", batches, { seq });
}

export function listBatches(
  db: Db,
  tenantId: TenantId,
  range: PageRange & { readonly endpoints: readonly string[] },
): Page<BatchRow> {
  return pageOfRows(
    db,
    "listBatches",
    batches,
    { tenantId },
    range,
    isVisible,
    inArray(batches.endpoint, [...range.endpoints]),
  );
}

export function countOpenBatches(db: Db, tenantId: TenantId): number {
  return countRows(db, "countOpenBatches", batches, { tenantId }, isOpen);
}

/** The tenant's oldest batch in one of these states. */
export function nextBatch(
  db: Db,
  tenantId: TenantId,
  states: readonly BatchStatus[],
  exceptSeqs: readonly number[] = [],
): BatchRow | undefined {
  const [next] = listRows(
    db,
    "nextBatch",
    batches,
    { tenantId },
    { orderBy: batches.seq, limit: 1 },
    inArray(batches.status, [...states]),
    notInArray(batches.seq, [...exceptSeqs]),
  );
  return next;
}

/** The tenants with batches that have not ended. */
export function listBatchTenants(db: Db): readonly TenantId[] {
  const rows = db.statement("listBatchTenants", (orm) =>
    orm.selectDistinct({ tenantId: batches.tenantId }).from(batches).where(isOpen).all(),
  );
  return rows.map(({ tenantId }) => tenantId);
}

/** @returns the batch as it is now; undefined when it was in none of the states */
export function updateBatch(
  db: Db,
  seq: number,
  states: readonly BatchStatus[],
  change: Partial<Omit<BatchRow, "seq" | "id" | "tenantId">>,
): BatchRow | undefined {
  return updateRow(db, "updateBatch", batches, { seq }, change, inArray(batches.status, [...states]));
}

export interface NewBatchResult extends Pick<BatchResultRow, "line" | "isError" | "body"> {
  readonly inputTokens?: number;
  readonly cachedTokens?: number;
  readonly outputTokens?: number;
}

/** Keeps the line's first result, and counts it. @returns false when the line has one, or its batch does not run any more */
export function recordResult(db: Db, seq: number, result: NewBatchResult): boolean {
  const { line, isError, body, inputTokens = 0, cachedTokens = 0, outputTokens = 0 } = result;
  return db.transaction("recordResult", () =>
    db.statement("recordResult", (orm) => {
      const more = (column: SQLiteColumn, by: number): SQL => sql`${column} + ${by}`;
      const counted = orm
        .update(batches)
        .set({
          completed: more(batches.completed, isError ? 0 : 1),
          failed: more(batches.failed, isError ? 1 : 0),
          outputBytes: more(batches.outputBytes, Buffer.byteLength(body)),
          inputTokens: more(batches.inputTokens, inputTokens),
          cachedTokens: more(batches.cachedTokens, cachedTokens),
          outputTokens: more(batches.outputTokens, outputTokens),
        })
        .where(
          and(
            eq(batches.seq, seq),
            inArray(batches.status, ["in_progress", "cancelling"]),
            sql`not exists (select 1 from batch_results where batch_seq = ${seq} and line = ${line})`,
          ),
        )
        .returning({ seq: batches.seq })
        .get();
      if (counted === undefined) return false;
      orm.insert(batchResults).values({ batchSeq: seq, line, isError, body }).run();
      return true;
    }),
  );
}

/** Numbers of the lines from `first` to `last` that have a result. */
export function listDoneLines(db: Db, seq: number, first: number, last: number): readonly number[] {
  const range = and(eq(batchResults.batchSeq, seq), between(batchResults.line, first, last));
  const rows = db.statement("listDoneLines", (orm) =>
    orm.select({ line: batchResults.line }).from(batchResults).where(range).all(),
  );
  return rows.map(({ line }) => line);
}

interface ResultRange {
  /** Only results that are errors, or only those that are not; undefined: all. */
  readonly isError: boolean | undefined;
  readonly afterLine: number;
  readonly limit: number;
}

/** Results in the order of their lines. */
export function walkResults(
  db: Db,
  seq: number,
  { isError, afterLine, limit }: ResultRange,
): readonly BatchResultRow[] {
  const fields = { batchSeq: seq, ...(isError === undefined ? {} : { isError }) };
  const range = { orderBy: batchResults.line, limit };
  return listRows(db, "walkResults", batchResults, fields, range, gt(batchResults.line, afterLine));
}

/**
 * Records the batch's last state. Its results are in files by now, and the sweep removes their rows.
 * @returns false when the batch is gone
 */
export function endBatch(db: Db, seq: number, change: Parameters<typeof updateBatch>[3]): boolean {
  return updateBatch(db, seq, openBatchStates, { ...change, resultsLeft: true }) !== undefined;
}

const sweptRows = 64;

/**
 * Removes some results of a batch that has ended: at least one, and at most `maxBytes` together.
 * @param seq undefined: of any ended batch
 * @returns false when none is left
 */
export function sweepResults(db: Db, maxBytes: number, seq?: number): boolean {
  return db.transaction("sweepResults", () =>
    db.statement("sweepResults", (orm) => {
      const ended = and(eq(batches.resultsLeft, true), seq === undefined ? undefined : eq(batches.seq, seq));
      const batch = orm.select({ seq: batches.seq }).from(batches).where(ended).limit(1).get();
      if (batch === undefined) return false;
      const rows = orm
        .select({ line: batchResults.line, bytes: sql<number>`octet_length(${batchResults.body})` })
        .from(batchResults)
        .where(eq(batchResults.batchSeq, batch.seq))
        .limit(sweptRows)
        .all();
      let bytes = 0;
      const fits = rows.filter((row, index) => {
        bytes += row.bytes;
        return index === 0 || bytes <= maxBytes;
      });
      const lines = fits.map(({ line }) => line);
      const own = and(eq(batchResults.batchSeq, batch.seq), inArray(batchResults.line, lines));
      if (lines.length > 0) orm.delete(batchResults).where(own).run();
      else orm.update(batches).set({ resultsLeft: false }).where(eq(batches.seq, batch.seq)).run();
      return true;
    }),
  );
}

/** @returns false when the batch has not ended */
export function removeBatch(db: Db, seq: number): boolean {
  return db.statement("removeBatch", (orm) => {
    const ended = notInArray(batches.status, [...openBatchStates]);
    const removed = orm.delete(batches).where(and(eq(batches.seq, seq), ended));
    return removed.returning({ seq: batches.seq }).get() !== undefined;
  });
}
