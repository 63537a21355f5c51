/** /v1/query/bulk: many span queries in one request, their results as they finish, and afterwards by id. */

import type { Context, Hono } from "hono";
import { z } from "zod";
import type { TenantId } from "../../../db/ids.ts";
import { ApiError, errorBody } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import { limits } from "../../config.ts";
import { type BulkRunner, runBulk } from "../../execute/bulk/bulk.ts";
import { type BulkLines, findBulkLines } from "../../execute/bulk/bulk-lines.ts";
import type { BulkRecord, BulkResults } from "../../execute/bulk/bulk-results.ts";
import { tokenCounts } from "../generation/report.ts";
import type { ConcurrencyLimiter } from "../middleware/concurrency.ts";
import { logFailure } from "../middleware/every-request.ts";
import { useTextPieces } from "../transport/body.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { readQuery, seconds } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import { type Framing, type TextStreamOptions, textStreamResponse } from "../transport/text-stream.ts";

const contentTypes = /^(application\/(x-ndjson|jsonl|json-lines)|text\/plain)\s*(;|$)/i;

const bulkQuery = z.strictObject({
  order: z.enum(["planned", "ingestion"]).default("planned"),
  concurrency: z
    .string()
    .regex(/^\d{1,4}$/, "must be a whole number")
    .transform(Number)
    .pipe(z.number().min(1).max(limits.maxBulkConcurrency))
    .default(limits.bulkConcurrency),
});

const framing: Framing = {
  contentType: "application/x-ndjson; charset=utf-8",
  ping: "\n",
  error: (error) => `${JSON.stringify(errorBody(error))}\n`,
};

export interface BulkRouteDeps {
  readonly results: BulkResults;
  readonly runnerFor: (tenantId: TenantId) => BulkRunner;
  /** What the KV pool of one worker holds. @throws ApiError not_ready */
  readonly capacityTokens: () => number;
  readonly limiter: ConcurrencyLimiter;
  readonly log: Log;
  readonly stream?: Pick<TextStreamOptions, "pingMs" | "stallMs">;
}

/** What the routes do, for /openapi.json. */
const about = {
  bulk: {
    summary: "Runs many span queries, a JSON line each.",
    query: bulkQuery,
    bodyTypes: ["application/x-ndjson"],
    answerTypes: ["application/x-ndjson"],
  },
  get: { summary: "How far a bulk request is." },
  resultsGet: { summary: "One result of a bulk request." },
};

export function addBulkRoutes(app: Hono<AppEnv>, deps: BulkRouteDeps): void {
  declare(app, "POST /v1/query/bulk", about.bulk, async (c) => {
    const tenantId = tenantIdOf(c);
    const query = readQuery(c, bulkQuery);
    const leave = deps.limiter.enter(tenantId);
    try {
      return await bulkResponse(c, deps, { tenantId, ...query, leave });
    } catch (error) {
      leave();
      // The caller has gone while the lines were read: nobody is left to tell.
      if (c.req.raw.signal.aborted) return c.body(null);
      throw error;
    }
  });

  declare(app, "GET /v1/query/bulk/:bulk_id", about.get, (c) => {
    const record = deps.results.bulk(tenantIdOf(c), c.req.param("bulk_id"));
    if (record === undefined) throw new ApiError("not_found");
    return c.json(bulkBody(record));
  });

  declare(app, "GET /v1/query/bulk/:bulk_id/results/:result_id", about.resultsGet, (c) => {
    const line = deps.results.line(tenantIdOf(c), c.req.param("bulk_id"), c.req.param("result_id"));
    if (line === undefined) throw new ApiError("not_found");
    return c.body(line, 200, { "content-type": "application/json" });
  });
}

interface BulkRequest extends z.infer<typeof bulkQuery> {
  readonly tenantId: TenantId;
  /** Called once, when nothing of the request runs any more. */
  readonly leave: () => void;
}

async function bulkResponse(c: Context<AppEnv>, deps: BulkRouteDeps, request: BulkRequest): Promise<Response> {
  const lines = await readLines(c);
  const capacityTokens = deps.capacityTokens();
  const record = deps.results.open(request.tenantId, lines.length);
  const requestId = c.get("requestId");
  const log = (error: ApiError): void => {
    if (error.status >= 500) logFailure(deps.log, error, requestId);
  };
  c.header("x-bulk-id", record.id);
  return textStreamResponse(
    c,
    framing,
    async (stream) => {
      try {
        await stream.write(summaryLine(record));
        await runBulk({
          requestId,
          lines,
          order: request.order,
          concurrency: request.concurrency,
          capacityTokens,
          runner: deps.runnerFor(request.tenantId),
          record,
          onLine: (line) => stream.write(`${line}\n`),
          onError: log,
          signal: AbortSignal.any([stream.signal, c.req.raw.signal]),
        });
        await stream.write(summaryLine(record));
      } finally {
        request.leave();
      }
    },
    { ...deps.stream, onError: log },
  );
}

/** @throws ApiError unsupported_media_type, body_too_large, invalid_json */
async function readLines(c: Context<AppEnv>): Promise<BulkLines> {
  if (!contentTypes.test(c.req.header("content-type") ?? "")) {
    throw new ApiError("unsupported_media_type", { message: "Send JSON lines as application/x-ndjson." });
  }
  return await useTextPieces(c, limits.bulkBodyBytes, (pieces) => findBulkLines(pieces, c.req.raw.signal));
}

/** First and last line of the answer; result lines have no `bulk`. */
const summaryLine = (record: BulkRecord): string => `${JSON.stringify({ bulk: bulkBody(record) })}\n`;

function bulkBody(record: BulkRecord) {
  const { status, order, completed, failed, usage, endedMs } = record.state();
  return {
    id: record.id,
    object: "query.bulk",
    status,
    order: order ?? null,
    counts: { total: record.total, completed, failed },
    usage: tokenCounts(usage),
    created_at: seconds(record.createdMs),
    finished_at: endedMs === undefined ? null : seconds(endedMs),
  };
}
