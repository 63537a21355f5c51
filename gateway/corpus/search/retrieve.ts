/**
 * Finds the fragments that answer a question: by how much of its words they hold, or by words and vectors, whose two
 * rankings are fused.
 */
import { type CorpusRow, findCorpus } from "../../../db/corpora.ts";
import { findFragments, readHits, visibleFragmentIds } from "../../../db/fragments.ts";
import { type CorpusId, type FileId, type FragmentId, parseId, type TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import type { Attributes, FragmentPage } from "../../../db/schema.ts";
import type { CacheSalt } from "../../../worker/contract/units.ts";
import { ApiError } from "../../base/errors.ts";
import { streamSafe } from "../../base/stream-safe.ts";
import type { CorpusService } from "../base/corpora.ts";
import { corpusLimits } from "../base/limits.ts";
import type { CorpusDeps, Reranker } from "../base/ports.ts";
import type { Vectorizer } from "../ingest/vectorize.ts";
import type { AttributeFilter } from "./attribute-filter.ts";
import type { RankedFragment, Rankings } from "./rank.ts";
import type { Searches } from "./searches.ts";

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
  /** Aborted when nobody waits for what is found any more. */
  readonly signal?: AbortSignal | undefined;
  /** true: what is found stands in no prompt yet, so its KV may be brought nearer meanwhile. */
  readonly isAhead?: boolean;
}

export interface HybridWeights {
  readonly embedding: number;
  readonly text: number;
}

export interface RetrieveDeps {
  readonly db: Db;
  readonly corpora: CorpusService;
  readonly searches: Pick<Searches, "rank">;
  readonly vectors: Pick<Vectorizer, "queryVector"> | undefined;
  readonly hybridByDefault: boolean;
  readonly reranker?: CorpusDeps["reranker"];
  readonly onSearched?: CorpusDeps["onSearched"];
}

/** A value that is there at once, or a promise of it. */
export type Awaitable<T> = T | Promise<T>;

export interface RetrievedFragment {
  readonly id: FragmentId;
  readonly corpusId: CorpusId;
  readonly fileId: FileId;
  readonly filename: string;
  readonly attributes: Attributes;
  readonly text: string;
  /** Pages of the file that the text stands on; absent where the file has none. */
  readonly pages?: readonly FragmentPage[];
  /**
   * In 0..1: what the cross-encoder says, where one scored it; else, where words alone are searched, the share of the
   * question that the fragment holds (`WordHit.share`), and where vectors are too, the fused rank (see `fuse`).
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

/**
 * Returns fragments, best first. Equal scores are ordered by age, so the same question over the same corpora has the
 * same answer.
 * @throws ApiError not_found, with param, when the tenant may not see one of the corpora; invalid_value when vectors
 *   are asked for but not available; the signal's reason
 */
export async function retrieve(deps: RetrieveDeps, request: RetrieveRequest): Promise<readonly RetrievedFragment[]> {
  requireAll(deps.corpora, request);
  const query = streamSafe(request.query.slice(0, corpusLimits.maxQueryChars));
  const onTokens = (count: number): void => deps.onSearched?.(request.tenantId, count);
  const weights = request.weights ?? (deps.hybridByDefault ? hybrid : byWords);
  const vector = weights.embedding > 0 ? await deps.vectors?.queryVector(query, onTokens) : undefined;
  if (vector === undefined && request.weights !== undefined && weights.embedding > 0) {
    const message = "This server cannot search by vectors.";
    throw new ApiError("unsupported_field", { param: "ranking_options.hybrid_search", message });
  }
  // The corpora are looked up again: one may have been deleted while the question was embedded.
  const corpora = requireAll(deps.corpora, request);
  deps.corpora.touch(corpora);
  const limit = Math.min(Math.max(1, Math.trunc(request.maxResults)), corpusLimits.maxSearchResults);
  const reranker = request.rerank === false ? undefined : deps.reranker;
  const wanted = reranker === undefined ? limit : Math.max(limit, corpusLimits.rerankedHits);
  const search = {
    ...{ query, vector, byWords: weights.text > 0, filters: request.filters },
    corpora: corpora.map(({ seq, id }) => ({ seq, id })),
    limit: vector === undefined ? wanted : Math.max(minHits, wanted * hitsPerResult),
  };
  const rankings = await deps.searches.rank(request.tenantId, search, request.signal);
  const found = fusedBy(vector === undefined ? byWords : weights, rankings);
  const threshold = request.scoreThreshold ?? 0;
  if (reranker === undefined) {
    const enough = found.filter(({ score }) => score >= threshold);
    return retrieved(deps.corpora, request, visibleHits(deps.db, enough, limit));
  }
  const scored = await scoredAgain(reranker, query, visibleHits(deps.db, found, wanted), onTokens);
  const visible = visibleFragmentIds(
    deps.db,
    scored.map(({ id }) => id),
  );
  const enough = scored.filter(({ id, score }) => score >= threshold && visible.has(id));
  return retrieved(deps.corpora, request, enough.slice(0, limit));
}

interface ScoredFragment {
  readonly hit: RankedFragment;
  readonly score: number;
}

interface ScoredHit extends Omit<RetrievedFragment, "corpusId" | "salt"> {
  readonly corpusSeq: number;
}

/** Words alone are scored by their shares. */
function fusedBy(weights: HybridWeights, { words, near }: Rankings): readonly ScoredFragment[] {
  if (weights.embedding <= 0) return words.map((hit) => ({ hit, score: hit.rank }));
  return fuse([
    { weight: weights.text, hits: words },
    { weight: weights.embedding, hits: near },
  ]);
}

/** The texts of the first that are visible: one that was deleted since it was ranked is none. */
function visibleHits(db: Db, ranked: readonly ScoredFragment[], most: number): readonly ScoredHit[] {
  const found: ScoredHit[] = [];
  for (let at = 0; at < ranked.length && found.length < most; at += most) {
    const piece = ranked.slice(at, at + most);
    const hits = readHits(
      db,
      piece.map(({ hit: { seq } }) => seq),
    );
    for (const { hit, score } of piece) {
      const row = hits.get(hit.seq);
      if (row === undefined) continue;
      const { pages, ...named } = row;
      found.push({ ...named, ...(pages === null ? {} : { pages }), corpusSeq: hit.corpusSeq, score });
    }
  }
  return found.slice(0, most);
}

/** The hits in the order of the cross-encoder's scores; of equal ones the order stays. */
async function scoredAgain(
  reranker: Reranker,
  query: string,
  hits: readonly ScoredHit[],
  onTokens: (count: number) => void,
): Promise<readonly ScoredHit[]> {
  if (hits.length === 0) return [];
  const scores = await reranker.rerank(
    query,
    hits.map(({ text }) => text),
    onTokens,
  );
  const found = hits.map((hit, index) => ({ ...hit, score: scores[index] ?? 0 }));
  return found.sort((a, b) => b.score - a.score);
}

/** The hits with what is true of their corpora now. @throws ApiError not_found, when one of them was deleted meanwhile */
function retrieved(
  corpora: CorpusService,
  request: RetrieveRequest,
  hits: readonly ScoredHit[],
): readonly RetrievedFragment[] {
  const rows = new Map(requireAll(corpora, request).map((corpus) => [corpus.seq, corpus]));
  return hits.flatMap(({ corpusSeq, ...hit }) => {
    const corpus = rows.get(corpusSeq);
    return corpus === undefined ? [] : [{ ...hit, corpusId: corpus.id, salt: corpora.saltOf(corpus) }];
  });
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
