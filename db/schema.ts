/** The tables of migrations/, as Drizzle sees them. test/db/open.test.ts holds the two together. */
import { blob, integer, sqliteTable, text } from "drizzle-orm/sqlite-core";
import type {
  ApiKeyId,
  BatchId,
  CorpusId,
  FileBatchId,
  FileId,
  FragmentId,
  JobId,
  MessageBatchId,
  SourceId,
  TenantId,
  UploadId,
  UploadPartId,
} from "./ids.ts";

export * from "./record-tables.ts";

export type AttributeValue = string | number | boolean;
export type Attributes = Readonly<Record<string, AttributeValue>>;
export type Metadata = Readonly<Record<string, string>>;
/** A page that a fragment has a part of: where that part begins in the fragment's text, and what the page is called. */
export interface FragmentPage {
  readonly at: number;
  readonly number: number;
  readonly name?: string | undefined;
}

export type TenantStatus = "active" | "disabled" | "deleting";
export type CorpusFileStatus = "in_progress" | "completed" | "failed" | "cancelled" | "deleting";
export type CorpusFileErrorCode = "server_error" | "unsupported_file" | "invalid_file";
export type JobStatus = "queued" | "running" | "completed" | "failed" | "cancelled";

const seq = () => integer("seq").primaryKey({ autoIncrement: true });
const createdAt = () => integer("created_at").notNull();

export const meta = sqliteTable("meta", { name: text("name").primaryKey(), value: text("value").notNull() });

export const tenants = sqliteTable("tenants", {
  seq: seq(),
  id: text("id").$type<TenantId>().notNull(),
  name: text("name").notNull(),
  status: text("status").$type<TenantStatus>().notNull(),
  saltEpoch: integer("salt_epoch").notNull().default(0),
  createdAt: createdAt(),
});

export const apiKeys = sqliteTable("api_keys", {
  seq: seq(),
  id: text("id").$type<ApiKeyId>().notNull(),
  tenantId: text("tenant_id").$type<TenantId>(),
  name: text("name").notNull(),
  hash: blob("hash", { mode: "buffer" }).notNull(),
  prefix: text("prefix").notNull(),
  scopes: text("scopes", { mode: "json" }).$type<readonly string[]>().notNull(),
  createdAt: createdAt(),
  revokedAt: integer("revoked_at"),
  expiresAt: integer("expires_at"),
});

export const corpora = sqliteTable("corpora", {
  seq: seq(),
  id: text("id").$type<CorpusId>().notNull(),
  tenantId: text("tenant_id").$type<TenantId>().notNull(),
  name: text("name").notNull(),
  description: text("description"),
  metadata: text("metadata", { mode: "json" }).$type<Metadata>().notNull(),
  saltEpoch: integer("salt_epoch").notNull().default(0),
  createdAt: createdAt(),
  lastActiveAt: integer("last_active_at").notNull(),
  deletedAt: integer("deleted_at"),
  expiresAfterDays: integer("expires_after_days"),
  /** It has ended by itself: deleted, but for this row. */
  expired: integer("expired", { mode: "boolean" }).notNull().default(false),
});

export const corpusGrants = sqliteTable("corpus_grants", {
  corpusId: text("corpus_id").$type<CorpusId>().notNull(),
  tenantId: text("tenant_id").$type<TenantId>().notNull(),
  createdAt: createdAt(),
});

export const files = sqliteTable("files", {
  seq: seq(),
  id: text("id").$type<FileId>().notNull(),
  tenantId: text("tenant_id").$type<TenantId>().notNull(),
  filename: text("filename").notNull(),
  purpose: text("purpose").notNull(),
  mediaType: text("media_type").notNull(),
  byteCount: integer("byte_count").notNull(),
  sha256: text("sha256").notNull(),
  createdAt: createdAt(),
  deletedAt: integer("deleted_at"),
  expiresAt: integer("expires_at"),
});

