/** Answers as /openapi.json describes them. Handlers do not read these; test/http/openapi/openapi.test.ts holds real answers against them. */
import { z } from "zod";
import { kvTiers } from "../../../worker/contract/tiers.ts";
import { scopes } from "../../tenant/principal.ts";

/** Unix time. */
const seconds = z.int();
const count = z.int().min(0);

/** A page of a list. */
export function listOf<Item extends z.ZodType>(item: Item) {
  const id = z.string().nullable();
  return z.strictObject({
    object: z.literal("list"),
    data: z.array(item),
    first_id: id,
    last_id: id,
    has_more: z.boolean(),
  });
}

export const deletedAnswer = z.strictObject({ id: z.string(), object: z.string(), deleted: z.literal(true) });
export const saltAnswer = z.strictObject({ id: z.string(), object: z.string(), epoch: count });

export const tenantAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("tenant"),
  name: z.string(),
  status: z.enum(["active", "disabled"]),
  created_at: seconds,
});

export const apiKeyAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("api_key"),
  tenant_id: z.string().nullable(),
  name: z.string(),
  prefix: z.string(),
  scopes: z.array(z.enum(scopes)),
  created_at: seconds,
  revoked_at: seconds.nullable(),
  expires_at: seconds.nullable().describe("Unix time in seconds; null: it is valid until it is revoked."),
});

export const mintedKeyAnswer = apiKeyAnswer.extend({ key: z.string().describe("Shown in this answer only.") });

const limit = z.int().nullable();
const rateAnswer = { requests_per_minute: limit, tokens_per_minute: limit, concurrency: limit };
export const keyLimitsAnswer = z.object({ id: z.string(), object: z.literal("api_key.limits"), ...rateAnswer });
const budgetAnswer = z.object({
  limit,
  used: z.int().describe("Prompt tokens that were not cached, completion tokens and embedding tokens."),
  resets_at: seconds,
});
export const tenantLimitsAnswer = z.object({
  id: z.string(),
  object: z.literal("tenant.limits"),
  ...rateAnswer,
  kv_bytes: limit,
  kv_disk_bytes: limit,
  kv_s3_bytes: limit,
  storage_bytes: limit,
  tokens_per_day: limit,
  tokens_per_month: limit,
  budgets: z.object({ day: budgetAnswer, month: budgetAnswer }),
  storage: z.object({
    limit_bytes: z.int().describe("What holds now: storage_bytes, or what the server gives each tenant."),
    used_bytes: z.int(),
    files: z.int(),
    uploads: z.int(),
    texts: z.int().describe("Of files in vector stores."),
    responses: z.int(),
    batches: z.int(),
  }),
});

const fileCounts = z.strictObject({
  in_progress: count,
  completed: count,
  failed: count,
  cancelled: count,
  total: count,
});

export const vectorStoreAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("vector_store"),
  created_at: seconds,
  name: z.string(),
  description: z.string().nullable(),
  usage_bytes: count,
  file_counts: fileCounts,
  status: z.enum(["in_progress", "completed", "expired"]),
  expires_after: z.strictObject({ anchor: z.literal("last_active_at"), days: z.int() }).nullable(),
  expires_at: z.int().nullable().describe("Unix time in seconds; null: it stays."),
  last_active_at: seconds,
  metadata: z.record(z.string(), z.string()),
});

const attributes = z.record(z.string(), z.union([z.string(), z.number(), z.boolean()]));
const textPart = z.strictObject({ type: z.literal("text"), text: z.string() });

