/**
 * Vector search by sqlite-vec, with one index for each corpus. The index holds one bit for each dimension, its sign,
 * and finds candidates by Hamming distance. Candidates are ranked by the cosine of the vectors themselves, which are
 * stored with one byte for each dimension. Only fragments of completed files get vectors.
 */
import { seqOfEmbeddedTwin } from "./fragment-texts.ts";
import type { Db } from "./open.ts";

/** The signs of only these first dimensions are indexed. The others count only in the ranking. */
const maxIndexedDimensions = 512;
/** The least number of candidates of a search: enough to find nearly what ranking all vectors would find. */
const minCandidates = 64;
const candidatesPerResult = 2;

export interface VectorModel {
  readonly seq: number;
  readonly dimensions: number;
}

export interface VectorHit {
  readonly seq: number;
  /** -1..1. */
  readonly cosine: number;
}

/** A fragment that has no vector of the model yet. */
export interface UnembeddedFragment {
  readonly seq: number;
  readonly text: string;
  readonly corpusSeq: number;
}

function tableOf(corpusSeq: number): string {
  if (!Number.isSafeInteger(corpusSeq) || corpusSeq < 1) throw new RangeError("corpusSeq is not a row number");
  return `vectors_${corpusSeq}`;
}

/** Finds the model by its id, or adds it. */
export function vectorModel(db: Db, id: string, dimensions: number): VectorModel {
  return db.statement("vectorModel", () => {
    const insert = "insert into embedding_models (id, dimensions) values (?, ?) on conflict do nothing";
    db.client.query(insert).run(id, dimensions);
    const select = "select seq, dimensions from embedding_models where id = ?";
    const row = db.client.query<VectorModel, [string]>(select).get(id);
    if (row === null || row.dimensions !== dimensions) throw new RangeError("a model's dimensions have changed");
    return row;
  });
}

/**
 * Drops the indexes of other models and of deleted corpora, and removes the entries of fragments that were removed
 * while the extension was missing. Call at the start: it costs next to nothing where nothing of that has happened.
 */
export function repairVectorIndexes(db: Db, model: VectorModel): void {
  if (!db.hasVectors) return;
  db.transaction("repairVectorIndexes", () => {
    const sql = `select i.corpus_seq, i.model_seq <> ? or c.seq is null as is_useless
      from vector_indexes i left join corpora c on c.seq = i.corpus_seq
      where i.is_stale or i.model_seq <> ? or c.seq is null`;
    const rows = db.client.query<{ corpus_seq: number; is_useless: number }, number[]>(sql).all(model.seq, model.seq);
    for (const { corpus_seq: corpusSeq, is_useless: isUseless } of rows) {
      if (isUseless) dropVectors(db, corpusSeq);
      else
        db.client.run(`delete from ${tableOf(corpusSeq)} where seq not in (select fragment_seq from fragment_vectors)`);
    }
    db.client.run("update vector_indexes set is_stale = 0 where is_stale");
    // A vector whose index was dropped is not found any more, so its fragment has to be embedded again.
    const others = "select seq from embedding_models where seq <> ?";
    if (db.client.query(others).get(model.seq) === null) return;
    db.client.query(`delete from fragment_vectors where model_seq in (${others})`).run(model.seq);
    db.client.query("delete from embedding_models where seq <> ?").run(model.seq);
  });
}

/** Visible fragments with `afterSeq` < seq <= `lastSeq` that have no vector of the model, oldest first. */
export function listUnembedded(
  db: Db,
  model: VectorModel,
  range: { readonly afterSeq: number; readonly lastSeq: number; readonly limit: number },
): readonly UnembeddedFragment[] {
  const sql = `
    select f.seq, f.text, c.seq as corpusSeq
    from fragments f
    join corpus_files cf on cf.seq = f.corpus_file_seq and cf.status = 'completed'
    join corpora c on c.id = cf.corpus_id and c.deleted_at is null
    where f.seq > ? and f.seq <= ?
      and not exists (select 1 from fragment_vectors v where v.fragment_seq = f.seq and v.model_seq = ?)
    order by f.seq limit ?`;
  return db.statement("listUnembedded", () =>
    db.client.query<UnembeddedFragment, number[]>(sql).all(range.afterSeq, range.lastSeq, model.seq, range.limit),
  );
}

