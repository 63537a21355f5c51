/** What the corpus side needs of others, given by whoever wires the server. */
import type { TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import type { SpanSource } from "../../../worker/contract/messages.ts";
import type { BlockKey, CacheSalt } from "../../../worker/contract/units.ts";
import type { Log } from "../../base/log.ts";

export interface Tokenizer {
  /** Tokens of plain text; special tokens' text counts as text. */
  countTokens(text: string): number;
}

/** A fragment to be made a span of; `salt` is its corpus' salt. */
export interface SpanText {
  readonly id: string;
  readonly text: string;
  readonly salt: CacheSalt;
}

export interface PreparedSpan {
  readonly id: string;
  readonly tokens: number;
  readonly source: SpanSource;
  readonly worker: number;
}

export interface PrepareFacts {
  /** When the texts were read, by performance.now(); default: now. */
  readonly readAtMs?: number;
  /** Whose usage the tokens are; undefined: nobody's. */
  readonly tenantId?: TenantId;
  /** false: computed also while the tenant has reached its limit of tokens. */
  readonly mayWait?: boolean;
}

export interface SpanPort {
  /**
   * The span as a prompt would hold it: templated, tokenized, keyed. The last block key is the span's key.
   * @throws ApiError not_ready while no model is known
   */
  lowerSpan(span: SpanText): { readonly tokenIds: Int32Array; readonly blockKeys: readonly BlockKey[] };
  /** Makes the span in slices between which other work runs, so that `lowerSpan` has it. @throws ApiError as `lowerSpan` does */
  warmSpan(span: SpanText): Promise<void>;
  /**
   * Computes and keeps spans, and reports each once it is resident; what was evicted since the texts were read is not
   * kept.
   * @throws ApiError
   */
  prepareSpans(spans: readonly SpanText[], signal: AbortSignal, facts?: PrepareFacts): AsyncIterable<PreparedSpan>;
  /**
   * All workers forget these blocks, and what was computed from the spans that end with them.
   * @param salt of the corpus that they are of
   */
  evict(blockKeys: readonly BlockKey[], salt: CacheSalt): void;
  /**
   * All workers forget the spans with these salts, and what was computed from them: as much work as there are blocks.
   * @param salts of corpora of one tenant
   */
  evictCorpora(salts: readonly CacheSalt[]): void;
  /** All workers forget what the tenant computed from the spans with this salt, and nothing of anybody else's. */
  evictDerived(salt: CacheSalt, tenantId: TenantId): void;
  /**
   * All workers forget what is counted for the tenant. "text": without its corpora's fragments.
   * @returns blocks that were held, on all workers
   */
  evictTenant(tenantId: TenantId, part: "text" | "all"): number;
  /** A model is known: spans can be lowered. */
  readonly isReady: boolean;
  /** All workers evict these blocks last, and no others; each is counted for a tenant. */
  setPinned(tenants: ReadonlyMap<BlockKey, string>): void;
  /** Blocks that the tenant may have pinned: what its quota allows, or a part of the smallest pool. */
  mostPinnedBlocks(tenantId: TenantId): number;
  /** Workers that are thought to hold the span; a hint. */
  residentWorkers(spanKey: BlockKey): readonly number[];
}

/** Salt of a corpus's fragments. It is told whose the corpus is, since its KV is counted for its owner. */
export type CorpusSaltOf = (corpusId: string, epoch: number, tenantId: TenantId) => CacheSalt;

/** Makes vectors of texts, of unit length. Vectors of another `modelId` are never compared with them. */
export interface Embedder {
  /** @throws ApiError while there is none; another Error when there never will be */
  card(): Promise<{ readonly modelId: string; readonly dimensions: number }>;
  /**
   * @param onTokens told how many tokens the texts have, before they are computed
   * @throws ApiError
   */
  embed(
    texts: readonly string[],
    role: "query" | "document",
    onTokens?: (count: number) => void,
  ): Promise<readonly Float32Array[]>;
}

/** The account of what tenants store. */
export interface StoragePort {
  /**
   * Keeps room until what it gives is called: when a row holds the bytes, or nothing will.
   * @throws ApiError quota_exceeded, storage_full
   */
  reserve(tenantId: TenantId, bytes: number): () => void;
  /** For what is counted already. @throws ApiError storage_full */
  checkDisk(bytes: number): void;
}

export interface CorpusDeps {
  readonly db: Db;
  readonly storage: StoragePort;
  /** Uploaded files' bytes are in its folder `files`, parts of uploads that have not ended in `parts`. */
  readonly dataDir: string;
  readonly tokenizer: Tokenizer;
  readonly corpusSalt: CorpusSaltOf;
  readonly spans: SpanPort;
  /** Absent: fragments are found by their words alone. */
  readonly embedder?: Embedder;
  /** Told of the tokens of questions that tenants' searches have made vectors of. */
  readonly onSearched?: (tenantId: TenantId, tokens: number) => void;
  /** Searches that say nothing of their ranking use words and vectors alike; else words alone. */
  readonly hybridByDefault?: boolean;
  /** A file of the tenant's is gone: work that needs it is to end. */
  readonly onFileDeleted?: (tenantId: TenantId) => void;
  readonly log: Log;
}