export const corpusFiles = sqliteTable("corpus_files", {
  seq: seq(),
  corpusId: text("corpus_id").$type<CorpusId>().notNull(),
  fileId: text("file_id").$type<FileId>().notNull(),
  tenantId: text("tenant_id").$type<TenantId>().notNull(),
  status: text("status").$type<CorpusFileStatus>().notNull(),
  attempt: integer("attempt").notNull().default(0),
  errorCode: text("error_code").$type<CorpusFileErrorCode>(),
  errorMessage: text("error_message"),
  attributes: text("attributes", { mode: "json" }).$type<Attributes>().notNull(),
  maxChunkTokens: integer("max_chunk_tokens").notNull(),
  overlapTokens: integer("overlap_tokens").notNull(),
  usageBytes: integer("usage_bytes").notNull().default(0),
  createdAt: createdAt(),
});

export const fileBatches = sqliteTable("file_batches", {
  seq: seq(),
  id: text("id").$type<FileBatchId>().notNull(),
  corpusId: text("corpus_id").$type<CorpusId>().notNull(),
  createdAt: createdAt(),
});

export const fileBatchMembers = sqliteTable("file_batch_members", {
  batchId: text("batch_id").$type<FileBatchId>().notNull(),
  corpusFileSeq: integer("corpus_file_seq").notNull(),
});

export const fragments = sqliteTable("fragments", {
  seq: seq(),
  id: text("id").$type<FragmentId>().notNull(),
  corpusFileSeq: integer("corpus_file_seq").notNull(),
  ordinal: integer("ordinal").notNull(),
  text: text("text").notNull(),
  firstChar: integer("first_char").notNull(),
  endChar: integer("end_char").notNull(),
  tokenCount: integer("token_count").notNull(),
  preparedSpanKey: text("prepared_span_key"),
  preparedWorker: integer("prepared_worker"),
  preparedAt: integer("prepared_at"),
  pages: text("pages", { mode: "json" }).$type<readonly FragmentPage[]>(),
  textKey: blob("text_key", { mode: "buffer" }),
  headKey: blob("head_key", { mode: "buffer" }),
});

/** The same names as the workers' (KvTier). */
type KvTierName = "device" | "host" | "disk" | "s3";

export const jobs = sqliteTable("jobs", {
  seq: seq(),
  id: text("id").$type<JobId>().notNull(),
  tenantId: text("tenant_id").$type<TenantId>().notNull(),
  corpusId: text("corpus_id").$type<CorpusId>().notNull(),
  status: text("status").$type<JobStatus>().notNull(),
  done: integer("done").notNull().default(0),
  total: integer("total").notNull().default(0),
  errorCode: text("error_code"),
  errorMessage: text("error_message"),
  createdAt: createdAt(),
  finishedAt: integer("finished_at"),
  target: text("target").$type<KvTierName>(),
});

const limitColumns = () => ({
  requestsPerMinute: integer("requests_per_minute"),
  tokensPerMinute: integer("tokens_per_minute"),
  concurrency: integer("concurrency"),
});

export const tenantLimits = sqliteTable("tenant_limits", {
  tenantId: text("tenant_id").$type<TenantId>().primaryKey(),
  ...limitColumns(),
  kvBytes: integer("kv_bytes"),
  storageBytes: integer("storage_bytes"),
  tokensPerDay: integer("tokens_per_day"),
  tokensPerMonth: integer("tokens_per_month"),
  kvDiskBytes: integer("kv_disk_bytes"),
  kvS3Bytes: integer("kv_s3_bytes"),
});

/** Triggers keep these sums, over files that are not deleted and texts that are not swept. */
export const tenantStorage = sqliteTable("tenant_storage", {
  tenantId: text("tenant_id").$type<TenantId>().primaryKey(),
  fileBytes: integer("file_bytes").notNull().default(0),
  textBytes: integer("text_bytes").notNull().default(0),
});

export const apiKeyLimits = sqliteTable("api_key_limits", {
  keyId: text("key_id").$type<ApiKeyId>().primaryKey(),
  ...limitColumns(),
});

