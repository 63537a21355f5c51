/** The audit log: what is written into it, and GET /admin/v1/audit. */
import type { Context, Hono, MiddlewareHandler } from "hono";
import { z } from "zod";
import type { AuditEventRow } from "../../db/audit.ts";
import type { Log } from "../log.ts";
import type { AuditLog } from "../tenant/audit.ts";
import { type AppEnv, principalOf } from "./auth.ts";
import { listBody, pageQuery, rangeOf, readQuery, seconds } from "./paging.ts";
import { declare } from "./route.ts";

/** What administers, and what removes. Reading and asking are not changes. */
function isAudited(method: string, route: string): boolean {
  return method === "DELETE" || (route.startsWith("/admin/v1/") && method !== "GET" && method !== "HEAD");
}

/** Writes down each change that was made; one that was refused changed nothing. */
export function auditTrail(audit: AuditLog, log: Log): MiddlewareHandler<AppEnv> {
  return async (context, next) => {
    await next();
    const { method, routePath } = context.req;
    const principal = context.get("principal");
    if (principal === undefined || context.res.status >= 400 || !isAudited(method, routePath)) return;
    const requestId = context.get("requestId");
    const action = `${method} ${routePath.replace(/:(\w+)(?:\{[^}]*\})?/g, "{$1}")}`;
    try {
      audit.record({ requestId, principal, action, objectIds: await objectIdsOf(context) });
    } catch {
      // The change is made: its caller must learn that, and the operator that it is not on record.
      log("error", "audit event could not be written", { requestId, action });
    }
  };
}

const idPattern = /^[a-z]{2,12}[_-][0-9a-z]{24}$/;

/** Ids of the path, and of the answer. */
async function objectIdsOf(context: Context<AppEnv>): Promise<Record<string, string>> {
  const named = Object.entries(context.req.param() as Record<string, string>);
  const isJson = context.res.headers.get("content-type")?.startsWith("application/json") === true;
  const answer: unknown = isJson ? await context.res.clone().json() : undefined;
  const made = typeof answer === "object" && answer !== null && "id" in answer ? [["id", answer.id] as const] : [];
  const isId = (entry: readonly [string, unknown]): entry is [string, string] =>
    typeof entry[1] === "string" && idPattern.test(entry[1]);
  return Object.fromEntries([...named, ...made].filter(isId));
}

const eventAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("audit_event"),
  at: z.int().describe("Unix time in seconds."),
  request_id: z.string(),
  actor: z.strictObject({ key_id: z.string(), tenant_id: z.string().nullable() }),
  tenant_id: z.string().nullable(),
  action: z.string(),
  object_ids: z.record(z.string(), z.string()),
});
export const auditAnswer = z.strictObject({
  object: z.literal("list"),
  data: z.array(eventAnswer),
  first_id: z.string().nullable(),
  last_id: z.string().nullable(),
  has_more: z.boolean(),
});

export function addAuditRoutes(app: Hono<AppEnv>, { audit }: { readonly audit: AuditLog }): void {
  declare(
    app,
    "GET",
    "/admin/v1/audit",
    ["platform:admin", "tenant:admin"],
    (c) => {
      const caller = principalOf(c);
      const range = rangeOf(readQuery(c, pageQuery), (id) => audit.get(caller, id));
      return c.json(listBody(audit.list(caller, range), eventBody));
    },
    { summary: "Who changed what, and when; a tenant's own with tenant:admin.", query: pageQuery, answer: auditAnswer },
  );
}

function eventBody(row: AuditEventRow): z.infer<typeof eventAnswer> {
  return {
    id: row.id,
    object: "audit_event",
    at: seconds(row.at),
    request_id: row.requestId,
    actor: { key_id: row.keyId, tenant_id: row.actorTenantId },
    tenant_id: row.tenantId,
    action: row.action,
    object_ids: row.objectIds,
  };
}
