/** /v1/messages/batches: messages that are made when there is room for them, for Anthropic's clients. */
import type { Context, Hono } from "hono";
import { z } from "zod";
import type { BatchRow } from "../../../db/batches.ts";
import type { TenantId } from "../../../db/ids.ts";
import { endedAtOf } from "../../batches/message-results.ts";
import type { BatchService } from "../../batches/service.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import { changed } from "../middleware/audit.ts";
import type { ConcurrencyLimiter } from "../middleware/concurrency.ts";
import { requireJson } from "../transport/body.ts";
import { byteStreamResponse } from "../transport/byte-stream.ts";
import { type AppEnv, principalOf, tenantIdOf } from "../transport/context.ts";
import { cursor, rangeOf, readNoFields, readQuery, wholeNumber } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import { createSchema, MessageRequests } from "./message-requests.ts";
import { checkVersion } from "./messages.ts";

const maxPageItems = 1_000;
const listQuery = z.strictObject({
  limit: wholeNumber.pipe(z.number().min(1).max(maxPageItems)).default(corpusLimits.defaultPageItems),
  after_id: cursor.optional(),
  before_id: cursor.optional(),
  // Their client's name for what it has in `beta`; the same here.
  beta: z.literal("true").optional(),
});

/** As RFC 3339 has times. */
const time = z.string();
const count = z.int().min(0);
const batchAnswer = z.strictObject({
  id: z.string(),
  type: z.literal("message_batch"),
  processing_status: z.enum(["in_progress", "canceling", "ended"]),
  request_counts: z.strictObject({
    ...{ processing: count, succeeded: count, errored: count, canceled: count, expired: count },
  }),
  created_at: time,
  expires_at: time,
  ended_at: time.nullable(),
  cancel_initiated_at: time.nullable(),
  archived_at: z.null(),
  results_url: z.string().nullable().describe("A path of this server."),
});
const id = z.string().nullable();
const listAnswer = z.strictObject({ data: z.array(batchAnswer), first_id: id, last_id: id, has_more: z.boolean() });
const deletedAnswer = z.strictObject({ id: z.string(), type: z.literal("message_batch_deleted") });

export interface MessageBatchRouteDeps {
  readonly batches: BatchService;
  /** Limits the batches whose requests are being read at the same time. */
  readonly uploads: ConcurrencyLimiter;
  /** Limits the result files that are being read at the same time. */
  readonly downloads: ConcurrencyLimiter;
}

const path = "/v1/messages/batches";
const kind = "messageBatch";

/** What the routes do, for /openapi.json. */
const about = {
  create: { summary: "Makes many messages within a day.", body: createSchema, answer: batchAnswer },
  list: { summary: "The tenant's batches of messages, newest first.", query: listQuery, answer: listAnswer },
  get: { summary: "How far a batch of messages is.", answer: batchAnswer },
  cancel: { summary: "Ends a batch of messages; what is made by then stays.", answer: batchAnswer },
  delete: { summary: "Deletes a batch that has ended, with its requests and results.", answer: deletedAnswer },
  results: { summary: "Results of a batch that has ended, a line each.", answerTypes: ["application/x-jsonl"] },
};

export function addMessageBatchRoutes(app: Hono<AppEnv>, deps: MessageBatchRouteDeps): void {
  addListRoutes(app, deps);
  addObjectRoutes(app, deps);
  addResultsRoute(app, deps);
}

function addListRoutes(app: Hono<AppEnv>, { batches, uploads }: MessageBatchRouteDeps): void {
  declare(app, `POST ${path}`, about.create, async (c) => {
    const tenantId = tenantIdOf(c);
    checkVersion(c);
    requireJson(c);
    using _hold = uploads.enter(tenantId);
    return c.json(batchBody(await created(c, batches, tenantId)));
  });

  declare(app, `GET ${path}`, about.list, (c) => {
    const tenantId = tenantIdOf(c);
    checkVersion(c);
    const { limit, after_id: after, before_id: before } = readQuery(c, listQuery);
    const range = rangeOf({ limit, order: "desc", after, before }, (id) => batches.get(tenantId, id, kind), "_id");
    const { rows, hasMore } = batches.list(tenantId, range, kind);
    const ids = { first_id: rows[0]?.id ?? null, last_id: rows.at(-1)?.id ?? null };
    return c.json({ data: rows.map(batchBody), ...ids, has_more: hasMore });
  });
}

