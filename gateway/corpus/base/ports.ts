/** What the corpus side needs from other parts of the server. The composition root provides it. */
import type { CorpusId, FileId, FragmentId, TenantId } from "../../../db/ids.ts";
import type { Db } from "../../../db/open.ts";
import type { SpanSource } from "../../../worker/contract/messages.ts";
import type { RetentionTime } from "../../../worker/contract/owners.ts";
import type { KvTier, WorkerTier } from "../../../worker/contract/tiers.ts";
import type { BlockKey, CacheSalt } from "../../../worker/contract/units.ts";
import type { Hold } from "../../base/hold.ts";
import type { Log } from "../../base/log.ts";

export interface Tokenizer {
  /** Counts the tokens of plain text; the text of a special token counts as plain text. */
  countTokens(text: string): number;
}

/** A fragment that is to become a span; `salt` is the salt of its corpus. */
export interface SpanText {
  readonly id: string;
  readonly text: string;
  readonly salt: CacheSalt;
}

/** A fragment that a prompt held. */
export interface UsedFragment extends SpanText {
  readonly id: FragmentId;
  readonly corpusId: CorpusId;
}

export interface PreparedSpan {
  readonly id: string;
  readonly tokens: number;
  readonly source: SpanSource;
  /** null: it lies in a tier that no worker was asked for. */
  readonly worker: number | null;
  /** Resolves when it is where it has to be. It may reject with ApiError before anybody waits for it. */
  readonly kept: Promise<void>;
}

export interface PrepareFacts {
  /** When the texts were read, by performance.now(); default: now. */
  readonly readAtMs?: number;
  /** The tenant that the tokens count for; undefined: no tenant. */
  readonly tenantId?: TenantId;
  /** false: the fragments are computed even while the tenant has reached its token limit. */
  readonly mayWait?: boolean;
  /** Where the KV has to be in the end; absent: on a worker, and kept if possible. */
  readonly goal?: PrepareGoal | undefined;
}

export interface PrepareGoal {
  readonly tier: KvTier;
  /** Since when that has been worked on, and tokens of spans that have been brought there since. */
  readonly sinceMs: number;
  readonly tokensThere: number;
}

/** A request that has read fragments and has ended. */
export interface RequestUse {
  readonly tenantId: TenantId;
  /** How long the caller asks for its prompt to be retained. */
  readonly retention?: RetentionTime | undefined;
  /** When the texts were read, by performance.now(): what was deleted since is not kept. */
  readonly readAtMs: number;
}

export interface SpanPort {
  /**
   * Makes the span as a prompt would hold it: with its template, tokenized, and with its block keys. The last block key
   * is the span's key.
   * @throws ApiError not_ready while no model is known
   */
  lowerSpan(span: SpanText): { readonly tokenIds: Int32Array; readonly blockKeys: readonly BlockKey[] };
  /**
   * Makes the span in slices, between which other work runs, so that `lowerSpan` finds it ready.
   * @throws ApiError as `lowerSpan` does
   */
  warmSpan(span: SpanText): Promise<void>;
  /**
   * Computes and keeps spans, and reports each once it is resident: files are written meanwhile (`kept`). Spans that were
   * evicted since their texts were read are not kept.
   * @throws ApiError; `kept` does with quota_exceeded and storage_full, when a span cannot be where it is to be
   */
  prepareSpans(spans: readonly SpanText[], signal: AbortSignal, facts?: PrepareFacts): AsyncIterable<PreparedSpan>;
  /**
   * All workers forget these blocks, and what was computed from the spans that end with them.
   * @param salt the salt of the corpus that the blocks belong to
   */
  evict(blockKeys: readonly BlockKey[], salt: CacheSalt): void;
  /**
   * All workers forget the spans under these salts, and what was computed from them. The work grows with the number of
   * blocks.
   * @param salts the salts of one tenant's corpora
   */
  evictCorpora(salts: readonly CacheSalt[]): void;
  /** All workers forget what the tenant computed from the spans under this salt; what others computed stays. */
  evictDerived(salt: CacheSalt, tenantId: TenantId): void;
  /**
   * All workers forget the KV that counts for the tenant. "text": except for its corpora's fragments.
   * @returns blocks that were held, on all workers
   */
  evictTenant(tenantId: TenantId, part: "text" | "all"): number;
  /** Whether a model is known, so that spans can be lowered. */
  readonly isReady: boolean;
  /**
   * All workers evict exactly these blocks last, each of which counts for its tenant, and the files of exactly these
   * spans are kept whatever needs room. Blocks of `below` are evicted last from the host's memory alone.
   */
  setPinned(
    tenants: ReadonlyMap<BlockKey, string>,
    spanKeys: ReadonlySet<BlockKey>,
    below?: ReadonlyMap<BlockKey, string>,
  ): void;
  /** The tiers that this server has. */
  readonly tiers: readonly KvTier[];
  /** Blocks that the tenant may pin in a tier: what its quota allows, or without a quota a part of the tier. */
  mostPinnedBlocks(tenantId: TenantId, tier: KvTier): number;
  /**
   * Has a worker that holds a span write it to a file, if it is in none and the line of files to be written has room.
   * @param readAtMs when the text was read: a text that was evicted since is not kept
   * @returns where it is from, once it is in a file; undefined: it is not, or was before
   */
  keepUsed(
    span: SpanText,
    readAtMs: number,
  ): Promise<{ readonly spanKey: BlockKey; readonly worker: number } | undefined>;
  /** Whether the span would be there after a restart, or cannot be made so now. */
  isKept(spanKey: BlockKey): boolean;
  /** The tiers that all workers share and that hold all of a span. */
  tiersHolding(blockKeys: readonly BlockKey[]): readonly KvTier[];
  /** The workers that probably hold the span: on the device, or in the host's memory beside it. */
  residentWorkers(spanKey: BlockKey, tier?: WorkerTier): readonly number[];
}

