/** /v1/batches: the lines of a file as requests, run when there is room for them. Shapes of the `openai` package. */
import type { Hono } from "hono";
import { z } from "zod";
import type { BatchRow } from "../../../db/batches.ts";
import { batchEndpoints } from "../../batches/lines.ts";
import type { BatchService } from "../../batches/service.ts";
import { requestFields } from "../generation/request-fields.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, principalOf, tenantIdOf } from "../transport/context.ts";
import { optional, shortString } from "../transport/fields.ts";
import { listBody, pageQuery, rangeOf, readNoFields, readQuery, seconds } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import { expiresAfter } from "./files.ts";

const createSchema = z.strictObject({
  input_file_id: shortString,
  endpoint: z.enum(batchEndpoints),
  completion_window: z.literal("24h", "must be 24h"),
  metadata: optional(requestFields.metadata),
  output_expires_after: optional(expiresAfter),
});

const states = [
  "validating",
  "failed",
  "in_progress",
  "finalizing",
  "completed",
  "expired",
  "cancelling",
  "cancelled",
] as const;
const status = z.enum(states);
const fault = z.object({
  code: z.string(),
  message: z.string(),
  line: z.int().nullable(),
  param: z.string().nullable(),
});
const time = z.int().nullable();
const batchAnswer = z.object({
  id: z.string(),
  object: z.literal("batch"),
  endpoint: z.enum(batchEndpoints),
  errors: z.object({ object: z.literal("list"), data: z.array(fault) }).nullable(),
  input_file_id: z.string(),
  completion_window: z.literal("24h"),
  status,
  output_file_id: z.string().nullable(),
  error_file_id: z.string().nullable(),
  ...{ created_at: z.int(), expires_at: z.int(), in_progress_at: time, finalizing_at: time, completed_at: time },
  ...{ failed_at: time, expired_at: time, cancelling_at: time, cancelled_at: time },
  request_counts: z.object({ total: z.int(), completed: z.int(), failed: z.int() }),
  usage: z.object({ input_tokens: z.int(), output_tokens: z.int(), total_tokens: z.int() }),
  metadata: z.record(z.string(), z.string()).nullable(),
});
const batchList = z.object({ object: z.literal("list"), data: z.array(batchAnswer), has_more: z.boolean() });

/** What the routes do, for /openapi.json. */
const about = {
  create: { summary: "Runs the lines of a file within a day.", body: createSchema, answer: batchAnswer },
  list: { summary: "The tenant's batches, newest first.", query: pageQuery, answer: batchList },
  get: { summary: "How far a batch is, and its files.", answer: batchAnswer },
  cancel: { summary: "Ends a batch; what has a result stays in its files.", answer: batchAnswer },
};

export function addBatchRoutes(app: Hono<AppEnv>, batches: BatchService): void {
  declare(app, "POST /v1/batches", about.create, async (c) => {
    const tenantId = tenantIdOf(c);
    const body = await readJson(c, createSchema);
    const { input_file_id: inputFileId, endpoint, metadata = null } = body;
    const outputLastsSeconds = body.output_expires_after?.seconds ?? null;
    const request = { inputFileId, endpoint, metadata, outputLastsSeconds };
    return c.json(batchBody(batches.create(principalOf(c), tenantId, request)));
  });

  declare(app, "GET /v1/batches", about.list, (c) => {
    const tenantId = tenantIdOf(c);
    const range = rangeOf(readQuery(c, pageQuery), (id) => batches.get(tenantId, id));
    return c.json(listBody(batches.list(tenantId, range), batchBody));
  });

  declare(app, "GET /v1/batches/:request_batch_id", about.get, (c) =>
    c.json(batchBody(batches.get(tenantIdOf(c), c.req.param("request_batch_id")))),
  );

  declare(app, "POST /v1/batches/:request_batch_id/cancel", about.cancel, async (c) => {
    await readNoFields(c);
    return c.json(batchBody(batches.cancel(tenantIdOf(c), c.req.param("request_batch_id"))));
  });
}

function batchBody(row: BatchRow) {
  const { id, endpoint, errors, status, metadata, inputTokens, cachedTokens, outputTokens } = row;
  const at = (unixMs: number | null): number | null => (unixMs === null ? null : seconds(unixMs));
  return {
    id,
    object: "batch",
    endpoint,
    errors: errors === null ? null : { object: "list", data: errors },
    input_file_id: row.inputFileId,
    completion_window: "24h",
    status,
    output_file_id: row.outputFileId,
    error_file_id: row.errorFileId,
    created_at: seconds(row.createdAt),
    expires_at: seconds(row.expiresAt),
    in_progress_at: at(row.inProgressAt),
    finalizing_at: at(row.finalizingAt),
    completed_at: at(row.completedAt),
    failed_at: at(row.failedAt),
    expired_at: at(row.expiredAt),
    cancelling_at: at(row.cancellingAt),
    cancelled_at: at(row.cancelledAt),
    request_counts: { total: row.total, completed: row.completed, failed: row.failed },
    usage: {
      input_tokens: inputTokens,
      input_tokens_details: { cached_tokens: cachedTokens },
      output_tokens: outputTokens,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: inputTokens + outputTokens,
    },
    metadata,
  };
}