/** The batch of the requests in the body, which become a file as they come. */
async function created(c: Context<AppEnv>, batches: BatchService, tenantId: TenantId): Promise<BatchRow> {
  const requests = new MessageRequests();
  const announced = Number(c.req.header("content-length") ?? corpusLimits.maxUploadBytes);
  return await batches.createMessages(principalOf(c), tenantId, announced, async (file) => {
    await requests.read(c, (lines) => file.add(lines));
    return requests.count;
  });
}

function addObjectRoutes(app: Hono<AppEnv>, { batches }: MessageBatchRouteDeps): void {
  declare(app, `GET ${path}/:message_batch_id`, about.get, (c) => {
    checkVersion(c);
    return c.json(batchBody(batches.get(tenantIdOf(c), c.req.param("message_batch_id"), kind)));
  });

  declare(app, `POST ${path}/:message_batch_id/cancel`, about.cancel, async (c) => {
    checkVersion(c);
    await readNoFields(c);
    return c.json(batchBody(batches.cancel(tenantIdOf(c), c.req.param("message_batch_id"), kind)));
  });

  declare(app, `DELETE ${path}/:message_batch_id`, about.delete, (c) => {
    const tenantId = tenantIdOf(c);
    checkVersion(c);
    const id = changed(c, () => batches.deleteMessages(tenantId, c.req.param("message_batch_id")));
    return c.json({ id, type: "message_batch_deleted" });
  });
}

function addResultsRoute(app: Hono<AppEnv>, { batches, downloads }: MessageBatchRouteDeps): void {
  declare(app, `GET ${path}/:message_batch_id/results`, about.results, async (c) => {
    const tenantId = tenantIdOf(c);
    checkVersion(c);
    const enter = (): (() => void) => downloads.enter(tenantId);
    const pieces = await batches.messageResults(tenantId, c.req.param("message_batch_id"), enter);
    c.header("content-type", "application/x-jsonl");
    c.header("x-content-type-options", "nosniff");
    return byteStreamResponse(c, pieces);
  });
}

function batchBody(row: BatchRow): z.infer<typeof batchAnswer> {
  const at = (unixMs: number | null): string | null => (unixMs === null ? null : new Date(unixMs).toISOString());
  const endedAt = endedAtOf(row);
  return {
    id: row.id,
    type: "message_batch",
    processing_status: endedAt !== null ? "ended" : row.status === "cancelling" ? "canceling" : "in_progress",
    request_counts: countsOf(row, endedAt !== null),
    created_at: new Date(row.createdAt).toISOString(),
    expires_at: new Date(row.expiresAt).toISOString(),
    ended_at: at(endedAt),
    cancel_initiated_at: at(row.cancellingAt),
    archived_at: null,
    // Not a whole URL: what stands before the server may be another name, or another protocol.
    results_url: endedAt === null || row.outputFileId === null ? null : `${path}/${row.id}/results`,
  };
}

/** As in Anthropic's API, all requests count as being processed until the batch has ended. */
function countsOf({ status, total, completed, failed }: BatchRow, hasEnded: boolean) {
  const none = { processing: 0, succeeded: 0, errored: 0, canceled: 0, expired: 0 };
  if (!hasEnded) return { ...none, processing: total };
  const rest = total - completed - failed;
  return {
    ...none,
    succeeded: completed,
    errored: failed + (status === "failed" ? rest : 0),
    canceled: status === "cancelled" ? rest : 0,
    expired: status === "expired" ? rest : 0,
  };
}
