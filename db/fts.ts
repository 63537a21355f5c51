/**
 * Full text by FTS5, one index a corpus: ranking statistics (how often a term occurs) and the time a search
 * takes then depend on that corpus alone, and no other tenant can read them off its own scores.
 *
 * Contentless: the text is in `fragments`, the index has terms only. "secure-delete" takes terms out of the
 * index physically when a fragment goes.
 */

import { type Hit, type HitRow, hitColumns, hitOf } from "./hits.ts";
import type { Db } from "./open.ts";

/** Words of a query that are looked up; further ones are ignored. */
export const maxSearchTerms = 64;
/** Fragments that one search ranks: ranking takes some 1 to 3 µs each. */
const maxCandidates = 10_000;
/** Fragments that are looked at, ranked or not, before the event loop is yielded to. */
const fragmentsPerPiece = 10_000;

export interface SearchHit extends Hit {
  /** FTS5's bm25 with its sign changed: higher is better, more than 0. */
  readonly bm25: number;
}

/** FTS5's rank is lower the better. */
type Ranked = readonly [seq: number, rank: number];

/** What is searched for, and the fragments that have any of it, counted for each term up to `maxCandidates`. */
interface Selection {
  readonly terms: readonly string[];
  readonly candidates: number;
}

function tableOf(corpusSeq: number): string {
  if (!Number.isSafeInteger(corpusSeq) || corpusSeq < 1) throw new RangeError("corpusSeq is not a row number");
  return `fts_${corpusSeq}`;
}

export function createFullText(db: Db, corpusSeq: number): void {
  const table = tableOf(corpusSeq);
  db.statement("createFullText", () => {
    db.client.run(
      `create virtual table ${table} using fts5(text, content='', tokenize="porter unicode61 remove_diacritics 2")`,
    );
    db.client.run(`insert into ${table} (${table}, rank) values ('secure-delete', 1)`);
  });
}

/** Blocks of the corpus' index, counted up to `most`; undefined: it has none. */
export function fullTextBlocks(db: Db, corpusSeq: number, most: number): number | undefined {
  const table = tableOf(corpusSeq);
  return db.statement("fullTextBlocks", () => {
    if (db.client.query("select 1 from sqlite_schema where name = ?").get(table) === null) return undefined;
    const sql = `select count(*) as n from (select 1 from ${table}_data limit ?)`;
    return db.client.query<{ n: number }, [number]>(sql).get(most)?.n;
  });
}

export function dropFullText(db: Db, corpusSeq: number): void {
  const table = tableOf(corpusSeq);
  db.statement("dropFullText", () => db.client.run(`drop table if exists ${table}`));
}

export function indexFragment(db: Db, corpusSeq: number, seq: number, text: string): void {
  const table = tableOf(corpusSeq);
  db.statement("indexFragment", () =>
    db.client.query(`insert into ${table} (rowid, text) values (?, ?)`).run(seq, indexedText(text)),
  );
}

/** `text` must be what was indexed: a contentless index finds the terms to take out by it. */
export function unindexFragment(
  db: Db,
  corpusSeq: number,
  fragment: { readonly seq: number; readonly text: string },
): void {
  const table = tableOf(corpusSeq);
  db.statement("unindexFragment", () =>
    db.client
      .query(`insert into ${table} (${table}, rowid, text) values ('delete', ?, ?)`)
      .run(fragment.seq, indexedText(fragment.text)),
  );
}

/**
 * Best fragments of a corpus, best first; ties by age. Only completed files' fragments are seen. Lazily, so that the
 * caller decides how long it stays on the event loop: what is deleted between two pieces may be among what is found.
 * @param corpusFileSeqs when given, only fragments of these files
 */
export function* searchFullText(
  db: Db,
  corpusSeq: number,
  query: string,
  limit: number,
  corpusFileSeqs?: readonly number[],
): Generator<void, readonly SearchHit[]> {
  const table = tableOf(corpusSeq);
  const { terms, candidates } = yield* selectiveTerms(db, table, searchTerms(query));
  if (terms.length === 0 || limit < 1) return [];
  const files = corpusFileSeqs === undefined ? [] : [JSON.stringify(corpusFileSeqs)];
  const filter = files.length === 0 ? "" : "and cf.seq in (select value from json_each(?))";
  // From the index to the rows (cross join keeps that order): what is invisible or filtered out is not ranked and
  // takes no candidate's place.
  const sql = `
    select ${table}.rowid, bm25(${table})
    from ${table} cross join fragments f on f.seq = ${table}.rowid
    cross join corpus_files cf on cf.seq = f.corpus_file_seq and cf.status = 'completed'
    where ${table} match ? and ${table}.rowid > ? and ${table}.rowid <= ? ${filter} limit ?`;
  const match = matchExpression(terms);
  let best: Ranked[] = [];
  const isOnePiece = candidates <= fragmentsPerPiece;
  for (let left = maxCandidates, after = 0; left > 0; ) {
    const last = isOnePiece ? Number.MAX_SAFE_INTEGER : endOfPiece(db, table, match, after);
    if (last === undefined) break;
    const piece = db.statement("searchFullText", () =>
      db.client.query<never, (string | number)[]>(sql).values(match, after, last, ...files, left),
    );
    best = bestOf(best, piece as unknown as readonly Ranked[], limit);
    if (isOnePiece) break;
    left -= piece.length;
    after = last;
    yield;
  }
  return hitsOf(db, best);
}