export const embeddingModels = sqliteTable("embedding_models", {
  seq: seq(),
  id: text("id").notNull(),
  dimensions: integer("dimensions").notNull(),
});

export const fragmentVectors = sqliteTable("fragment_vectors", {
  fragmentSeq: integer("fragment_seq").primaryKey(),
  modelSeq: integer("model_seq").notNull(),
  vector: blob("vector", { mode: "buffer" }).notNull(),
});

export const fragmentPins = sqliteTable("fragment_pins", {
  fragmentSeq: integer("fragment_seq").primaryKey(),
  tenantId: text("tenant_id").$type<TenantId>().notNull(),
  blocks: integer("blocks").notNull(),
  tier: text("tier").$type<KvTierName>().notNull().default("device"),
});

export const vectorIndexes = sqliteTable("vector_indexes", {
  corpusSeq: integer("corpus_seq").primaryKey(),
  modelSeq: integer("model_seq").notNull(),
  isStale: integer("is_stale").notNull(),
});

export type BatchStatus =
  | "validating"
  | "failed"
  | "in_progress"
  | "finalizing"
  | "completed"
  | "expired"
  | "cancelling"
  | "cancelled";

export interface BatchFault {
  readonly code: string;
  readonly message: string;
  /** The line's number, from 1; null: the fault concerns the whole batch. */
  readonly line: number | null;
  readonly param: string | null;
}

export const batches = sqliteTable("batches", {
  seq: seq(),
  id: text("id").$type<BatchId | MessageBatchId>().notNull(),
  tenantId: text("tenant_id").$type<TenantId>().notNull(),
  keyId: text("key_id").$type<ApiKeyId>().notNull(),
  endpoint: text("endpoint").notNull(),
  inputFileId: text("input_file_id").$type<FileId>().notNull(),
  metadata: text("metadata", { mode: "json" }).$type<Readonly<Record<string, string>>>(),
  status: text("status").$type<BatchStatus>().notNull(),
  errors: text("errors", { mode: "json" }).$type<readonly BatchFault[]>(),
  outputFileId: text("output_file_id").$type<FileId>(),
  errorFileId: text("error_file_id").$type<FileId>(),
  total: integer("total").notNull().default(0),
  completed: integer("completed").notNull().default(0),
  failed: integer("failed").notNull().default(0),
  outputBytes: integer("output_bytes").notNull().default(0),
  inputTokens: integer("input_tokens").notNull().default(0),
  cachedTokens: integer("cached_tokens").notNull().default(0),
  outputTokens: integer("output_tokens").notNull().default(0),
  createdAt: createdAt(),
  expiresAt: integer("expires_at").notNull(),
  inProgressAt: integer("in_progress_at"),
  finalizingAt: integer("finalizing_at"),
  completedAt: integer("completed_at"),
  failedAt: integer("failed_at"),
  expiredAt: integer("expired_at"),
  cancellingAt: integer("cancelling_at"),
  cancelledAt: integer("cancelled_at"),
  /** The batch has ended, and its results are still to be removed. */
  resultsLeft: integer("results_left", { mode: "boolean" }).notNull().default(false),
  /** How long the result files last from when they are made; null: they stay. */
  outputLastsSeconds: integer("output_lasts_seconds"),
});

export const batchResults = sqliteTable("batch_results", {
  batchSeq: integer("batch_seq").notNull(),
  line: integer("line").notNull(),
  isError: integer("is_error", { mode: "boolean" }).notNull(),
  body: text("body").notNull(),
});

export interface SourceOptions {
  readonly maxPages: number;
  readonly maxDepth: number;
  readonly s3?:
    | { readonly endpoint?: string | undefined; readonly region?: string | undefined; readonly accessKeyId: string }
    | undefined;
}

