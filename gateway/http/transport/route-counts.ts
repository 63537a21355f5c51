/**
 * How a request counts against its caller's limits a minute: whatever computes, writes or reads much is a request and has
 * a place until it ends. What clients ask again and again while they wait is a look, of which there are many more. What
 * ends work, or tells nothing of a tenant's, never counts: who has reached a limit must be able to end what he runs.
 */
import type { Scope } from "../../base/principal.ts";

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

/** "public": no key needed. A list: any one of the scopes is enough. */
export type RouteScope = Scope | readonly Scope[] | "public";

export type RouteCount = "request" | "look" | "free";

/** Of one object that is there whole, or of the few that a limit allows. */
const looks: ReadonlySet<string> = new Set([
  "/v1/files/:file_id",
  "/v1/vector_stores/:vector_store_id",
  "/v1/vector_stores/:vector_store_id/files/:file_id",
  "/v1/vector_stores/:vector_store_id/file_batches/:batch_id",
  "/v1/responses/:response_id",
  "/v1/query/bulk/:bulk_id",
  "/v1/query/bulk/:bulk_id/results/:result_id",
  "/v1/batches/:request_batch_id",
  "/v1/messages/batches/:message_batch_id",
  "/v1/models",
  "/v1/models/:id",
  "/admin/v1/jobs/:job_id",
  "/admin/v1/jobs/:job_id/events",
  "/admin/v1/tenants/:tenant_id",
  "/admin/v1/tenants/:tenant_id/limits",
  "/admin/v1/keys/:key_id/limits",
]);

export function countOf(method: Method, path: string, scope: RouteScope): RouteCount {
  if (scope === "public" || method === "DELETE" || path.endsWith("/cancel")) return "free";
  return method === "GET" && looks.has(path) ? "look" : "request";
}
