/** The audit log: what is written into it, and GET /admin/v1/audit. */
import type { Context, Hono } from "hono";
import { z } from "zod";
import type { AuditEventRow } from "../../../db/audit.ts";
import type { Log } from "../../base/log.ts";
import type { AuditedAction, AuditLog } from "../../tenant/audit.ts";
import { listOf } from "../transport/answer-schemas.ts";
import { type AppEnv, principalOf } from "../transport/context.ts";
import { listBody, pageQuery, rangeOf, readQuery, seconds } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import type { Step } from "./steps.ts";

/** Requests that administer or delete are audited; reading and asking questions change nothing. */
function isAudited(method: string, route: string): boolean {
  return method === "DELETE" || (route.startsWith("/admin/v1/") && method !== "GET" && method !== "HEAD");
}

/** Gives the handlers of audited routes what `changed` takes. */
export function auditTrail(audit: AuditLog, log: Log): Step {
  return (context) => {
    let written = false;
    context.set("audited", (change, made) => {
      const result = audit.withEvent(eventOf(context), change, made);
      written = true;
      return result;
    });
    return () => {
      const { method, routePath } = context.req;
      if (written || context.res.status >= 400 || !isAudited(method, routePath)) return;
      // The handler made its change without `changed`. That is a mistake in the handler; the change is recorded all the same.
      const fields = { requestId: context.get("requestId"), method, routePath };
      log("error", "a change was made before its audit event", fields);
      try {
        const nothing = (): undefined => undefined;
        audit.withEvent(eventOf(context), nothing, () => ({}));
      } catch {
        // The change is made, so the caller is told that it is, and the operator that it is not on record.
        log("error", "audit event could not be written", fields);
      }
    };
  };
}

/**
 * Makes a change and writes down that it was made: both or neither. A change that is refused throws, and is not written
 * down.
 * @param made ids beside those of the path; default: the result's `id`, or the result that is one
 */
export function changed<Result>(
  context: Context<AppEnv>,
  change: () => Result,
  made: (result: Result) => Readonly<Record<string, string>> = idOf,
): Result {
  const audited = context.get("audited");
  return audited === undefined ? change() : audited(change, made);
}

function idOf(result: unknown): Record<string, string> {
  const id: unknown = typeof result === "object" && result !== null && "id" in result ? result.id : result;
  return typeof id === "string" && idPattern.test(id) ? { id } : {};
}

function eventOf(context: Context<AppEnv>): AuditedAction {
  const { method, routePath } = context.req;
  return {
    requestId: context.get("requestId"),
    principal: principalOf(context),
    action: `${method} ${routePath.replace(/:(\w+)(?:\{[^}]*\})?/g, "{$1}")}`,
    objectIds: Object.fromEntries(Object.entries(context.req.param() as Record<string, string>).filter(isId)),
  };
}

const idPattern = /^[a-z]{2,12}[_-][0-9a-z]{24}$/;
const isId = ([, value]: readonly [string, string]): boolean => idPattern.test(value);

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
export const auditAnswer = listOf(eventAnswer);

/** What the route does, for /openapi.json. */
const about = {
  summary: "Who changed what, and when; a tenant's own with tenant:admin.",
  query: pageQuery,
  answer: auditAnswer,
};

export function addAuditRoutes(app: Hono<AppEnv>, { audit }: { readonly audit: AuditLog }): void {
  declare(app, "GET /admin/v1/audit", about, (c) => {
    const caller = principalOf(c);
    const range = rangeOf(readQuery(c, pageQuery), (id) => audit.get(caller, id));
    return c.json(listBody(audit.list(caller, range), eventBody));
  });
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
