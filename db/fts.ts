/**
 * Full-text search by FTS5, with one index for each corpus. So the ranking statistics (how often a term occurs) and the
 * time of a search depend on that corpus alone, and no other tenant can infer them from its own scores.
 * The indexes are contentless: the text is in `fragments`, and an index holds only terms. "secure-delete" removes terms
 * physically when a fragment is removed.
 */

import type { Db } from "./open.ts";

/** The most words of a query that are looked up; further words are ignored. */
export const maxSearchTerms = 64;
/** The most fragments that one search ranks. Ranking takes about 1 to 3 µs for each. */
const maxCandidates = 10_000;
/** Characters of one phrase: each is looked for at every place of the others. A longer run becomes several phrases. */
const maxPhraseChars = 8;
/** Characters of one word. What FTS5 takes for several words, as it does where marks stand in a word, is a phrase too. */
const [maxWordChars, maxMarkedWordChars] = [128, 32];

/**
 * For each hit that is wanted, this many of bm25's are compared by their shares. bm25 counts a word that most fragments
 * have as nothing, so in a small corpus it cannot tell who has more of the question's words.
 */
const rankedPerHit = 2;
const minRanked = 20;

/** Pages of an index that one merge writes, about. */
const pagesPerMerge = 16;
/** Segments of one level from which on FTS5 merges them whatever that takes: merges of our own keep far below. */
const mostSegments = 256;
/** How often a word of one fragment is indexed: bm25 hardly tells 48 times from more. */
const mostRepeats = 48;

export interface WordHit {
  readonly seq: number;
  /**
   * In 0..1: the part of the question that the fragment holds, where each word counts by its inverse document
   * frequency in the corpus.
   */
  readonly share: number;
  /** FTS5's bm25 with its sign changed: higher is better, more than 0. */
  readonly bm25: number;
}

/** A term and how many fragments have it, counted up to `maxCandidates`. */
interface CountedTerm {
  readonly term: string;
  readonly count: number;
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
    const set = (option: string, value: number) =>
      db.client.run(`insert into ${table} (${table}, rank) values ('${option}', ${value})`);
    set("secure-delete", 1);
    // By itself FTS5 writes up to 700 pages within one insert.
    set("automerge", 0);
    set("crisismerge", mostSegments);
  });
}

/**
 * The words of a fragment that its index holds, each as often as makes a difference to its rank. A merge goes on to the
 * end of the word that it has begun, and a word that a table has in each of a million cells would take 800 pages.
 */
function wordsOf(text: string): string {
  const counts = new Map<string, number>();
  return indexedText(text).replace(/[\p{L}\p{N}]+/gu, (word) => {
    const count = (counts.get(word) ?? 0) + 1;
    counts.set(word, count);
    return count <= mostRepeats ? word : "";
  });
}

/**
 * Merges a few pages of the segments that inserts leave, each of which a search has to look through. To be called after
 * every few fragments, so that no call writes many.
 */
export function mergeFullText(db: Db, corpusSeq: number): void {
  const table = tableOf(corpusSeq);
  db.statement("mergeFullText", () =>
    db.client.query(`insert into ${table} (${table}, rank) values ('merge', ?)`).run(pagesPerMerge),
  );
}

/** The number of blocks of the corpus's index, counted up to `most`; undefined: it has no index. */
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
    db.client.query(`insert into ${table} (rowid, text) values (?, ?)`).run(seq, wordsOf(text)),
  );
}

/**
 * Removes a fragment from the index. `text` must be the text that was indexed, because a contentless index finds by it
 * the terms to remove.
 */
export function unindexFragment(
  db: Db,
  corpusSeq: number,
  fragment: { readonly seq: number; readonly text: string },
): void {
  const table = tableOf(corpusSeq);
  db.statement("unindexFragment", () =>
    db.client
      .query(`insert into ${table} (${table}, rowid, text) values ('delete', ?, ?)`)
      .run(fragment.seq, wordsOf(fragment.text)),
  );
}

/**
 * The best fragments of a corpus: of the best by bm25 those first that hold most of the question, equal ones by bm25,
 * then by age. Only fragments of completed files are found. It may take seconds where fragments are full of the
 * question's words, so it is not for the event loop.
 * @param query in Unicode's Stream-Safe Text Format, since it is normalized
 * @param corpusFileSeqs limits the search to fragments of these files
 */
export function searchFullText(
  db: Db,
  corpusSeq: number,
  query: string,
  limit: number,
  corpusFileSeqs?: readonly number[],
): readonly WordHit[] {
  const table = tableOf(corpusSeq);
  const counted = searchTerms(query).map((term) => ({ term, count: countOf(db, table, term) }));
  const terms = selectiveTerms(counted);
  if (terms.length === 0 || limit < 1) return [];
  const files = corpusFileSeqs === undefined ? [] : [JSON.stringify(corpusFileSeqs)];
  const filter = files.length === 0 ? "" : "and cf.seq in (select value from json_each(?))";
  // The cross join makes SQLite go from the index to the rows, so fragments that are invisible or filtered out are not
  // ranked and take no candidate's place.
  const sql = `
    select seq, -rank as bm25 from (
      select ${table}.rowid as seq, bm25(${table}) as rank
      from ${table} cross join fragments f on f.seq = ${table}.rowid
      cross join corpus_files cf on cf.seq = f.corpus_file_seq and cf.status = 'completed'
      where ${table} match ? ${filter} limit ${maxCandidates}
    ) order by rank, seq limit ?`;
  const best = db.statement("searchFullText", () =>
    db.client
      .query<Omit<WordHit, "share">, (string | number)[]>(sql)
      .all(matchExpression(terms), ...files, Math.max(minRanked, limit * rankedPerHit)),
  );
  const shares = sharesOf(
    db,
    table,
    counted,
    best.map(({ seq }) => seq),
  );
  const hits = best.map((hit) => ({ ...hit, share: shares.get(hit.seq) ?? 0 }));
  return hits.sort((a, b) => b.share - a.share || b.bm25 - a.bm25 || a.seq - b.seq).slice(0, limit);
}