/** The fragments of one file without a vector, in the order of its text. */
export function listUnembeddedOf(
  db: Db,
  model: VectorModel,
  file: { readonly seq: number; readonly afterOrdinal: number; readonly limit: number },
): readonly (UnembeddedFragment & { readonly ordinal: number })[] {
  const sql = `
    select f.seq, f.ordinal, f.text, c.seq as corpusSeq
    from corpus_files cf
    join corpora c on c.id = cf.corpus_id and c.deleted_at is null
    cross join fragments f on f.corpus_file_seq = cf.seq
    where cf.seq = ? and cf.status = 'completed' and f.ordinal > ?
      and not exists (select 1 from fragment_vectors v where v.fragment_seq = f.seq and v.model_seq = ?)
    order by f.ordinal limit ?`;
  return db.statement("listUnembeddedOf", () =>
    db.client
      .query<UnembeddedFragment & { readonly ordinal: number }, number[]>(sql)
      .all(file.seq, file.afterOrdinal, model.seq, file.limit),
  );
}

/** The `seq` of the newest fragment that may be visible. */
export function lastVisibleSeq(db: Db): number {
  const sql = `select f.seq from fragments f
    cross join corpus_files cf on cf.seq = f.corpus_file_seq and cf.status = 'completed'
    order by f.seq desc limit 1`;
  return db.statement("lastVisibleSeq", () => db.client.query<{ seq: number }, []>(sql).get())?.seq ?? 0;
}

/** Whether any corpus has an index, of whatever model. */
export function hasVectorIndexes(db: Db): boolean {
  const sql = "select exists (select 1 from vector_indexes) as found";
  return db.statement("hasVectorIndexes", () => db.client.query<{ found: number }, []>(sql).get())?.found === 1;
}

/** Stores vectors and indexes them. Fragments that are gone or invisible are left out. */
export function insertVectors(
  db: Db,
  model: VectorModel,
  piece: readonly { readonly seq: number; readonly corpusSeq: number; readonly vector: Float32Array }[],
): void {
  if (!db.hasVectors) return;
  db.transaction("insertVectors", () => {
    const insert = `insert into fragment_vectors (fragment_seq, model_seq, vector)
      select f.seq, ?, ? from fragments f
      join corpus_files cf on cf.seq = f.corpus_file_seq and cf.status = 'completed'
      join corpora c on c.id = cf.corpus_id and c.deleted_at is null
      where f.seq = ? on conflict do nothing`;
    for (const { seq, corpusSeq, vector } of piece) {
      const { changes } = db.client.query(insert).run(model.seq, signedBytes(vector), seq);
      if (changes === 0) continue;
      const table = createIndex(db, corpusSeq, model);
      db.client.query(`insert into ${table} (seq, code) values (?, vec_bit(?))`).run(seq, signBits(vector));
    }
  });
}

/**
 * Gives fragments the vectors of others with the same text, in the same corpus.
 * @returns the fragments that are left, whose vectors have to be computed
 */
export function copyVectors(
  db: Db,
  model: VectorModel,
  piece: readonly UnembeddedFragment[],
): readonly UnembeddedFragment[] {
  if (!db.hasVectors) return piece;
  return db.transaction("copyVectors", () =>
    piece.filter(({ seq, corpusSeq }) => {
      const twin = seqOfEmbeddedTwin(db, seq, model.seq);
      if (twin === undefined || indexModel(db, corpusSeq) !== model.seq) return true;
      const table = tableOf(corpusSeq);
      const row = db.client.query<{ code: Uint8Array }, [number]>(`select code from ${table} where seq = ?`).get(twin);
      if (row === null) return true;
      db.client.query(`insert into ${table} (seq, code) values (?, vec_bit(?))`).run(seq, row.code);
      const vector = `insert into fragment_vectors (fragment_seq, model_seq, vector)
        select ?, model_seq, vector from fragment_vectors where fragment_seq = ?`;
      db.client.query(vector).run(seq, twin);
      return false;
    }),
  );
}

/** Removes index entries of fragments that are being removed. Their vectors are removed with their rows. */
export function unindexVectors(db: Db, corpusSeq: number, fragmentSeqs: readonly number[]): void {
  if (indexModel(db, corpusSeq) === undefined) return;
  if (!db.hasVectors) {
    const stale = "update vector_indexes set is_stale = 1 where corpus_seq = ?";
    db.statement("unindexVectors", () => db.client.query(stale).run(corpusSeq));
    return;
  }
  const sql = `delete from ${tableOf(corpusSeq)} where seq = ?`;
  db.statement("unindexVectors", () => {
    const statement = db.client.query(sql);
    for (const seq of fragmentSeqs) statement.run(seq);
  });
}

/** Drops a corpus's index. If the extension is missing, the index stays until a start that has the extension. */
export function dropVectors(db: Db, corpusSeq: number): void {
  if (!db.hasVectors) return;
  const table = tableOf(corpusSeq);
  db.statement("dropVectors", () => {
    db.client.run(`drop table if exists ${table}`);
    db.client.query("delete from vector_indexes where corpus_seq = ?").run(corpusSeq);
  });
}