function bestOf(best: readonly Ranked[], piece: readonly Ranked[], limit: number): Ranked[] {
  const isBefore = (a: Ranked, b: Ranked): boolean => a[1] < b[1] || (a[1] === b[1] && a[0] < b[0]);
  const kept = [...best];
  for (const one of piece) {
    const last = kept[limit - 1];
    if (last !== undefined && !isBefore(one, last)) continue;
    const place = kept.findIndex((other) => isBefore(one, other));
    kept.splice(place < 0 ? kept.length : place, 0, one);
    kept.length = Math.min(kept.length, limit);
  }
  return kept;
}

/** The last of the next matches that are looked at together. */
function endOfPiece(db: Db, table: string, match: string, after: number): number | undefined {
  const sql = `select max(seq) as last from (
    select rowid as seq from ${table} where ${table} match ? and rowid > ? order by rowid limit ${fragmentsPerPiece})`;
  const row = db.statement("endOfPiece", () =>
    db.client.query<{ last: number | null }, [string, number]>(sql).get(match, after),
  );
  return row?.last ?? undefined;
}

/** Of those that are still there. */
function hitsOf(db: Db, best: readonly Ranked[]): readonly SearchHit[] {
  const sql = `
    select ${hitColumns} from json_each(?) best
    join fragments f on f.seq = best.value
    join corpus_files cf on cf.seq = f.corpus_file_seq and cf.status = 'completed'
    join files fi on fi.id = cf.file_id`;
  const seqs = JSON.stringify(best.map(([seq]) => seq));
  const rows = db.statement("fetchHits", () => db.client.query<HitRow, [string]>(sql).all(seqs));
  const found = new Map(rows.map((row) => [row.seq, row]));
  return best.flatMap(([seq, rank]) => {
    const row = found.get(seq);
    return row === undefined ? [] : [{ ...hitOf(row), bm25: -rank }];
  });
}

/**
 * The rarest terms, as many as together find no more than `maxCandidates` fragments, and at least one that is
 * found at all. What is left out occurs in so many fragments that it hardly tells them apart.
 */
function* selectiveTerms(db: Db, table: string, terms: readonly string[]): Generator<void, Selection> {
  const sql = `select count(*) as n from (select 1 from ${table} where ${table} match ? limit ${maxCandidates})`;
  const counted: { readonly term: string; readonly count: number }[] = [];
  for (const term of terms) {
    const row = db.statement("countMatches", () => db.client.query<{ n: number }, [string]>(sql).get(term));
    counted.push({ term, count: row?.n ?? 0 });
    yield;
  }
  const selected: string[] = [];
  let candidates = 0;
  for (const { term, count } of counted.filter((one) => one.count > 0).sort((a, b) => a.count - b.count)) {
    if (candidates + count > maxCandidates && selected.length > 0) break;
    candidates += count;
    selected.push(term);
  }
  return { terms: selected, candidates };
}

const unspacedScripts =
  "\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}\\p{Script=Thai}\\p{Script=Lao}\\p{Script=Khmer}\\p{Script=Myanmar}";
const unspacedChar = new RegExp(`[${unspacedScripts}]`, "gu");
const scriptRun = new RegExp(`[${unspacedScripts}]+|[^${unspacedScripts}]+`, "gu");

/**
 * Scripts written without spaces are indexed character by character, because unicode61 would make one term of
 * a whole clause. NUL ends a text for SQLite's tokenizer.
 */
function indexedText(text: string): string {
  return text.replaceAll("\0", " ").replace(unspacedChar, " $& ");
}

/**
 * A user's words as FTS5 phrases, each quoted; a run of unspaced script is one phrase of its characters.
 * Operators, column names and quotes in the text can have no meaning, since only letters, digits and marks
 * are taken.
 */
export function searchTerms(query: string): readonly string[] {
  const words = query.normalize("NFC").match(/[\p{L}\p{N}][\p{L}\p{N}\p{M}]*/gu) ?? [];
  const terms = new Set<string>();
  for (const word of words) {
    for (const run of word.match(scriptRun) ?? []) {
      if (terms.size >= maxSearchTerms) return [...terms];
      terms.add(`"${indexedText(run).trim().replace(/ {2,}/g, " ").toLowerCase()}"`);
    }
  }
  return [...terms];
}

/** Any of the terms. */
export function matchExpression(terms: readonly string[]): string {
  return terms.join(" OR ");
}