/** Words of English that say nothing of what is asked for. A fragment that lacks them answers no less of a question. */
const functionWords = new Set(
  [
    "a an and any are as at be been but by can could did do does for from give had has have how i if in into is it its",
    "many me much my no not of on or our please shall should show so such tell than that the their then there these",
    "they this to was we were what when where which who whom whose why will with would you your",
  ].flatMap((words) => words.split(" ").map((word) => `"${word}"`)),
);

/**
 * What share of the question each fragment holds, by the inverse document frequencies of its words. Of a large corpus
 * these are taken from its first `maxCandidates` fragments.
 */
function sharesOf(
  db: Db,
  table: string,
  counted: readonly CountedTerm[],
  seqs: readonly number[],
): ReadonlyMap<number, number> {
  const asked = counted.filter(({ term }) => !functionWords.has(term));
  const sample = db.statement("sampleOfIndex", () =>
    db.client
      .query<{ n: number; last: number | null }, []>(
        `select count(*) as n, max(id) as last from (select id from ${table}_docsize order by id limit ${maxCandidates})`,
      )
      .get(),
  );
  const fragments = sample?.n ?? 0;
  // The sign before a rowid makes SQLite read all fragments that have the word, at 0.05 µs each, instead of looking for
  // each of the given ones, at 30 µs each.
  const holding = (rowid: string): string =>
    `select rowid from ${table} where ${table} match ? and ${rowid} in (select value from json_each(?))`;
  const shares = new Map<number, number>();
  let whole = 0;
  for (const { term, count } of asked.length > 0 ? asked : counted) {
    const isWhole = fragments < maxCandidates || count === 0;
    const found = isWhole ? count : countOf(db, table, term, sample?.last ?? 0);
    const weight = Math.log(1 + (fragments - found + 0.5) / (found + 0.5));
    whole += weight;
    if (count === 0) continue;
    const rows = db.statement("fragmentsHolding", () =>
      db.client
        .query<{ rowid: number }, [string, string]>(holding(count < maxCandidates ? "+rowid" : "rowid"))
        .all(term, JSON.stringify(seqs)),
    );
    for (const { rowid } of rows) shares.set(rowid, (shares.get(rowid) ?? 0) + weight);
  }
  for (const [seq, held] of shares) shares.set(seq, held / whole);
  return shares;
}

/** How many fragments up to `last` have the term, counted up to `maxCandidates`. */
function countOf(db: Db, table: string, term: string, last = Number.MAX_SAFE_INTEGER): number {
  const sql = `select count(*) as n from (
    select 1 from ${table} where ${table} match ? and rowid <= ? limit ${maxCandidates})`;
  const row = db.statement("countMatches", () => db.client.query<{ n: number }, [string, number]>(sql).get(term, last));
  return row?.n ?? 0;
}

/**
 * The rarest terms: as many as together match at most `maxCandidates` fragments, and at least one that matches any. The
 * other terms occur in so many fragments that they hardly tell them apart.
 */
function selectiveTerms(counted: readonly CountedTerm[]): readonly string[] {
  const selected: string[] = [];
  let candidates = 0;
  for (const { term, count } of counted.filter((one) => one.count > 0).sort((a, b) => a.count - b.count)) {
    if (candidates + count > maxCandidates && selected.length > 0) break;
    candidates += count;
    selected.push(term);
  }
  return selected;
}

const unspacedScripts =
  "\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}\\p{Script=Thai}\\p{Script=Lao}\\p{Script=Khmer}\\p{Script=Myanmar}";
const unspacedChar = new RegExp(`[${unspacedScripts}]`, "gu");
const scriptRun = new RegExp(`[${unspacedScripts}]+|[^${unspacedScripts}]+`, "gu");

/**
 * Scripts without spaces are indexed character by character, because unicode61 would make one term of a whole clause.
 * NUL characters are replaced, since NUL ends a text for SQLite's tokenizer.
 */
const indexedText = (text: string): string => text.replaceAll("\0", " ").replace(unspacedChar, " $& ");

/**
 * Turns a user's words into FTS5 phrases, each quoted. A run of a script without spaces becomes phrases of its characters.
 * Only letters, digits and marks are taken, so operators, column names and quotes in the text have no effect.
 */
export function searchTerms(query: string): readonly string[] {
  const words = query.normalize("NFC").match(/[\p{L}\p{N}][\p{L}\p{N}\p{M}]*/gu) ?? [];
  const terms = new Set<string>();
  for (const word of words) {
    for (const run of word.match(scriptRun) ?? []) {
      for (const part of partsOf(run)) {
        if (terms.size >= maxSearchTerms) return [...terms];
        terms.add(`"${indexedText(part).trim().replace(/ {2,}/g, " ").toLowerCase()}"`);
      }
    }
  }
  return [...terms];
}

/** A run of a script without spaces in phrases; the beginning of any other word. */
function partsOf(run: string): readonly string[] {
  if (run.search(unspacedChar) === 0) return run.match(phraseOf) ?? [];
  return [run.slice(0, /\p{M}/u.test(run) ? maxMarkedWordChars : maxWordChars).toWellFormed()];
}

const phraseOf = new RegExp(`[^]{1,${maxPhraseChars}}`, "gu");

/** An FTS5 expression that matches any of the terms. */
export const matchExpression = (terms: readonly string[]): string => terms.join(" OR ");