/** Returns the salt of a corpus. It also gets the owner, because the corpus's KV counts for its owner. */
export type CorpusSaltOf = (corpusId: string, epoch: number, tenantId: TenantId) => CacheSalt;

/** Makes vectors of unit length. Vectors of different `modelId`s are never compared. */
export interface Embedder {
  /** @throws ApiError while there is no model; another Error when there never will be one */
  card(): Promise<{ readonly modelId: string; readonly dimensions: number }>;
  /**
   * @param onTokens called with the number of tokens before the vectors are computed
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
   * Reserves storage until the hold ends: once a row holds the bytes, or once it is certain that none will.
   * @throws ApiError quota_exceeded, storage_full
   */
  reserve(tenantId: TenantId, bytes: number): Hold;
  /** Checks the disk for bytes that are counted already. @throws ApiError storage_full */
  checkDisk(bytes: number): void;
}

export interface Reranker {
  /** How well each text answers the question, in 0..1. @throws ApiError */
  rerank(query: string, texts: readonly string[], onTokens?: (count: number) => void): Promise<readonly number[]>;
}

/** Keeps others' secrets in the database. */
export interface SealerPort {
  /** @param owner the id of what the text belongs to */
  seal(text: string, owner: string): Buffer;
  /** @throws Error when it was sealed for another */
  open(sealed: Uint8Array, owner: string): string;
}

export interface CorpusDeps {
  readonly db: Db;
  readonly storage: StoragePort;
  /** The folder `files` in it holds uploaded files; `parts` holds the parts of uploads that have not ended. */
  readonly dataDir: string;
  readonly tokenizer: Tokenizer;
  readonly corpusSalt: CorpusSaltOf;
  readonly sealer: SealerPort;
  /** Networks that sources may be read from beside the public internet, in CIDR notation. */
  readonly sourceNetworks?: readonly string[];
  readonly spans: SpanPort;
  /** Absent: fragments are found by their words only. */
  readonly embedder?: Embedder;
  /** Absent: what a search finds is scored once. */
  readonly reranker?: Reranker | undefined;
  /** Called with the tokens that a tenant's searches gave to the models for embeddings and for ranking. */
  readonly onSearched?: (tenantId: TenantId, tokens: number) => void;
  /** A search or a query has named these fragments, and a question over them may follow. */
  readonly onNamed?: (tenantId: TenantId, ids: readonly FragmentId[]) => void;
  /** Whether searches that do not name a ranking use words and vectors with equal weight; otherwise words only. */
  readonly hybridByDefault?: boolean;
  /** Called when a file of the tenant was deleted: work that needs it has to end. */
  readonly onFileDeleted?: (tenantId: TenantId, fileId: FileId) => void;
  readonly log: Log;
}
