/** GET /admin/v1/usage: tokens by day and tenant. */
import type { Hono } from "hono";
import { z } from "zod";
import type { UsageDayRow } from "../../../db/usage.ts";
import { ApiError } from "../../base/errors.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import { visibleTenant } from "../../tenant/audit.ts";
import { computedTokens, dayOf, type UsageLedger } from "../../tenant/usage.ts";
import { listOf, usageDayAnswer } from "../transport/answer-schemas.ts";
import { type AppEnv, principalOf } from "../transport/context.ts";
import { listBody, pageQuery, readQuery } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";

const usageQuery = z.strictObject({
  from: z.iso.date().optional(),
  to: z.iso.date().optional(),
  tenant_id: z.string().max(64).optional(),
  limit: pageQuery.shape.limit.default(corpusLimits.maxPageItems),
  after: z
    .string()
    .regex(/^\d{4}-\d\d-\d\d\.[\w-]{1,64}$/, "must be the id of a row")
    .optional(),
});

export const usageAnswer = listOf(usageDayAnswer);

const defaultDays = 31;
const dayMs = 86_400_000;

/** What the route does, for /openapi.json. */
const about = {
  summary: "Tokens by day and tenant, the latest day first; a tenant's own with tenant:admin.",
  query: usageQuery,
  answer: usageAnswer,
};

export function addUsageRoutes(app: Hono<AppEnv>, { usage }: { readonly usage: UsageLedger }): void {
  declare(app, "GET /admin/v1/usage", about, (c) => {
    const { from, to = dayOf(Date.now()), tenant_id: asked, limit, after } = readQuery(c, usageQuery);
    const firstDay = from ?? dayOf(Date.parse(to) - (defaultDays - 1) * dayMs);
    if (firstDay > to) throw new ApiError("invalid_value", { param: "from", message: "'from' is after 'to'." });
    const own = visibleTenant(principalOf(c));
    // Another tenant's usage looks like that of one that does not exist: there is none.
    if (own !== undefined && asked !== undefined && asked !== own)
      return c.json(listBody({ rows: [], hasMore: false }, dayBody));
    const range = { tenantId: own ?? asked, firstDay, lastDay: to, after: cursorOf(after), limit };
    return c.json(listBody(usage.list(range), dayBody));
  });
}

function cursorOf(after: string | undefined): Pick<UsageDayRow, "day" | "tenantId"> | undefined {
  return after === undefined ? undefined : { day: after.slice(0, 10), tenantId: after.slice(11) };
}

function dayBody(row: UsageDayRow): z.infer<typeof usageDayAnswer> {
  return {
    id: `${row.day}.${row.tenantId}`,
    object: "usage",
    day: row.day,
    tenant_id: row.tenantId,
    requests: row.requests,
    prompt_tokens: row.promptTokens,
    cached_tokens: row.cachedTokens,
    cache_write_tokens: row.cacheWriteTokens,
    completion_tokens: row.completionTokens,
    embedding_tokens: row.embeddingTokens,
    computed_tokens: computedTokens(row),
  };
}
