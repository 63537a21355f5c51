/**
 * GET /admin/v1/traces, /traces/{request_id} and /stats: the last requests and what they took, without text. A key with
 * `inference` sees its own requests, a tenant's administrator the tenant's, the platform's operators everybody's.
 * Whatever else there is answers as if it did not exist.
 */
import type { Hono } from "hono";
import { z } from "zod";
import { ApiError } from "../../base/errors.ts";
import type { Dispatcher } from "../../dispatch/dispatcher.ts";
import type { TraceHead } from "../../telemetry/ended-trace.ts";
import type { TraceRing, TraceView } from "../../telemetry/trace-ring.ts";
import {
  type Resolution,
  resolutions,
  type Stats,
  statsOfTraces,
  type TraceStats,
} from "../../telemetry/trace-stats.ts";
import { type Principal, platformReaders } from "../../tenant/principal.ts";
import { type AppEnv, principalOf } from "../transport/context.ts";
import { cursor, listBody, pageQuery, readQuery } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import {
  statsAnswer,
  statsBody,
  traceBody,
  traceDetailsAnswer,
  traceDetailsBody,
  traceListAnswer,
} from "./trace-answers.ts";

const tenantFilter = z
  .string()
  .max(64)
  .optional()
  .describe("For the platform's operators: one tenant's alone. For others the own tenant is all there is.");
const listQuery = z.strictObject({
  order: z
    .enum(["newest", "slowest"])
    .default("newest")
    .describe("The newest first, or those that took longest, which have one page alone."),
  limit: pageQuery.shape.limit.describe("Traces of a page."),
  after: cursor.optional().describe("The id of the last trace of the page before, with the newest first."),
  tenant_id: tenantFilter,
});
const statsQuery = z.strictObject({
  resolution: z
    .enum(Object.keys(resolutions) as [Resolution, ...Resolution[]])
    .default("minute")
    .describe("Minutes of the last two hours, or quarters of an hour of the last day."),
  tenant_id: tenantFilter,
});

/** What the routes do, for /openapi.json. */
const about = {
  list: {
    summary:
      "The last requests that ran something, 256 of each tenant, with what they took, without text: a key's own with inference, the tenant's with tenant:admin.",
    query: listQuery,
    answer: traceListAnswer,
  },
  get: {
    summary: "One of the last requests: its stages in time, its runs, and where the KV of its fragments was from.",
    answer: traceDetailsAnswer,
  },
  stats: {
    summary: "Requests, tokens and times by minute or quarter of an hour: a tenant's own; for operators all tenants'.",
    query: statsQuery,
    answer: statsAnswer,
  },
};

export interface TraceRouteDeps {
  readonly ring: Pick<TraceRing, "list" | "find" | "details">;
  readonly stats: Pick<TraceStats, "read">;
  readonly dispatcher: Pick<Dispatcher, "stats">;
}

export function addTraceRoutes(app: Hono<AppEnv>, { ring, stats, dispatcher }: TraceRouteDeps): void {
  declare(app, "GET /admin/v1/traces", about.list, (c) => {
    const { order, limit, after, tenant_id: asked } = readQuery(c, listQuery);
    if (order === "slowest" && after !== undefined) {
      throw new ApiError("invalid_value", { param: "after", message: "'after' goes with the order 'newest' alone." });
    }
    const view = viewOf(principalOf(c), asked);
    const found = after === undefined ? undefined : ring.find(after, view ?? {});
    if (after !== undefined && (found === undefined || view === undefined)) {
      throw new ApiError("not_found", { param: "after" });
    }
    const page = view === undefined ? nothing : ring.list(view, { limit, order, after: found });
    return c.json(listBody(page, traceBody));
  });

  declare(app, "GET /admin/v1/traces/:request_id", about.get, (c) => {
    const id = c.req.param("request_id");
    const view = viewOf(principalOf(c)) ?? {};
    const [head, details] = [ring.find(id, view), ring.details(id, view)];
    if (head === undefined || details === undefined) throw new ApiError("not_found");
    return c.json(traceDetailsBody(head, details));
  });

  declare(app, "GET /admin/v1/stats", about.stats, (c) => {
    const { resolution, tenant_id: asked } = readQuery(c, statsQuery);
    const caller = principalOf(c);
    const view = viewOf(caller, asked);
    const { running, unplaced } = dispatcher.stats();
    const body: z.infer<typeof statsAnswer> = {
      object: "stats",
      // Of another tenant the answer says nothing, not even whether there is one.
      tenant_id: seesAll(caller) ? (asked ?? null) : (caller.tenantId ?? null),
      resolution,
      covers: view?.keyId === undefined ? "all" : "recent",
      ...statsBody(view === undefined ? statsOfTraces([], resolution, 0) : statsFor(view, resolution)),
      now: seesAll(caller) ? { running_requests: running, waiting_requests: unplaced } : null,
    };
    return c.json(body);
  });

  function statsFor(view: TraceView, resolution: Resolution): Stats {
    if (view.keyId === undefined) return stats.read(resolution, view.tenantId);
    const { rows } = ring.list(view, { limit: Number.POSITIVE_INFINITY, order: "newest" });
    return statsOfTraces(rows, resolution, Date.now());
  }
}

const nothing: { readonly rows: readonly TraceHead[]; readonly hasMore: boolean } = { rows: [], hasMore: false };

const seesAll = ({ scopes }: Principal): boolean => platformReaders.some((scope) => scopes.has(scope));

/**
 * What the caller may see.
 * @param asked the tenant that it asks for
 * @returns undefined: it asks for another tenant, of which there is nothing
 * @throws ApiError no_tenant
 */
function viewOf(caller: Principal, asked?: string): TraceView | undefined {
  if (seesAll(caller)) return { tenantId: asked };
  const { tenantId, keyId, scopes } = caller;
  if (tenantId === undefined) throw new ApiError("no_tenant");
  if (asked !== undefined && asked !== tenantId) return undefined;
  return scopes.has("tenant:admin") ? { tenantId } : { tenantId, keyId };
}
