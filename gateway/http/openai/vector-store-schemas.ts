/** Request fields and answers that the vector store routes share; shapes of the `openai` package. */
import { z } from "zod";
import { corpusEnd, type FileCounts } from "../../../db/corpora.ts";
import type { CorpusFileRow, VisibleStatus } from "../../../db/corpus-files.ts";
import type { FileRow } from "../../../db/files.ts";
import type { CorpusWithUsage } from "../../corpus/base/corpora.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import type { Chunking } from "../../corpus/ingest/chunk.ts";
import type { AttachRequest } from "../../corpus/ingest/corpus-files.ts";
import { seconds } from "../transport/paging.ts";

const { maxMetadataEntries, maxMetadataKeyChars, maxMetadataValueChars } = corpusLimits;
const key = z.string().min(1).max(maxMetadataKeyChars);
const text = z.string().max(maxMetadataValueChars);

function entriesOf<Value extends z.ZodType>(value: Value) {
  return z.record(key, value).refine((entries) => Object.keys(entries).length <= maxMetadataEntries, {
    message: `at most ${maxMetadataEntries} entries`,
  });
}

export const metadataSchema = entriesOf(text);
export const attributesSchema = entriesOf(z.union([text, z.number(), z.boolean()]));

export const chunkingSchema = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("auto") }),
  z.strictObject({
    type: z.literal("static"),
    static: z
      .strictObject({
        max_chunk_size_tokens: z.int().min(corpusLimits.minChunkTokens).max(corpusLimits.maxChunkTokens),
        chunk_overlap_tokens: z.int().min(0).max(corpusLimits.maxChunkTokens).default(0),
      })
      .refine((own) => own.chunk_overlap_tokens * 2 <= own.max_chunk_size_tokens, {
        path: ["chunk_overlap_tokens"],
        message: "must not exceed half of max_chunk_size_tokens",
      }),
  }),
]);

const fileIdSchema = z.string().max(64);
export const fileIdsSchema = z
  .array(fileIdSchema)
  .max(corpusLimits.maxFilesPerBatch)
  .refine((ids) => new Set(ids).size === ids.length, { message: "must not name a file twice" });

export const attachSchema = z.strictObject({
  file_id: fileIdSchema,
  attributes: attributesSchema.nullish(),
  chunking_strategy: chunkingSchema.optional(),
});

/** Overlap is 0 unless asked for, because a repeated sentence makes two spans of what could be shared. */
export function chunkingOf(strategy: z.infer<typeof chunkingSchema> | undefined): Chunking {
  if (strategy?.type !== "static") return { maxTokens: corpusLimits.defaultChunkTokens, overlapTokens: 0 };
  const { max_chunk_size_tokens: maxTokens, chunk_overlap_tokens: overlapTokens } = strategy.static;
  return { maxTokens, overlapTokens };
}

export function attachRequestOf(fields: z.infer<typeof attachSchema>): AttachRequest {
  return {
    fileId: fields.file_id,
    attributes: fields.attributes ?? {},
    chunking: chunkingOf(fields.chunking_strategy),
  };
}

export function vectorStoreBody({ row, usage }: CorpusWithUsage) {
  const { expiresAfterDays: days, expired } = row;
  const end = corpusEnd(row);
  return {
    id: row.id,
    object: "vector_store",
    created_at: seconds(row.createdAt),
    name: row.name,
    description: row.description,
    usage_bytes: usage.usageBytes,
    file_counts: usage.fileCounts,
    status: expired ? "expired" : usage.fileCounts.in_progress > 0 ? "in_progress" : "completed",
    expires_after: days === null ? null : { anchor: "last_active_at", days },
    expires_at: end === undefined ? null : seconds(end),
    last_active_at: seconds(row.lastActiveAt),
    metadata: row.metadata,
  };
}

/** @param file what was uploaded; absent when it was deleted a moment ago */
export function corpusFileBody(row: CorpusFileRow, file: FileRow | undefined) {
  const { errorCode: code, errorMessage: message } = row;
  return {
    id: row.fileId,
    object: "vector_store.file",
    created_at: seconds(row.createdAt),
    vector_store_id: row.corpusId,
    status: row.status as VisibleStatus,
    last_error: code === null ? null : { code, message },
    usage_bytes: row.usageBytes,
    attributes: row.attributes,
    chunking_strategy: {
      type: "static",
      static: { max_chunk_size_tokens: row.maxChunkTokens, chunk_overlap_tokens: row.overlapTokens },
    },
    ...(file && { spangate: { filename: file.filename, bytes: file.byteCount, sha256: file.sha256 } }),
  };
}

/** A batch has the status of its files: it ends when none of them is in progress. */
export function batchStatus(counts: FileCounts): "in_progress" | "completed" | "cancelled" | "failed" {
  if (counts.in_progress > 0) return "in_progress";
  if (counts.cancelled > 0) return "cancelled";
  return counts.failed > 0 && counts.failed === counts.total ? "failed" : "completed";
}
