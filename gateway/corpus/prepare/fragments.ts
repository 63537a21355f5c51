/** Facts about a corpus's fragments: metadata, never their text. */
import type { CorpusRow } from "../../../db/corpora.ts";
import { findFragmentPlace, type ListedFragment, listFragments } from "../../../db/fragments.ts";
import { type FileId, parseId, type TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import type { Page, PageRange } from "../../../db/page.ts";
import type { KvTier } from "../../../worker/contract/tiers.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import { ApiError } from "../../base/errors.ts";
import type { CorpusService } from "../base/corpora.ts";
import { corpusLimits } from "../base/limits.ts";
import type { SpanPort } from "../base/ports.ts";

/** The fragment as a span of the model that is served now. */
export interface SpanFacts {
  /** Tokens including the template, so more than the fragment's own tokenCount. */
  readonly tokenCount: number;
  readonly blockCount: number;
  readonly spanKey: BlockKey;
  /** The workers that probably hold the span now, on the device and in the host's memory. */
  readonly residentWorkers: readonly number[];
  readonly hostWorkers: readonly number[];
  /** The tiers that all workers share and that hold it. */
  readonly tiers: readonly KvTier[];
}

export interface FragmentFacts {
  readonly row: ListedFragment;
  /** undefined while no worker was ever ready. */
  readonly span: SpanFacts | undefined;
}

export class FragmentService {
  readonly #db: Db;
  readonly #corpora: CorpusService;
  readonly #spans: SpanPort;

  constructor(db: Db, corpora: CorpusService, spans: SpanPort) {
    this.#db = db;
    this.#corpora = corpora;
    this.#spans = spans;
  }

  /**
   * Lists fragments page by page and yields to other work meanwhile. A page of long fragments has fewer entries than
   * asked for.
   * @throws ApiError not_found (the corpus, or a cursor that is no fragment of it)
   */
  async list(
    tenantId: TenantId,
    rawCorpusId: string,
    range: Pick<PageRange, "limit" | "order"> & {
      readonly after?: string | undefined;
      readonly fileId?: string | undefined;
    },
  ): Promise<Page<FragmentFacts>> {
    const corpus = this.#corpora.require(tenantId, rawCorpusId, "own");
    const { limit, order, after } = range;
    const afterId = after === undefined ? undefined : parseId("fragment", after);
    const place = afterId === undefined ? undefined : findFragmentPlace(this.#db, corpus.id, afterId);
    if (after !== undefined && place === undefined) throw new ApiError("not_found", { param: "after" });
    const page = listFragments(this.#db, corpus.id, { limit, order, after: place, fileId: fileIdOf(range.fileId) });
    const shown = withinTokens(page.rows);
    const salt = this.#corpora.saltOf(corpus);
    const rows: FragmentFacts[] = [];
    for (const row of shown) {
      if (this.#spans.isReady) await this.#spans.warmSpan({ id: row.id, text: row.text, salt });
      rows.push(this.factsOf(corpus, row));
    }
    return { rows, hasMore: page.hasMore || shown.length < page.rows.length };
  }

  /** @param corpus the corpus that the fragment belongs to */
  factsOf(corpus: CorpusRow, row: ListedFragment): FragmentFacts {
    return { row, span: this.#spanOf(row, this.#corpora.saltOf(corpus)) };
  }

  #spanOf(row: ListedFragment, salt: Parameters<SpanPort["lowerSpan"]>[0]["salt"]): SpanFacts | undefined {
    try {
      const { tokenIds, blockKeys } = this.#spans.lowerSpan({ id: row.id, text: row.text, salt });
      const spanKey = blockKeys.at(-1);
      if (spanKey === undefined) return undefined;
      const residentWorkers = this.#spans.residentWorkers(spanKey);
      const hostWorkers = this.#spans.residentWorkers(spanKey, "host");
      const tiers = this.#spans.tiersHolding(blockKeys);
      return {
        tokenCount: tokenIds.length,
        blockCount: blockKeys.length,
        spanKey,
        residentWorkers,
        hostWorkers,
        tiers,
      };
    } catch (error) {
      if (error instanceof ApiError && error.code === "not_ready") return undefined;
      throw error;
    }
  }
}

/** The first row, and as many more as fit the page's bound on tokens. */
function withinTokens(rows: readonly ListedFragment[]): readonly ListedFragment[] {
  let tokens = 0;
  const over = rows.findIndex(({ tokenCount }, index) => {
    tokens += tokenCount;
    return index > 0 && tokens > corpusLimits.maxFragmentPageTokens;
  });
  return over < 0 ? rows : rows.slice(0, over);
}

function fileIdOf(raw: string | undefined): FileId | undefined {
  if (raw === undefined) return undefined;
  const id = parseId("file", raw);
  if (id === undefined) throw new ApiError("not_found", { param: "file_id" });
  return id;
}