/** How a run of a source ended. */
export interface SourceRun {
  readonly startedAt: number;
  readonly endedAt: number;
  /** Why the source as a whole could not be read; null: it was. */
  readonly error: string | null;
  readonly added: number;
  readonly changed: number;
  readonly removed: number;
  readonly unchanged: number;
  readonly failed: number;
  /** false: files may be missing that the source still has, so none was taken out. */
  readonly isWhole: boolean;
  /** Some of those that failed. */
  readonly failures: readonly { readonly path: string; readonly reason: string }[];
}

export const sources = sqliteTable("sources", {
  seq: seq(),
  id: text("id").$type<SourceId>().notNull(),
  tenantId: text("tenant_id").$type<TenantId>().notNull(),
  corpusId: text("corpus_id").$type<CorpusId>().notNull(),
  url: text("url").notNull(),
  label: text("label").notNull(),
  options: text("options", { mode: "json" }).$type<SourceOptions>().notNull(),
  sealedKey: blob("sealed_key", { mode: "buffer" }),
  intervalMinutes: integer("interval_minutes"),
  nextRunAt: integer("next_run_at"),
  lastRun: text("last_run", { mode: "json" }).$type<SourceRun>(),
  createdAt: createdAt(),
});

export type UploadStatus = "pending" | "completed" | "cancelled" | "expired";

export const uploads = sqliteTable("uploads", {
  seq: seq(),
  id: text("id").$type<UploadId>().notNull(),
  tenantId: text("tenant_id").$type<TenantId>().notNull(),
  filename: text("filename").notNull(),
  purpose: text("purpose").notNull(),
  mediaType: text("media_type").notNull(),
  byteCount: integer("byte_count").notNull(),
  status: text("status").$type<UploadStatus>().notNull(),
  fileId: text("file_id").$type<FileId>(),
  createdAt: createdAt(),
  expiresAt: integer("expires_at").notNull(),
  /** How long the upload's file will last, in seconds; null: it stays. */
  fileSeconds: integer("file_seconds"),
});

export const uploadParts = sqliteTable("upload_parts", {
  seq: seq(),
  id: text("id").$type<UploadPartId>().notNull(),
  uploadSeq: integer("upload_seq").notNull(),
  sha256: text("sha256").notNull(),
  byteCount: integer("byte_count").notNull(),
  createdAt: createdAt(),
});

/** A corpus at one epoch of its salt, whose KV is in files. */
export const kvScopes = sqliteTable("kv_scopes", {
  seq: seq(),
  name: text("name").notNull(),
  tenantId: text("tenant_id").$type<TenantId>().notNull(),
  corpusId: text("corpus_id").notNull(),
  saltEpoch: integer("salt_epoch").notNull(),
  sealedKey: blob("sealed_key", { mode: "buffer" }).notNull(),
});

export const kvObjects = sqliteTable("kv_objects", {
  seq: seq(),
  id: text("id").notNull(),
  scopeSeq: integer("scope_seq").notNull(),
  sealedKey: blob("sealed_key", { mode: "buffer" }).notNull(),
  modelDigest: text("model_digest").notNull(),
  format: text("format").notNull(),
  rootKey: text("root_key").notNull(),
  previousKey: text("previous_key").notNull(),
  lastKey: text("last_key").notNull(),
  spanKey: text("span_key").notNull(),
  position: integer("position").notNull(),
  tokenCount: integer("token_count").notNull(),
  bytes: integer("bytes").notNull(),
  usedAt: integer("used_at").notNull(),
  tenantId: text("tenant_id").$type<TenantId>().notNull(),
  blockCount: integer("block_count").notNull(),
  pinned: integer("pinned").notNull(),
  /** 1: the folder has its file. */
  onDisk: integer("on_disk").notNull(),
  /** See `inBucket` in kv-bucket.ts. */
  inBucket: integer("in_bucket").notNull(),
});

export const kvBucket = sqliteTable("kv_bucket", {
  id: integer("id").primaryKey(),
  serverId: text("server_id").notNull(),
  address: text("address").notNull(),
});

export const kvBucketRemovals = sqliteTable("kv_bucket_removals", {
  seq: seq(),
  id: text("id").notNull(),
});
