/**
 * Finds the fragments that answer a question: by how much of its words they hold, or by words and vectors, whose two
 * rankings are fused.
 */
import { areLive, type CorpusRow, findCorpus } from "../../../db/corpora.ts";
import { listFileAttributes } from "../../../db/corpus-files.ts";
import { findFragments, visibleFragmentIds } from "../../../db/fragments.ts";
import { searchFullText } from "../../../db/fts.ts";
import type { Hit } from "../../../db/hits.ts";
import { type CorpusId, parseId, type TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import { searchVectors } from "../../../db/vectors.ts";
import type { CacheSalt } from "../../../worker/contract/units.ts";
import { ApiError } from "../../base/errors.ts";
import { Pace } from "../../base/pace.ts";
import { streamSafe } from "../../base/stream-safe.ts";
import type { CorpusService } from "../base/corpora.ts";
import { corpusLimits } from "../base/limits.ts";
import type { CorpusDeps, Reranker } from "../base/ports.ts";
import type { QueryVector, Vectorizer } from "../ingest/vectorize.ts";
import { type AttributeFilter, passesFilter } from "./filters.ts";

export interface RetrieveRequest {
  readonly tenantId: TenantId;
  readonly vectorStoreIds: readonly string[];
  readonly query: string;
  /** At least 1 and at most 50. */
  readonly maxResults: number;
  readonly filters?: AttributeFilter | undefined;
  /** In 0..1; fragments with lower scores are left out. */
  readonly scoreThreshold?: number | undefined;
  /** Weights of the two rankings, 0 or more, not both 0; absent: the server's default. */
  readonly weights?: HybridWeights | undefined;
  /** false: what is found is not scored again by the server's cross-encoder, if it has one. */
  readonly rerank?: boolean | undefined;
}

export interface HybridWeights {
  readonly embedding: number;
  readonly text: number;
}

export interface RetrieveDeps {
  readonly db: Db;
  readonly corpora: CorpusService;
  readonly vectors: Pick<Vectorizer, "queryVector"> | undefined;
  readonly hybridByDefault: boolean;
  readonly reranker?: CorpusDeps["reranker"];
  readonly onSearched?: CorpusDeps["onSearched"];
}

/** A value that is there at once, or a promise of it. */
export type Awaitable<T> = T | Promise<T>;

export interface RetrievedFragment extends Omit<Hit, "seq"> {
  readonly corpusId: CorpusId;
  /**
   * In 0..1: what the cross-encoder says, where one scored it; else, where words alone are searched, the share of the
   * question that the fragment holds (`SearchHit.share`), and where vectors are too, the fused rank (see `fuse`).
   */
  readonly score: number;
  /** The salt of the fragment's corpus; the keys of the fragment's span are made with it. */
  readonly salt: CacheSalt;
}

/** A fragment that was asked for by its id. */
export type NamedFragment = Omit<RetrievedFragment, "score" | "attributes">;

const byWords: HybridWeights = { embedding: 0, text: 1 };
const hybrid: HybridWeights = { embedding: 1, text: 1 };
/**
 * For each result that is wanted, this many hits of each ranking are fused. A fragment further down in both rankings is
 * not among the best.
 */
const hitsPerResult = 2;
const minHits = 20;

interface RankedHit extends Hit {
  readonly corpus: CorpusRow;
  /** Higher is better. */
  readonly rank: number;
  /** Decides between equal ranks. */
  readonly nextRank: number;
}

/**
 * Returns fragments, best first. Equal scores are ordered by age, so the same question over the same corpora has the
 * same answer.
 * @throws ApiError not_found, with param, when the tenant may not see one of the corpora; invalid_value when vectors
 *   are asked for but not available
 */
export async function retrieve(deps: RetrieveDeps, request: RetrieveRequest): Promise<readonly RetrievedFragment[]> {
  requireAll(deps.corpora, request);
  const query = streamSafe(request.query.slice(0, corpusLimits.maxQueryChars));
  const passing = await passingFiles(deps, request);
  const onTokens = (count: number): void => deps.onSearched?.(request.tenantId, count);
  const weights = request.weights ?? (deps.hybridByDefault ? hybrid : byWords);
  const question = weights.embedding > 0 ? await deps.vectors?.queryVector(query, onTokens) : undefined;
  if (question === undefined && request.weights !== undefined && weights.embedding > 0) {
    const message = "This server cannot search by vectors.";
    throw new ApiError("unsupported_field", { param: "ranking_options.hybrid_search", message });
  }
  // The corpora are looked up again: one may have been deleted while the files were filtered and the question embedded.
  const rows = requireAll(deps.corpora, request);
  deps.corpora.touch(rows);
  const limit = Math.min(Math.max(1, Math.trunc(request.maxResults)), corpusLimits.maxSearchResults);
  const reranker = request.rerank === false ? undefined : deps.reranker;
  const wanted = reranker === undefined ? limit : Math.max(limit, corpusLimits.rerankedHits);
  const seqs = rows.map(({ seq }) => seq);
  const pace = new Pace();
  let othersRan = false;
  const search = {
    passing,
    query,
    goOn: async () => {
      if (!(await pace.breathe())) return;
      othersRan = true;
      // A corpus that was deleted meanwhile has no index any more. Whether the tenant may still see it is asked at the end.
      if (!areLive(deps.db, seqs)) requireAll(deps.corpora, request);
    },
    limit: question === undefined ? wanted : Math.max(minHits, wanted * hitsPerResult),
  };
  const words = weights.text > 0 ? await wordHits(deps.db, rows, search) : [];
  const near = question === undefined ? [] : await vectorHits(deps.db, rows, search, question);
  const ranked =
    question === undefined
      ? words.map((hit) => ({ hit, score: hit.rank }))
      : fuse([
          { weight: weights.text, hits: words },
          { weight: weights.embedding, hits: near },
        ]);
  const found = reranker === undefined ? ranked : await scoredAgain(reranker, query, ranked.slice(0, wanted), onTokens);
  othersRan ||= reranker !== undefined;
  if (othersRan) requireAll(deps.corpora, request);
  const ids = found.map(({ hit }) => hit.id);
  const visible = othersRan ? visibleFragmentIds(deps.db, ids) : undefined;
  const threshold = request.scoreThreshold ?? 0;
  return found
    .filter(({ hit, score }) => score >= threshold && visible?.has(hit.id) !== false)
    .slice(0, limit)
    .map(({ hit: { corpus, rank, nextRank, seq, ...hit }, score }) => {
      return { ...hit, corpusId: corpus.id, salt: deps.corpora.saltOf(corpus), score };
    });
}

interface ScoredHit {
  readonly hit: RankedHit;
  readonly score: number;
}

/** The hits in the order of the cross-encoder's scores; of equal ones the order stays. */
async function scoredAgain(
  reranker: Reranker,
  query: string,
  ranked: readonly ScoredHit[],
  onTokens: (count: number) => void,
): Promise<readonly ScoredHit[]> {
  const texts = ranked.map(({ hit }) => hit.text);
  if (texts.length === 0) return [];
  const scores = await reranker.rerank(query, texts, onTokens);
  const found = ranked.map(({ hit }, index) => ({ hit, score: scores[index] ?? 0 }));
  return found.sort((a, b) => b.score - a.score);
}

const byRank = (a: RankedHit, b: RankedHit): number => b.rank - a.rank || b.nextRank - a.nextRank || a.seq - b.seq;

interface CorpusSearch {
  readonly query: string;
  readonly limit: number;
  readonly passing: PassingFiles;
  /** Yields to other work when the current slice is used up. @throws ApiError not_found */
  readonly goOn: () => Promise<void>;
}

async function wordHits(
  db: Db,
  corpora: readonly CorpusRow[],
  { query, limit, passing, goOn }: CorpusSearch,
): Promise<readonly RankedHit[]> {
  const found: RankedHit[] = [];
  for (const corpus of corpora) {
    const pieces = searchFullText(db, corpus.seq, query, limit, passing?.get(corpus.id));
    let piece = pieces.next();
    for (; piece.done !== true; piece = pieces.next()) await goOn();
    found.push(...piece.value.map(({ share, bm25, ...hit }) => ({ ...hit, corpus, rank: share, nextRank: bm25 })));
    await goOn();
  }
  return found.sort(byRank);
}

async function vectorHits(
  db: Db,
  corpora: readonly CorpusRow[],
  { limit, passing, goOn }: CorpusSearch,
  question: QueryVector,
): Promise<readonly RankedHit[]> {
  const found: RankedHit[] = [];
  for (const corpus of corpora) {
    const hits = searchVectors(db, corpus.seq, { ...question, limit }, passing?.get(corpus.id));
    found.push(...hits.map(({ cosine, ...hit }) => ({ ...hit, corpus, rank: cosine, nextRank: 0 })));
    await goOn();
  }
  return found.sort(byRank);
}

function requireAll(corpora: CorpusService, request: RetrieveRequest): readonly CorpusRow[] {
  const ids = [...new Set(request.vectorStoreIds)];
  if (ids.length > corpusLimits.maxCorporaPerSearch) {
    const message = `At most ${corpusLimits.maxCorporaPerSearch} vector stores can be searched at once.`;
    throw new ApiError("invalid_value", { param: "vector_store_ids", message });
  }
  try {
    return ids.map((id) => corpora.require(request.tenantId, id, "read"));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const message = error.code === "not_found" ? "No such vector store." : error.message;
    throw new ApiError(error.code, { param: "vector_store_ids", message });
  }
}

/** The files of each corpus that match the filter; undefined: all files. */
type PassingFiles = ReadonlyMap<CorpusId, readonly number[]> | undefined;

const filesPerPiece = 500;

async function passingFiles({ db, corpora }: RetrieveDeps, request: RetrieveRequest): Promise<PassingFiles> {
  const { filters } = request;
  if (filters === undefined) return undefined;
  const pace = new Pace();
  const passing = new Map<CorpusId, readonly number[]>();
  for (const { id } of requireAll(corpora, request)) {
    const seqs: number[] = [];
    for (let afterSeq = 0; ; ) {
      const piece = listFileAttributes(db, id, afterSeq, filesPerPiece);
      for (const { seq, attributes } of piece) if (passesFilter(filters, attributes)) seqs.push(seq);
      if (piece.length < filesPerPiece) break;
      afterSeq = piece.at(-1)?.seq ?? afterSeq;
      await pace.breathe();
    }
    passing.set(id, seqs);
  }
  return passing;
}

/**
 * Reads fragments in the order of the ids; undefined for each id without a fragment and where the tenant may not see
 * the corpus. Fragments of a file are visible only once the file is completed.
 */
export function readFragments(
  db: Db,
  corpora: CorpusService,
  tenantId: TenantId,
  rawIds: readonly string[],
): readonly (NamedFragment | undefined)[] {
  const ids = rawIds.map((rawId) => parseId("fragment", rawId));
  const rows = findFragments(
    db,
    ids.filter((id) => id !== undefined),
  );
  const salts = new Map<CorpusId, CacheSalt | undefined>();
  for (const corpusId of new Set(rows.map((row) => row.corpusId))) {
    const corpus = findCorpus(db, tenantId, corpusId, "read");
    salts.set(corpusId, corpus === undefined ? undefined : corpora.saltOf(corpus));
  }
  const found = new Map(rows.map((row) => [row.id, row]));
  return ids.map((id) => {
    const row = id === undefined ? undefined : found.get(id);
    const salt = row === undefined ? undefined : salts.get(row.corpusId);
    if (row === undefined || salt === undefined) return undefined;
    const { pages, ...fragment } = row;
    return { ...fragment, ...(pages === null ? {} : { pages }), salt };
  });
}

const rankConstant = 60;

export interface Ranking<Hit> {
  /** 0 or more. */
  readonly weight: number;
  /** Best first. */
  readonly hits: readonly Hit[];
}

/**
 * Reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009): each ranking gives each of its hits weight / (60 +
 * rank). Scores are divided by what a hit would have that is first in all rankings, so they are in 0..1. The result is
 * ordered best first, equal scores by `seq`. A hit of several rankings is taken from the first of them.
 */
export function fuse<Hit extends { readonly seq: number }>(
  rankings: readonly Ranking<Hit>[],
): readonly { readonly hit: Hit; readonly score: number }[] {
  const fused = new Map<number, { readonly hit: Hit; score: number }>();
  const highest = rankings.reduce((sum, { weight }) => sum + weight, 0) / (rankConstant + 1);
  for (const { weight, hits } of rankings) {
    if (weight <= 0) continue;
    for (const [index, hit] of hits.entries()) {
      const entry = fused.getOrInsertComputed(hit.seq, () => ({ hit, score: 0 }));
      entry.score += weight / (rankConstant + index + 1) / highest;
    }
  }
  return [...fused.values()].sort((a, b) => b.score - a.score || a.hit.seq - b.hit.seq);
}