/**
 * The fragments of a corpus that are nearest to the vector, nearest first, ties by age. Only fragments of completed
 * files are found.
 * @param corpusFileSeqs limits the search to fragments of these files
 */
export function searchVectors(
  db: Db,
  corpusSeq: number,
  query: { readonly model: VectorModel; readonly vector: Float32Array; readonly limit: number },
  corpusFileSeqs?: readonly number[],
): readonly VectorHit[] {
  if (!db.hasVectors || query.limit < 1 || indexModel(db, corpusSeq) !== query.model.seq) return [];
  const hits = nearest(db, corpusSeq, query, corpusFileSeqs);
  if (hits.length >= query.limit || corpusFileSeqs !== undefined) return hits;
  // Files that are being deleted could otherwise take all candidates' places.
  const seqs = db.statement("listCompletedFiles", () =>
    db.client
      .query<{ seq: number }, [number]>(
        `select cf.seq from corpus_files cf join corpora c on c.id = cf.corpus_id
         where c.seq = ? and cf.status = 'completed'
           and exists (select 1 from corpus_files d where d.corpus_id = c.id and d.status = 'deleting')`,
      )
      .all(corpusSeq),
  );
  if (seqs.length === 0) return hits;
  return nearest(
    db,
    corpusSeq,
    query,
    seqs.map(({ seq }) => seq),
  );
}

function nearest(
  db: Db,
  corpusSeq: number,
  { model, vector, limit }: Parameters<typeof searchVectors>[2],
  corpusFileSeqs: readonly number[] | undefined,
): readonly VectorHit[] {
  const filter =
    corpusFileSeqs === undefined
      ? ""
      : "and seq in (select seq from fragments where corpus_file_seq in (select value from json_each(?)))";
  const sql = `
    with candidates as materialized (
      select seq from ${tableOf(corpusSeq)} where code match vec_bit(?) and k = ? ${filter}
    )
    select f.seq, coalesce(1 - vec_distance_cosine(vec_int8(v.vector), vec_int8(?)), 0) as cosine
    from candidates
    join fragment_vectors v on v.fragment_seq = candidates.seq and v.model_seq = ?
    join fragments f on f.seq = candidates.seq
    join corpus_files cf on cf.seq = f.corpus_file_seq and cf.status = 'completed'
    order by cosine desc, f.seq limit ?`;
  const candidates = Math.max(minCandidates, limit * candidatesPerResult);
  const files = corpusFileSeqs === undefined ? [] : [JSON.stringify(corpusFileSeqs)];
  const parameters = [signBits(vector), candidates, ...files, signedBytes(vector), model.seq, limit];
  return db.statement("searchVectors", () =>
    db.client.query<VectorHit, (Uint8Array | number | string)[]>(sql).all(...parameters),
  );
}

function indexModel(db: Db, corpusSeq: number): number | undefined {
  const sql = "select model_seq from vector_indexes where corpus_seq = ?";
  return db.statement("indexModel", () => db.client.query<{ model_seq: number }, [number]>(sql).get(corpusSeq))
    ?.model_seq;
}

/** @returns the index's table */
function createIndex(db: Db, corpusSeq: number, model: VectorModel): string {
  const table = tableOf(corpusSeq);
  const present = indexModel(db, corpusSeq);
  if (present === model.seq) return table;
  if (present !== undefined) dropVectors(db, corpusSeq);
  const bits = codeBytes(model.dimensions) * 8;
  db.client.run(`create virtual table ${table} using vec0(seq integer primary key, code bit[${bits}])`);
  db.client
    .query("insert into vector_indexes (corpus_seq, model_seq, is_stale) values (?, ?, 0)")
    .run(corpusSeq, model.seq);
  return table;
}

const codeBytes = (dimensions: number): number => Math.ceil(Math.min(dimensions, maxIndexedDimensions) / 8);

function signBits(vector: Float32Array): Uint8Array {
  const code = new Uint8Array(codeBytes(vector.length));
  const dimensions = Math.min(vector.length, maxIndexedDimensions);
  for (let i = 0; i < dimensions; i++) if (vector[i] > 0) code[i >> 3] |= 1 << (i & 7);
  return code;
}

/** The vector as signed bytes, scaled so that its largest number is 127. The scale does not change the cosine. */
function signedBytes(vector: Float32Array): Uint8Array {
  const largest = vector.reduce((max, value) => Math.max(max, Math.abs(value)), 0);
  const scale = largest > 0 ? 127 / largest : 0;
  return new Uint8Array(Int8Array.from(vector, (value) => Math.round(value * scale)).buffer);
}
