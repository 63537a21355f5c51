import { and, count, eq, exists, inArray, isNotNull, isNull, ne, or, sql, sum } from "drizzle-orm";
import { freeUnzeroed } from "./free-space.ts";
import { createFullText, dropFullText, fullTextBlocks } from "./fts.ts";
import type { CorpusId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import type { Page, PageRange } from "./page.ts";
import { countRows, findRow, insertRow, listRows, pageOfRows, updateRow } from "./rows.ts";
import { type CorpusFileStatus, corpora, corpusFiles, corpusGrants, jobs, sources } from "./schema.ts";
import { findTenant } from "./tenants.ts";
import { dropVectors } from "./vectors.ts";

export type CorpusRow = typeof corpora.$inferSelect;
type NewCorpus = Pick<CorpusRow, "id" | "tenantId" | "name" | "description" | "metadata" | "createdAt"> &
  Partial<Pick<CorpusRow, "expiresAfterDays">>;

/** own: the tenant's own corpus, to change it. read: its own corpus, or one that it was granted. */
export type CorpusAccess = "own" | "read";

export interface FileCounts {
  readonly in_progress: number;
  readonly completed: number;
  readonly failed: number;
  readonly cancelled: number;
  readonly total: number;
}

export interface CorpusUsage {
  readonly fileCounts: FileCounts;
  readonly usageBytes: number;
}

const visible = isNull(corpora.deletedAt);
/** A corpus that has ended by itself is told of still. */
const shown = or(visible, eq(corpora.expired, true));

/** @returns undefined when the tenant is gone */
export function insertCorpus(db: Db, row: NewCorpus): CorpusRow | undefined {
  return db.transaction("insertCorpus", () => {
    if (findTenant(db, row.tenantId) === undefined) return undefined;
    const inserted = insertRow(db, "insertCorpus", corpora, { ...row, lastActiveAt: row.createdAt });
    createFullText(db, inserted.seq);
    return inserted;
  });
}

/**
 * The one place that decides who may see a corpus. Unknown, deleted and not granted look the same.
 * @param which "shown": also one that has ended by itself
 */
export function findCorpus(
  db: Db,
  tenantId: TenantId,
  id: CorpusId,
  access: CorpusAccess,
  which: "live" | "shown" = "live",
): CorpusRow | undefined {
  return db.statement("findCorpus", (orm) => {
    const grant = orm
      .select({ one: sql`1` })
      .from(corpusGrants)
      .where(and(eq(corpusGrants.corpusId, id), eq(corpusGrants.tenantId, tenantId)));
    const own = eq(corpora.tenantId, tenantId);
    const allowed = access === "own" ? own : or(own, exists(grant));
    return orm
      .select()
      .from(corpora)
      .where(and(eq(corpora.id, id), which === "live" ? visible : shown, allowed))
      .get();
  });
}

/** Whether none of these corpora has been deleted meanwhile. It is asked again and again beside a long search. */
export function areLive(db: Db, seqs: readonly number[]): boolean {
  const sql = "select count(*) as n from corpora where seq in (select value from json_each(?)) and deleted_at is null";
  const row = db.statement("areLive", () => db.client.query<{ n: number }, [string]>(sql).get(JSON.stringify(seqs)));
  return row?.n === seqs.length;
}

/** Finds a corpus without a check of who asks, for background work. The corpus may be deleted already. */
export function findCorpusAnyState(db: Db, id: CorpusId): CorpusRow | undefined {
  return findRow(db, "findCorpusAnyState", corpora, { id });
}

/** All corpora of the tenant, including deleted ones that are not swept yet. */
export function corporaOfTenant(db: Db, tenantId: TenantId): readonly CorpusRow[] {
  return listRows(db, "corporaOfTenant", corpora, { tenantId }, undefined);
}

export function listCorpora(db: Db, tenantId: TenantId, range: PageRange): Page<CorpusRow> {
  return pageOfRows(db, "listCorpora", corpora, { tenantId }, range, shown);
}

export function countCorpora(db: Db, tenantId: TenantId): number {
  return countRows(db, "countCorpora", corpora, { tenantId }, shown);
}

export function corpusUsage(db: Db, ids: readonly CorpusId[]): ReadonlyMap<CorpusId, CorpusUsage> {
  const rows = db.statement("corpusUsage", (orm) =>
    orm
      .select({ id: corpusFiles.corpusId, status: corpusFiles.status, n: count(), bytes: sum(corpusFiles.usageBytes) })
      .from(corpusFiles)
      .where(and(inArray(corpusFiles.corpusId, [...ids]), ne(corpusFiles.status, "deleting")))
      .groupBy(corpusFiles.corpusId, corpusFiles.status)
      .all(),
  );
  const usage = new Map<CorpusId, CorpusUsage>();
  for (const id of ids) {
    const own = rows.filter((row) => row.id === id);
    usage.set(id, {
      fileCounts: fileCountsOf(own),
      usageBytes: own.reduce((bytes, row) => bytes + Number(row.bytes ?? 0), 0),
    });
  }
  return usage;
}

export function fileCountsOf(rows: readonly { readonly status: CorpusFileStatus; readonly n: number }[]): FileCounts {
  const of = (status: CorpusFileStatus) => rows.find((row) => row.status === status)?.n ?? 0;
  return {
    in_progress: of("in_progress"),
    completed: of("completed"),
    failed: of("failed"),
    cancelled: of("cancelled"),
    total: rows.reduce((total, row) => total + row.n, 0),
  };
}

export function updateCorpus(
  db: Db,
  id: CorpusId,
  change: Partial<Pick<CorpusRow, "name" | "metadata" | "lastActiveAt" | "expiresAfterDays">>,
): CorpusRow | undefined {
  return updateRow(db, "updateCorpus", corpora, { id }, change, visible);
}

/** Notes that corpora are used. */
export function touchCorpora(db: Db, ids: readonly CorpusId[], now: number): void {
  const used = and(inArray(corpora.id, [...ids]), visible);
  db.statement("touchCorpora", (orm) => orm.update(corpora).set({ lastActiveAt: now }).where(used).run());
}

const msPerDay = 86_400_000;

/** When the corpus ends unless it is used, in Unix milliseconds; undefined: it stays. */
export const corpusEnd = ({ lastActiveAt, expiresAfterDays }: CorpusRow): number | undefined =>
  expiresAfterDays === null ? undefined : lastActiveAt + expiresAfterDays * msPerDay;

const end = sql<number>`last_active_at + expires_after_days * 86400000`;
const ending = and(visible, isNotNull(corpora.expiresAfterDays));

/** Corpora that have come to their end. */
export function listDueCorpora(db: Db, now: number, limit: number): readonly CorpusRow[] {
  return listRows(db, "listDueCorpora", corpora, {}, { orderBy: corpora.seq, limit }, ending, sql`${end} <= ${now}`);
}

/** When the next corpus ends, in Unix milliseconds; undefined: none will. */
export function nextCorpusEnd(db: Db): number | undefined {
  const row = db.statement("nextCorpusEnd", (orm) =>
    orm
      .select({ at: sql<number | null>`min(${end})` })
      .from(corpora)
      .where(ending)
      .get(),
  );
  return row?.at ?? undefined;
}

/** @returns the new epoch; undefined when there is no such corpus. */
export function raiseCorpusSaltEpoch(db: Db, id: CorpusId): number | undefined {
  return updateRow(db, "raiseCorpusSaltEpoch", corpora, { id }, { saltEpoch: sql`${corpora.saltEpoch} + 1` }, visible)
    ?.saltEpoch;
}

/**
 * Makes the corpus, its files and its open jobs invisible, and removes its sources. The sweep removes the rows of the files.
 * @param expired it has ended by itself, and its own row stays to tell of it
 */
export function markCorpusDeleted(db: Db, id: CorpusId, now: number, expired = false): void {
  db.transaction("markCorpusDeleted", () =>
    db.statement("markCorpusDeleted", (orm) => {
      orm.update(corpora).set({ deletedAt: now, expired }).where(eq(corpora.id, id)).run();
      orm
        .update(jobs)
        .set({ status: "cancelled", finishedAt: now })
        .where(and(eq(jobs.corpusId, id), isNull(jobs.finishedAt)))
        .run();
      orm.delete(sources).where(eq(sources.corpusId, id)).run();
    }),
  );
}

/** An index with more blocks (4 kB each) would take too long to be overwritten with zeros while it is dropped. */
const mostBlocksZeroed = 500;

/** The names of a schema have no index, so it is read once for all corpora, however many there are. */
const indexedCorpora = `select cast(substr(name, 5) as integer) as seq from sqlite_schema
  where type = 'table' and name glob 'fts_[0-9]*'`;

/**
 * Drops the indexes of a tenant's deleted corpora, one after the other; the caller decides when to yield to other work.
 * Nobody searches these indexes any more, and dropping one is faster than removing its fragments one by one. Call
 * `zeroFreeSpace` afterwards.
 */
export function* dropDeletedIndexes(db: Db, tenantId: TenantId, mostZeroed = mostBlocksZeroed): Generator<void> {
  const sql = `select seq from corpora
    where tenant_id = ? and deleted_at is not null and seq in (${indexedCorpora}) order by seq`;
  const deleted = db.statement("listDeletedIndexes", () =>
    db.client.query<{ seq: number }, [string]>(sql).all(tenantId),
  );
  for (const { seq } of deleted) {
    const blocks = fullTextBlocks(db, seq, mostZeroed + 1);
    if (blocks === undefined) continue;
    if (blocks <= mostZeroed) {
      db.transaction("dropDeletedIndexes", () => {
        dropVectors(db, seq);
        dropFullText(db, seq);
      });
      yield;
      continue;
    }
    // Each takes its time. The index of words goes last: by it the corpus is found again after a crash.
    for (const dropOne of [dropVectors, dropFullText]) {
      freeUnzeroed(db, "dropDeletedIndexes", () => dropOne(db, seq));
      yield;
    }
  }
}

const filesPerPiece = 64;
/** Fragments of a file whose texts one piece erases. */
const erasedPerPiece = 128;

/**
 * Erases the texts and vectors of a tenant's deleted corpora, in pieces. To remove the rows as well takes ten times as
 * long, since each has entries at random places of three indexes, so that is done later.
 * @param erased numbers of files that are done; those that are done now are added
 */
export function* eraseDeletedTexts(db: Db, tenantId: TenantId, erased: Set<number>): Generator<void> {
  const withFiles = `select id from corpora c where tenant_id = ? and deleted_at is not null
    and exists (select 1 from corpus_files cf where cf.corpus_id = c.id)`;
  const filesOf = "select seq from corpus_files where corpus_id = ? and seq > ? order by seq limit ?";
  const deleted = db.statement("listDeletedCorpora", () =>
    db.client.query<{ id: CorpusId }, [string]>(withFiles).all(tenantId),
  );
  for (const { id } of deleted) {
    for (let afterSeq: number | undefined = 0; afterSeq !== undefined; ) {
      const after: number = afterSeq;
      const files = db.statement("listFilesToErase", () =>
        db.client.query<{ seq: number }, [string, number, number]>(filesOf).all(id, after, filesPerPiece),
      );
      for (const { seq } of files) {
        if (!erased.has(seq)) yield* eraseTexts(db, seq);
        erased.add(seq);
      }
      yield;
      afterSeq = files.at(-1)?.seq;
    }
  }
}

function* eraseTexts(db: Db, fileSeq: number): Generator<void> {
  const some = "select seq from fragments where corpus_file_seq = ?1 and ordinal >= ?2 and ordinal < ?2 + ?3";
  const erase = (from: number) => (): void => {
    const range = [fileSeq, from, erasedPerPiece] as const;
    db.client.query(`delete from fragment_vectors where fragment_seq in (${some})`).run(...range);
    db.client.query(`update fragments set text = '', pages = null where seq in (${some})`).run(...range);
  };
  const last = db.statement("lastOrdinal", () =>
    db.client
      .query<{ ordinal: number | null }, [number]>(
        "select max(ordinal) as ordinal from fragments where corpus_file_seq = ?",
      )
      .get(fileSeq),
  );
  for (let from = 0; from <= (last?.ordinal ?? -1); from += erasedPerPiece) {
    db.unsynced(() => db.transaction("eraseTexts", erase(from)));
    yield;
  }
}

/**
 * Removes some fragments of a tenant's deleted corpora, whose indexes are dropped already, and the rows of files
 * without any fragment left.
 * @param limit the most fragments to remove
 * @returns false when no deleted corpus of the tenant has a file left
 */
export function removeDeletedFiles(db: Db, tenantId: TenantId, limit: number): boolean {
  return db.transaction("removeDeletedFiles", () =>
    db.statement("removeDeletedFiles", () => {
      const select = `select cf.seq from corpora c cross join corpus_files cf on cf.corpus_id = c.id
        where c.tenant_id = ? and c.deleted_at is not null limit ?`;
      const seqs = db.client.query<{ seq: number }, [string, number]>(select).all(tenantId, filesPerPiece);
      if (seqs.length === 0) return false;
      const files = JSON.stringify(seqs.map(({ seq }) => seq));
      const fragments = `delete from fragments where seq in (
        select f.seq from json_each(?) cross join fragments f on f.corpus_file_seq = value limit ?)`;
      if (db.client.query<never, [string, number]>(fragments).run(files, limit).changes < limit) {
        const rest = `delete from corpus_files where seq in (select value from json_each(?1))
          and not exists (select 1 from fragments f where f.corpus_file_seq = corpus_files.seq)`;
        db.client.query<never, [string]>(rest).run(files);
      }
      return true;
    }),
  );
}

/**
 * Removes some of a tenant's deleted corpora whose files are swept and whose indexes are dropped.
 * @returns false when there was none
 */
export function removeSweptCorpora(db: Db, tenantId: TenantId, limit: number): boolean {
  const swept = `delete from corpora where seq in (
    select seq from corpora c where tenant_id = ? and deleted_at is not null and expired = 0 and seq not in (${indexedCorpora})
    and not exists (select 1 from corpus_files cf where cf.corpus_id = c.id) limit ?)`;
  return db.statement(
    "removeSweptCorpora",
    () => db.client.query<never, [string, number]>(swept).run(tenantId, limit).changes > 0,
  );
}

export function insertGrant(db: Db, corpusId: CorpusId, tenantId: TenantId, createdAt: number): void {
  db.statement("insertGrant", (orm) =>
    orm.insert(corpusGrants).values({ corpusId, tenantId, createdAt }).onConflictDoNothing().run(),
  );
}

/** The tenants that are deleted, or own something that is deleted and not swept yet. */
export function listSweepTenants(db: Db): readonly TenantId[] {
  const sql = `select id from tenants where status = 'deleting'
    union select tenant_id from corpora c where deleted_at is not null and (expired = 0 or seq in (${indexedCorpora})
      or exists (select 1 from corpus_files cf where cf.corpus_id = c.id))
    union select tenant_id from files where deleted_at is not null
    union select tenant_id from corpus_files where status = 'deleting'
    union select tenant_id from batches where results_left = 1`;
  return db.statement("listSweepTenants", () => db.client.query<{ id: TenantId }, []>(sql).all()).map(({ id }) => id);
}
