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
/** Fragments that one search ranks: ranking takes some 3 µs each, and it holds the event loop. */
const maxCandidates = 10_000;

export interface SearchHit extends Hit {
  /** FTS5's bm25 with its sign turned: higher is better, more than 0. */
  readonly bm25: number;
}

interface RankedRow extends HitRow {
  readonly rank: number;
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
 * Best fragments of a corpus, best first; ties by age. Only completed files' fragments are seen.
 * @param corpusFileSeqs when given, only fragments of these files
 */
export function searchFullText(
  db: Db,
  corpusSeq: number,
  query: string,
  limit: number,
  corpusFileSeqs?: readonly number[],
): readonly SearchHit[] {
  const table = tableOf(corpusSeq);
  const terms = selectiveTerms(db, table, searchTerms(query));
  if (terms.length === 0 || limit < 1) return [];
  const filter = corpusFileSeqs === undefined ? "" : "and cf.seq in (select value from json_each(?))";
  // From the index to the rows (cross join keeps that order): what is invisible or filtered out is not ranked and
  // takes no candidate's place. Texts are fetched for the best only.
  const sql = `
    select ${hitColumns}, best.rank
    from (
      select seq, rank from (
        select ${table}.rowid as seq, bm25(${table}) as rank
        from ${table} cross join fragments f on f.seq = ${table}.rowid
        cross join corpus_files cf on cf.seq = f.corpus_file_seq and cf.status = 'completed'
        where ${table} match ? ${filter} limit ${maxCandidates}
      ) order by rank, seq limit ?
    ) best
    join fragments f on f.seq = best.seq
    join corpus_files cf on cf.seq = f.corpus_file_seq
    join files fi on fi.id = cf.file_id
    order by best.rank, best.seq`;
  const match = matchExpression(terms);
  const parameters = corpusFileSeqs === undefined ? [match, limit] : [match, JSON.stringify(corpusFileSeqs), limit];
  const rows = db.statement("searchFullText", () =>
    db.client.query<RankedRow, (string | number)[]>(sql).all(...parameters),
  );
  return rows.map((row) => ({ ...hitOf(row), bm25: -row.rank }));
}

/**
 * The rarest terms, as many as together find no more than `maxCandidates` fragments, and at least one that is
 * found at all. What is left out occurs in so many fragments that it hardly tells them apart.
 */
function selectiveTerms(db: Db, table: string, terms: readonly string[]): readonly string[] {
  const sql = `select count(*) as n from (select 1 from ${table} where ${table} match ? limit ${maxCandidates})`;
  const counted = terms.map((term) => {
    const row = db.statement("countMatches", () => db.client.query<{ n: number }, [string]>(sql).get(term));
    return { term, count: row?.n ?? 0 };
  });
  const selected: string[] = [];
  let candidates = 0;
  for (const { term, count } of counted.filter((one) => one.count > 0).sort((a, b) => a.count - b.count)) {
    candidates += count;
    if (candidates > maxCandidates && selected.length > 0) break;
    selected.push(term);
  }
  return selected;
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
