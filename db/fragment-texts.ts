/**
 * Finds fragments of a corpus with the same text. When a file is replaced by a new version, most of its fragments are
 * in both: what was computed for the old ones holds for the new ones.
 *
 * Every lookup goes through few rows, however often a text occurs, so it may miss a fragment. Then something is
 * computed again that need not have been; no answer changes.
 */
import type { FragmentId } from "./ids.ts";
import type { Db } from "./open.ts";

/** Rows with one key that a lookup goes through. */
const rowsPerLookup = 64;
/** Fragments that begin alike share the first block of their KV only when at least so many characters are the same. */
const headChars = 24;

export interface TextKeys {
  readonly textKey: Buffer;
  readonly headKey: Buffer;
}

export interface FragmentText {
  readonly id: FragmentId;
  readonly text: string;
}

/** Keys of a text within its corpus. In another corpus the same text has other keys. */
export function textKeysOf(corpusSeq: number, text: string): TextKeys {
  const keyOf = (part: string): Buffer =>
    new Bun.CryptoHasher("sha256").update(`${corpusSeq} ${part}`).digest().subarray(0, 16);
  return { textKey: keyOf(text), headKey: keyOf(text.slice(0, headChars)) };
}

/** Whether a visible fragment of the corpus has this text. */
export function isTextVisible(db: Db, { textKey }: TextKeys): boolean {
  // Newest files first, because a file's new version was attached after the old one.
  const sql = `select 1 from (
      select corpus_file_seq as file from fragments where text_key = ? order by corpus_file_seq desc limit ${rowsPerLookup}
    ) join corpus_files cf on cf.seq = file and cf.status = 'completed'
    join corpora c on c.id = cf.corpus_id and c.deleted_at is null limit 1`;
  return db.statement("isTextVisible", () => db.client.query<object, [Buffer]>(sql).get(textKey)) !== null;
}

/** Visible fragments that begin as this one, those of the newest files and at a similar place in them first. */
export function visibleWithHead(
  db: Db,
  { headKey, ordinal }: Pick<TextKeys, "headKey"> & { readonly ordinal: number },
  limit: number,
): readonly FragmentText[] {
  const sql = `select f.id, f.text from (
      select seq, corpus_file_seq as file, ordinal from fragments
      where head_key = ? order by corpus_file_seq desc limit ${rowsPerLookup}
    ) near join corpus_files cf on cf.seq = near.file and cf.status = 'completed'
    join corpora c on c.id = cf.corpus_id and c.deleted_at is null
    join fragments f on f.seq = near.seq
    order by near.file desc, abs(near.ordinal - ?) limit ?`;
  return db.statement("visibleWithHead", () =>
    db.client.query<FragmentText, [Buffer, number, number]>(sql).all(headKey, ordinal, limit),
  );
}

/** A visible fragment of the corpus, whichever; undefined: there is none. */
export function anyVisible(db: Db, corpusSeq: number): FragmentText | undefined {
  const sql = `select f.id, f.text from corpora c
    join corpus_files cf on cf.corpus_id = c.id and cf.status = 'completed'
    cross join fragments f on f.corpus_file_seq = cf.seq
    where c.seq = ? and c.deleted_at is null limit 1`;
  const query = () => db.client.query<FragmentText, [number]>(sql).get(corpusSeq);
  return db.statement("anyVisible", query) ?? undefined;
}

/** A fragment of the same corpus and text that has a vector of the model; undefined: none is found. */
export function seqOfEmbeddedTwin(db: Db, seq: number, modelSeq: number): number | undefined {
  // Texts are long, so they are read one by one, of those alone that have a vector.
  const sql = `select twin.seq from fragments own cross join (
      select seq from fragments
      where text_key = (select text_key from fragments where seq = ?1) order by corpus_file_seq limit ${rowsPerLookup}
    ) near cross join fragment_vectors v on v.fragment_seq = near.seq and v.model_seq = ?2
    cross join fragments twin on twin.seq = near.seq and twin.text = own.text
    where own.seq = ?1 limit 1`;
  const row = db.statement("seqOfEmbeddedTwin", () =>
    db.client.query<{ seq: number }, number[]>(sql).get(seq, modelSeq),
  );
  return row?.seq;
}
