import { and, asc, count, desc, eq, gt, gte, inArray, lt, lte, or, sql } from "drizzle-orm";
import { type IngestAttempt, isCurrentAttempt, ofLiveCorpus } from "./corpus-files.ts";
import { textKeysOf } from "./fragment-texts.ts";
import { indexFragment, mergeFullText, unindexFragment } from "./fts.ts";
import type { CorpusId, FileId, FragmentId } from "./ids.ts";
import type { Db } from "./open.ts";
import { type Page, type PageRange, pageOf } from "./page.ts";
import type { PinTier } from "./pins.ts";
import { listRows } from "./rows.ts";
import { type Attributes, corpusFiles, files, fragmentPins, fragments } from "./schema.ts";
import { unindexVectors } from "./vectors.ts";

export type FragmentRow = typeof fragments.$inferSelect;
export type NewFragment = Pick<FragmentRow, "id" | "ordinal" | "text" | "firstChar" | "endChar" | "tokenCount"> &
  Partial<Pick<FragmentRow, "pages">>;

export interface ListedFragment extends FragmentRow {
  readonly fileId: FileId;
  readonly filename: string;
  /** Where it is pinned; null: nowhere. */
  readonly pinnedTier: PinTier | null;
}

/**
 * Stores a piece of a file's fragments with their index entries; none are visible before the file completes.
 * @returns false, and stores nothing, when the attempt is no longer the current one
 */
export function insertFragments(
  db: Db,
  corpusSeq: number,
  attempt: IngestAttempt,
  piece: readonly NewFragment[],
): boolean {
  return db.transaction("insertFragments", () => {
    if (!isCurrentAttempt(db, attempt)) return false;
    for (const f of piece) {
      const { textKey, headKey } = textKeysOf(corpusSeq, f.text);
      const row = db.statement("insertFragment", () =>
        db.client
          .query<{ seq: number }, (string | number | Buffer | null)[]>(
            `insert into fragments
               (id, corpus_file_seq, ordinal, text, first_char, end_char, token_count, pages, text_key, head_key)
             values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning seq`,
          )
          .get(
            ...[f.id, attempt.seq, f.ordinal, f.text, f.firstChar, f.endChar, f.tokenCount],
            ...[f.pages ? JSON.stringify(f.pages) : null, textKey, headKey],
          ),
      );
      if (row !== null) indexFragment(db, corpusSeq, row.seq, f.text);
    }
    mergeFullText(db, corpusSeq);
    return true;
  });
}

/** Up to `limit` fragments of one file after an ordinal, in any state, oldest first. */
export function peekFragments(db: Db, corpusFileSeq: number, limit: number, afterOrdinal = -1): readonly FragmentRow[] {
  const range = { orderBy: fragments.ordinal, limit };
  return listRows(db, "peekFragments", fragments, { corpusFileSeq }, range, gt(fragments.ordinal, afterOrdinal));
}

export function removeFragments(db: Db, corpusSeq: number, piece: readonly Pick<FragmentRow, "seq" | "text">[]): void {
  db.transaction("removeFragments", () => {
    for (const fragment of piece) unindexFragment(db, corpusSeq, fragment);
    const seqs = piece.map((fragment) => fragment.seq);
    unindexVectors(db, corpusSeq, seqs);
    db.statement("removeFragments", (orm) => orm.delete(fragments).where(inArray(fragments.seq, seqs)).run());
  });
}

const ofCompletedFile = and(
  eq(corpusFiles.seq, fragments.corpusFileSeq),
  eq(corpusFiles.status, "completed"),
  ofLiveCorpus,
);

export function countFragments(db: Db, corpusId: CorpusId): number {
  const row = db.statement("countFragments", (orm) =>
    orm
      .select({ n: count() })
      .from(fragments)
      .innerJoin(corpusFiles, ofCompletedFile)
      .where(eq(corpusFiles.corpusId, corpusId))
      .get(),
  );
  return row?.n ?? 0;
}

/**
 * The place of a fragment in its corpus: files are ordered as they were attached, and fragments as in their file's
 * text.
 */
export interface FragmentPlace {
  readonly fileSeq: number;
  readonly ordinal: number;
}

export const placeOf = (row: FragmentRow): FragmentPlace => ({ fileSeq: row.corpusFileSeq, ordinal: row.ordinal });

function beyond({ fileSeq, ordinal }: FragmentPlace, order: PageRange["order"]) {
  const [from, after] = order === "asc" ? ([gte, gt] as const) : ([lte, lt] as const);
  return and(from(corpusFiles.seq, fileSeq), or(after(corpusFiles.seq, fileSeq), after(fragments.ordinal, ordinal)));
}

/** Visible fragments of a corpus after a place, in order. The order stays stable while files are added and removed. */
export function walkFragments(
  db: Db,
  corpusId: CorpusId,
  after: FragmentPlace | undefined,
  limit: number,
): readonly FragmentRow[] {
  const rows = db.statement("walkFragments", (orm) =>
    orm
      .select({ fragment: fragments })
      .from(corpusFiles)
      .innerJoin(fragments, ofCompletedFile)
      .where(and(eq(corpusFiles.corpusId, corpusId), after && beyond(after, "asc")))
      .orderBy(asc(corpusFiles.seq), asc(fragments.ordinal))
      .limit(limit)
      .all(),
  );
  return rows.map((row) => row.fragment);
}