export const vectorStoreFileAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("vector_store.file"),
  created_at: seconds,
  vector_store_id: z.string(),
  status: z.enum(["in_progress", "completed", "failed", "cancelled"]),
  last_error: z
    .strictObject({ code: z.enum(["server_error", "unsupported_file", "invalid_file"]), message: z.string() })
    .nullable(),
  usage_bytes: count,
  attributes,
  chunking_strategy: z.strictObject({
    type: z.literal("static"),
    static: z.strictObject({ max_chunk_size_tokens: count, chunk_overlap_tokens: count }),
  }),
  spangate: z
    .strictObject({
      filename: z.string(),
      bytes: count,
      sha256: z.string().describe("Hex digest of the uploaded bytes."),
    })
    .optional()
    .describe("The uploaded file: what a client needs to find out whether the store has its newest version."),
});

export const fileContentAnswer = z.strictObject({
  object: z.literal("vector_store.file_content.page"),
  data: z.array(textPart),
  has_more: z.boolean(),
  next_page: z.null(),
});

export const fileBatchAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("vector_store.files_batch"),
  created_at: seconds,
  vector_store_id: z.string(),
  status: z.enum(["in_progress", "completed", "cancelled", "failed"]),
  file_counts: fileCounts,
});

export const searchAnswer = z.strictObject({
  object: z.literal("vector_store.search_results.page"),
  search_query: z.array(z.string()),
  data: z.array(
    z.strictObject({
      file_id: z.string(),
      filename: z.string(),
      score: z.number(),
      attributes,
      content: z.array(textPart),
    }),
  ),
  has_more: z.boolean(),
  next_page: z.null(),
});

export const jobAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("prepare_job"),
  vector_store_id: z.string(),
  status: z.enum(["queued", "running", "completed", "failed", "cancelled"]),
  target: z.enum(kvTiers).nullable().describe("null: a worker, and files where the server keeps any."),
  done: count,
  total: count,
  error: z.strictObject({ code: z.string(), message: z.string().nullable() }).nullable(),
  created_at: seconds,
  finished_at: seconds.nullable(),
});

export const sourceAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("vector_store.source"),
  vector_store_id: z.string(),
  url: z.string(),
  name: z.string().describe("The attribute synced_from of its files."),
  interval_minutes: z.int().nullable().describe("null: it is read when it is asked to."),
  max_pages: z.int(),
  max_depth: z.int(),
  s3: z
    .strictObject({ endpoint: z.string().nullable(), region: z.string().nullable(), access_key_id: z.string() })
    .nullable()
    .describe("The secret key is never given back."),
  status: z.enum(["idle", "queued", "in_progress"]),
  next_run_at: seconds.nullable(),
  last_run: z
    .strictObject({
      started_at: seconds,
      ended_at: seconds,
      added: count,
      changed: count,
      removed: count,
      unchanged: count,
      failed: count,
      is_whole: z.boolean().describe("false: files may be missing that the source still has, so none was taken out."),
      failures: z
        .array(z.strictObject({ path: z.string(), reason: z.string() }))
        .describe("Some of what failed, by URL or name."),
      error: z.string().nullable().describe("Why the source as a whole could not be read."),
    })
    .nullable(),
  created_at: seconds,
});

export const modelAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("model"),
  created: seconds,
  owned_by: z.string(),
  max_model_len: count,
});

export const modelsAnswer = z.strictObject({ object: z.literal("list"), data: z.array(modelAnswer) });

export const readyAnswer = z.strictObject({
  status: z.enum(["ready", "not_ready", "draining"]),
  workers: z.array(z.strictObject({ id: z.string(), state: z.string() })),
});

/** Tokens of a tenant on a day. */
export const usageDayAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("usage"),
  day: z.string().describe("The day (UTC), as in 2026-01-31."),
  tenant_id: z.string(),
  requests: count.describe(
    "Runs that ended: one for each choice of an answer, each generate of a query, and each request of embeddings or of a ranking.",
  ),
  prompt_tokens: count,
  cached_tokens: count,
  cache_write_tokens: count,
  completion_tokens: count,
  embedding_tokens: count.describe("Of embeddings and rankings; in none of the numbers above."),
  computed_tokens: count.describe(
    "What counts against the tenant's budgets: prompt tokens that were not cached, completion tokens and embedding tokens.",
  ),
});
