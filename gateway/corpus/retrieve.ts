/** Finds the fragments that answer a question: bm25 over each corpus' own full-text index. */
import { type CorpusRow, findCorpus } from "../../db/corpora.ts";
import { listFileAttributes } from "../../db/corpus-files.ts";
import { findFragments } from "../../db/fragments.ts";
import { searchFullText } from "../../db/fts.ts";
import { type CorpusId, type FileId, type FragmentId, parseId, type TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Attributes } from "../../db/schema.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { ApiError } from "../errors.ts";
import type { CorpusService } from "./corpora.ts";
import { type AttributeFilter, passesFilter } from "./filters.ts";
import { corpusLimits } from "./limits.ts";

export interface RetrieveRequest {
  readonly tenantId: string;
  readonly vectorStoreIds: readonly string[];
  readonly query: string;
  /** 1..50. */
  readonly maxResults: number;
  readonly filters?: AttributeFilter | undefined;
  /** 0..1; lower scores are left out. */
  readonly scoreThreshold?: number | undefined;
}

export interface RetrievedFragment {
  readonly id: FragmentId;
  readonly corpusId: CorpusId;
  readonly fileId: FileId;
  readonly filename: string;
  readonly attributes: Attributes;
  readonly text: string;
  /** bm25 / (1 + bm25): in 0..1, the order of bm25. */
  readonly score: number;
  /** Of the corpus: the fragment's span is keyed with it. */
  readonly salt: CacheSalt;
}

/**
 * Best first; ties by age, so that the same question over the same corpora has the same answer.
 * @throws ApiError not_found, with param, when the tenant may not see one of the corpora
 */
export function retrieve(db: Db, corpora: CorpusService, request: RetrieveRequest): readonly RetrievedFragment[] {
  const rows = requireAll(corpora, request);
  const limit = Math.min(Math.max(1, Math.trunc(request.maxResults)), corpusLimits.maxSearchResults);
  const query = request.query.slice(0, corpusLimits.maxQueryChars);
  const found = rows.flatMap((corpus) => {
    const hits = searchFullText(db, corpus.seq, query, limit, passingFiles(db, corpus, request.filters));
    const salt = corpora.saltOf(corpus);
    return hits.map(({ bm25, seq, ...hit }) => ({
      seq,
      fragment: { ...hit, corpusId: corpus.id, salt, score: bm25 / (1 + bm25) },
    }));
  });
  found.sort((a, b) => b.fragment.score - a.fragment.score || a.seq - b.seq);
  const threshold = request.scoreThreshold ?? 0;
  return found
    .map(({ fragment }) => fragment)
    .filter((fragment) => fragment.score >= threshold)
    .slice(0, limit);
}

function requireAll(corpora: CorpusService, request: RetrieveRequest): readonly CorpusRow[] {
  const ids = [...new Set(request.vectorStoreIds)];
  if (ids.length > corpusLimits.maxCorporaPerSearch) {
    const message = `At most ${corpusLimits.maxCorporaPerSearch} vector stores can be searched at once.`;
    throw new ApiError("invalid_value", { param: "vector_store_ids", message });
  }
  try {
    return ids.map((id) => corpora.require(request.tenantId as TenantId, id, "read"));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    throw new ApiError(error.code, { param: "vector_store_ids", message: "No such vector store." });
  }
}

/** undefined: all files. */
function passingFiles(db: Db, corpus: CorpusRow, filter: AttributeFilter | undefined): readonly number[] | undefined {
  if (filter === undefined) return undefined;
  const files = listFileAttributes(db, corpus.id);
  return files.filter((file) => passesFilter(filter, file.attributes)).map((file) => file.seq);
}

/**
 * Fragments by id, in the order of the ids; undefined where there is none, or the tenant may not see its corpus.
 * Fragments of files that are not completed do not exist yet.
 */
export function readFragments(
  db: Db,
  corpora: CorpusService,
  tenantId: TenantId,
  rawIds: readonly string[],
): readonly (Pick<RetrievedFragment, "id" | "text" | "salt"> | undefined)[] {
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
    return row === undefined || salt === undefined ? undefined : { id: row.id, text: row.text, salt };
  });
}
