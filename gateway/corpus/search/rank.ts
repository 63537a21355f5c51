/**
 * Ranks the fragments of corpora by a question. It reads the database for as long as that takes, seconds at the worst, so
 * it runs in a thread (searches.ts). What it finds is named by number: who asked reads the texts, and sees by that
 * whether they are still there.
 */
import { areLive } from "../../../db/corpora.ts";
import { listFileAttributes } from "../../../db/corpus-files.ts";
import { DbError, type DbErrorCode } from "../../../db/errors.ts";
import { searchFullText } from "../../../db/fts.ts";
import type { CorpusId } from "../../../db/ids.ts";
import { type Db, openReader } from "../../../db/open.ts";
import { searchVectors } from "../../../db/vectors.ts";
import type { QueryVector } from "../ingest/vectorize.ts";
import { type AttributeFilter, passesFilter } from "./attribute-filter.ts";

export interface RankSearch {
  readonly corpora: readonly { readonly seq: number; readonly id: CorpusId }[];
  /** In Unicode's Stream-Safe Text Format. */
  readonly query: string;
  /** Whether words count; whether the question's vector does, if there is one. */
  readonly byWords: boolean;
  readonly vector: QueryVector | undefined;
  readonly filters: AttributeFilter | undefined;
  /** The most fragments of each corpus in each ranking. */
  readonly limit: number;
}

export interface RankedFragment {
  readonly seq: number;
  /** The `seq` of its corpus. */
  readonly corpusSeq: number;
  /** Higher is better. */
  readonly rank: number;
  /** Decides between equal ranks. */
  readonly nextRank: number;
}

/** Over all corpora, best first, equal ones by age; by words `rank` is the share, by vectors the cosine. */
export interface Rankings {
  readonly words: readonly RankedFragment[];
  readonly near: readonly RankedFragment[];
}

const filesPerPiece = 500;
const byRank = (a: RankedFragment, b: RankedFragment): number =>
  b.rank - a.rank || b.nextRank - a.nextRank || a.seq - b.seq;

/** Finds nothing when one of the corpora is deleted. */
export const rankFragments = (db: Db, search: RankSearch): Rankings =>
  db.snapshot("rankFragments", () => {
    const words: RankedFragment[] = [];
    const near: RankedFragment[] = [];
    const { corpora, query, byWords, vector, filters, limit } = search;
    const seqs = corpora.map(({ seq }) => seq);
    for (const { seq: corpusSeq, id } of areLive(db, seqs) ? corpora : []) {
      const files = filters === undefined ? undefined : passingFiles(db, id, filters);
      if (byWords) {
        const hits = searchFullText(db, corpusSeq, query, limit, files);
        words.push(...hits.map(({ seq, share, bm25 }) => ({ seq, corpusSeq, rank: share, nextRank: bm25 })));
      }
      if (vector === undefined) continue;
      const hits = searchVectors(db, corpusSeq, { ...vector, limit }, files);
      near.push(...hits.map(({ seq, cosine }) => ({ seq, corpusSeq, rank: cosine, nextRank: 0 })));
    }
    return { words: words.sort(byRank), near: near.sort(byRank) };
  });

/** The corpus's files that match the filter. */
function passingFiles(db: Db, corpusId: CorpusId, filters: AttributeFilter): readonly number[] {
  const seqs: number[] = [];
  for (let afterSeq = 0; ; ) {
    const piece = listFileAttributes(db, corpusId, afterSeq, filesPerPiece);
    for (const { seq, attributes } of piece) if (passesFilter(filters, attributes)) seqs.push(seq);
    if (piece.length < filesPerPiece) return seqs;
    afterSeq = piece.at(-1)?.seq ?? afterSeq;
  }
}

export interface ThreadSearch extends RankSearch {
  /** The database's file, the same for all searches of a thread. */
  readonly path: string;
}

/** What of a database's error crosses to the thread that asked. */
export interface FailedSearch {
  readonly failed: DbErrorCode;
  readonly statement: string;
}

/** What a thread does: it opens a connection with its first search. */
export function searchTasks() {
  let reader: Db | undefined;
  return {
    rank({ path, ...search }: ThreadSearch): Rankings | FailedSearch {
      try {
        reader ??= openReader(path);
        return rankFragments(reader, search);
      } catch (error) {
        if (error instanceof DbError) return { failed: error.code, statement: "rankFragments" };
        throw error;
      }
    },
  };
}