export function listFragments(
  db: Db,
  corpusId: CorpusId,
  range: Pick<PageRange, "limit" | "order"> & {
    readonly after?: FragmentPlace | undefined;
    readonly fileId?: FileId | undefined;
  },
): Page<ListedFragment> {
  const { after, fileId, limit } = range;
  const along = range.order === "asc" ? asc : desc;
  const rows = db.statement("listFragments", (orm) =>
    orm
      .select(listed)
      .from(corpusFiles)
      .innerJoin(fragments, ofCompletedFile)
      .innerJoin(files, eq(files.id, corpusFiles.fileId))
      .leftJoin(fragmentPins, eq(fragmentPins.fragmentSeq, fragments.seq))
      .where(
        and(
          eq(corpusFiles.corpusId, corpusId),
          fileId === undefined ? undefined : eq(corpusFiles.fileId, fileId),
          after && beyond(after, range.order),
        ),
      )
      .orderBy(along(corpusFiles.seq), along(fragments.ordinal))
      .limit(limit + 1)
      .all(),
  );
  return pageOf(rows.map(toListed), range);
}

/** A visible fragment of any corpus. The caller checks who may see it. */
export function corpusFragment(
  db: Db,
  id: FragmentId,
): { readonly corpusId: CorpusId; readonly row: ListedFragment } | undefined {
  const row = db.statement("corpusFragment", (orm) =>
    orm
      .select({ ...listed, corpusId: corpusFiles.corpusId })
      .from(fragments)
      .innerJoin(corpusFiles, ofCompletedFile)
      .innerJoin(files, eq(files.id, corpusFiles.fileId))
      .leftJoin(fragmentPins, eq(fragmentPins.fragmentSeq, fragments.seq))
      .where(eq(fragments.id, id))
      .get(),
  );
  return row && { corpusId: row.corpusId, row: toListed(row) };
}

const listed = {
  fragment: fragments,
  fileId: corpusFiles.fileId,
  filename: files.filename,
  pinnedTier: fragmentPins.tier,
};

function toListed(row: {
  readonly fragment: FragmentRow;
  readonly fileId: FileId;
  readonly filename: string;
  readonly pinnedTier: PinTier | null;
}): ListedFragment {
  const { fragment, fileId, filename, pinnedTier } = row;
  return { ...fragment, fileId, filename, pinnedTier };
}

export function findFragmentPlace(db: Db, corpusId: CorpusId, id: FragmentId): FragmentPlace | undefined {
  return db.statement("findFragmentPlace", (orm) =>
    orm
      .select({ fileSeq: fragments.corpusFileSeq, ordinal: fragments.ordinal })
      .from(fragments)
      .innerJoin(corpusFiles, ofCompletedFile)
      .where(and(eq(corpusFiles.corpusId, corpusId), eq(fragments.id, id)))
      .get(),
  );
}

type NamedRow = Pick<FragmentRow, "id" | "text" | "pages"> &
  Pick<ListedFragment, "fileId" | "filename"> & { readonly corpusId: CorpusId };

type HitRow = Omit<NamedRow, "corpusId"> & { readonly attributes: Attributes };

const namedColumns = {
  ...{ id: fragments.id, text: fragments.text, pages: fragments.pages },
  ...{ fileId: corpusFiles.fileId, filename: files.filename },
};

/** Visible fragments by their `seq`, as searches show them. The caller has checked who may see them. */
export function readHits(db: Db, seqs: readonly number[]): ReadonlyMap<number, HitRow> {
  const rows = db.statement("readHits", (orm) =>
    orm
      .select({ ...namedColumns, seq: fragments.seq, attributes: corpusFiles.attributes })
      .from(fragments)
      .innerJoin(corpusFiles, ofCompletedFile)
      .innerJoin(files, eq(files.id, corpusFiles.fileId))
      .where(sql`${fragments.seq} in (select value from json_each(${JSON.stringify(seqs)}))`)
      .all(),
  );
  return new Map(rows.map(({ seq, ...row }) => [seq, row]));
}

/** Visible fragments by their ids, of any corpus. The caller checks who may see them. */
export function findFragments(db: Db, ids: readonly FragmentId[]): readonly NamedRow[] {
  return db.statement("findFragments", (orm) =>
    orm
      .select({ ...namedColumns, corpusId: corpusFiles.corpusId })
      .from(fragments)
      .innerJoin(corpusFiles, ofCompletedFile)
      .innerJoin(files, eq(files.id, corpusFiles.fileId))
      .where(sql`${fragments.id} in (select value from json_each(${JSON.stringify(ids)}))`)
      .all(),
  );
}

/** The ids of those fragments that are still visible. */
export function visibleFragmentIds(db: Db, ids: readonly FragmentId[]): ReadonlySet<FragmentId> {
  const rows = db.statement("visibleFragmentIds", (orm) =>
    orm
      .select({ id: fragments.id })
      .from(fragments)
      .innerJoin(corpusFiles, ofCompletedFile)
      .where(inArray(fragments.id, [...ids]))
      .all(),
  );
  return new Set(rows.map((row) => row.id));
}

/** Notes where a fragment was prepared. Nothing happens if the fragment is gone. */
export function notePrepared(db: Db, id: FragmentId, spanKey: string, worker: number | null, now: number): void {
  db.statement("notePrepared", (orm) =>
    orm
      .update(fragments)
      .set({ preparedSpanKey: spanKey, preparedWorker: worker, preparedAt: now })
      .where(eq(fragments.id, id))
      .run(),
  );
}

/** The texts of a file's fragments in order, as the file was split. */
export function listFragmentTexts(db: Db, corpusFileSeq: number): readonly string[] {
  const rows = db.statement("listFragmentTexts", (orm) =>
    orm
      .select({ text: fragments.text })
      .from(fragments)
      .where(and(eq(fragments.corpusFileSeq, corpusFileSeq), sql`${fragments.text} <> ''`))
      .orderBy(asc(fragments.ordinal))
      .all(),
  );
  return rows.map((row) => row.text);
}
