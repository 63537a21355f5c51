/**
 * Every route: who may call it, and how it counts against its caller's limits a minute. Default deny: a route that is
 * not listed here cannot be declared.
 *
 *   request  computes, writes or reads much: it counts as a request, and takes a place until it ends
 *   look     reads one stored object, or few: clients ask for it again and again while they wait, so many more of
 *            these are allowed a minute
 *   free     never counts: it ends work, or tells nothing of a tenant. A caller who has reached a limit must be able to
 *            end what runs
 */
import { platformReaders, type Scope, scopes } from "../../tenant/principal.ts";

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

/** "public": no key needed. A list: any one of the scopes is enough. */
export type RouteScope = Scope | readonly Scope[] | "public";

export type RouteCount = "request" | "look" | "free";

/** Administrators: the platform's for every tenant, a tenant's own for that tenant. */
const admins: readonly Scope[] = ["platform:admin", "tenant:admin"];

/** Whoever asks, of its own requests; administrators, of their tenant's; operators, of all. */
const observed: readonly Scope[] = ["inference", "tenant:admin", ...platformReaders];

export const routes = {
  // OpenAI's API.
  "POST /v1/files": ["corpus:write", "request"],
  "GET /v1/files": ["corpus:read", "request"],
  "GET /v1/files/:file_id": ["corpus:read", "look"],
  "DELETE /v1/files/:file_id": ["corpus:write", "free"],
  "GET /v1/files/:file_id/content": ["corpus:read", "request"],
  "POST /v1/uploads": ["corpus:write", "request"],
  "POST /v1/uploads/:upload_id/parts": ["corpus:write", "request"],
  "POST /v1/uploads/:upload_id/complete": ["corpus:write", "request"],
  "POST /v1/uploads/:upload_id/cancel": ["corpus:write", "free"],
  "POST /v1/vector_stores": ["corpus:write", "request"],
  "GET /v1/vector_stores": ["corpus:read", "request"],
  "GET /v1/vector_stores/:vector_store_id": ["corpus:read", "look"],
  "POST /v1/vector_stores/:vector_store_id": ["corpus:write", "request"],
  "DELETE /v1/vector_stores/:vector_store_id": ["corpus:write", "free"],
  "POST /v1/vector_stores/:vector_store_id/search": ["corpus:read", "request"],
  "POST /v1/vector_stores/:vector_store_id/files": ["corpus:write", "request"],
  "GET /v1/vector_stores/:vector_store_id/files": ["corpus:read", "request"],
  "GET /v1/vector_stores/:vector_store_id/files/:file_id": ["corpus:read", "look"],
  "POST /v1/vector_stores/:vector_store_id/files/:file_id": ["corpus:write", "request"],
  "DELETE /v1/vector_stores/:vector_store_id/files/:file_id": ["corpus:write", "free"],
  "GET /v1/vector_stores/:vector_store_id/files/:file_id/content": ["corpus:read", "request"],
  "POST /v1/vector_stores/:vector_store_id/file_batches": ["corpus:write", "request"],
  "GET /v1/vector_stores/:vector_store_id/file_batches/:batch_id": ["corpus:read", "look"],
  "POST /v1/vector_stores/:vector_store_id/file_batches/:batch_id/cancel": ["corpus:write", "free"],
  "GET /v1/vector_stores/:vector_store_id/file_batches/:batch_id/files": ["corpus:read", "request"],
  "POST /v1/chat/completions": ["inference", "request"],
  "POST /v1/completions": ["inference", "request"],
  "POST /tokenize": ["inference", "request"],
  "POST /detokenize": ["inference", "request"],
  "POST /v1/embeddings": ["inference", "request"],
  "POST /v1/rerank": ["inference", "request"],
  "POST /v1/batches": ["inference", "request"],
  "GET /v1/batches": ["inference", "request"],
  "GET /v1/batches/:request_batch_id": ["inference", "look"],
  "POST /v1/batches/:request_batch_id/cancel": ["inference", "free"],
  "GET /v1/models": [scopes, "look"],
  "GET /v1/models/:id": [scopes, "look"],
  // OpenAI's API of responses.
  "POST /v1/responses": ["inference", "request"],
  "POST /v1/responses/input_tokens": ["inference", "request"],
  "GET /v1/responses/:response_id": ["inference", "look"],
  "DELETE /v1/responses/:response_id": ["inference", "free"],
  "POST /v1/responses/:response_id/cancel": ["inference", "free"],
  "GET /v1/responses/:response_id/input_items": ["inference", "request"],
  // Anthropic's API.
  "POST /v1/messages": ["inference", "request"],
  "POST /v1/messages/count_tokens": ["inference", "request"],
  "POST /v1/messages/batches": ["inference", "request"],
  "GET /v1/messages/batches": ["inference", "request"],
  "GET /v1/messages/batches/:message_batch_id": ["inference", "look"],
  "POST /v1/messages/batches/:message_batch_id/cancel": ["inference", "free"],
  "DELETE /v1/messages/batches/:message_batch_id": ["inference", "free"],
  "GET /v1/messages/batches/:message_batch_id/results": ["inference", "request"],
  // Span queries.
  "POST /v1/query/execute": ["inference", "request"],
  "POST /v1/query/prepare": [["inference", "corpus:prepare"], "request"],
  "POST /v1/query/explain": ["inference", "request"],
  "POST /v1/query/bulk": ["inference", "request"],
  "GET /v1/query/bulk/:bulk_id": ["inference", "look"],
  "GET /v1/query/bulk/:bulk_id/results/:result_id": ["inference", "look"],
  // Tools for clients of the Model Context Protocol; each tool asks for a scope of its own.
  "POST /mcp": [["inference", "corpus:read"], "request"],
  // Tenants and operators.
  "POST /admin/v1/tenants": ["platform:admin", "request"],
  "GET /admin/v1/tenants": ["platform:admin", "request"],
  "GET /admin/v1/tenants/:tenant_id": [admins, "look"],
  "PATCH /admin/v1/tenants/:tenant_id": ["platform:admin", "request"],
  "DELETE /admin/v1/tenants/:tenant_id": ["platform:admin", "free"],
  "POST /admin/v1/tenants/:tenant_id/salt/rotate": [admins, "request"],
  "DELETE /admin/v1/tenants/:tenant_id/cache": [admins, "free"],
  "POST /admin/v1/tenants/:tenant_id/keys": [admins, "request"],
  "GET /admin/v1/tenants/:tenant_id/keys": [admins, "request"],
  "DELETE /admin/v1/keys/:key_id": [admins, "free"],
  "GET /admin/v1/tenants/:tenant_id/limits": [admins, "look"],
  "PUT /admin/v1/tenants/:tenant_id/limits": ["platform:admin", "request"],
  "GET /admin/v1/keys/:key_id/limits": [admins, "look"],
  "PUT /admin/v1/keys/:key_id/limits": [admins, "request"],
  "POST /admin/v1/vector_stores/:vector_store_id/salt/rotate": [admins, "request"],
  "POST /admin/v1/vector_stores/:vector_store_id/grants": ["tenant:admin", "request"],
  "GET /admin/v1/vector_stores/:vector_store_id/grants": ["tenant:admin", "request"],
  "DELETE /admin/v1/vector_stores/:vector_store_id/grants/:tenant_id": ["tenant:admin", "free"],
  "POST /admin/v1/vector_stores/:vector_store_id/prepare": ["corpus:prepare", "request"],
  "GET /admin/v1/jobs/:job_id": ["corpus:prepare", "look"],
  "GET /admin/v1/jobs/:job_id/events": ["corpus:prepare", "look"],
  "POST /admin/v1/jobs/:job_id/cancel": ["corpus:prepare", "free"],
  "POST /admin/v1/vector_stores/:vector_store_id/sources": ["corpus:write", "request"],
  "GET /admin/v1/vector_stores/:vector_store_id/sources": ["corpus:read", "request"],
  "GET /admin/v1/sources/:source_id": ["corpus:read", "look"],
  "POST /admin/v1/sources/:source_id/run": ["corpus:write", "request"],
  "DELETE /admin/v1/sources/:source_id": ["corpus:write", "free"],
  "POST /admin/v1/fragments/:fragment_id/pin": ["corpus:prepare", "request"],
  "POST /admin/v1/fragments/:fragment_id/unpin": ["corpus:prepare", "request"],
  "POST /admin/v1/fragments/:fragment_id/evict": ["corpus:prepare", "request"],
  "GET /admin/v1/vector_stores/:vector_store_id/fragments": ["corpus:read", "request"],
  "GET /admin/v1/cache": [[...platformReaders, "tenant:admin"], "look"],
  "GET /admin/v1/cache/events": [[...platformReaders, "tenant:admin"], "look"],
  "GET /admin/v1/kv-events": [platformReaders, "request"],
  "GET /admin/v1/traces": [observed, "look"],
  "GET /admin/v1/traces/:request_id": [observed, "look"],
  "GET /admin/v1/stats": [observed, "look"],
  "GET /health": ["public", "free"],
  "GET /ready": ["public", "free"],
  "GET /metrics": [platformReaders, "request"],
  "GET /admin/v1/workers": [platformReaders, "request"],
  "GET /admin/v1/audit": [[...platformReaders, "tenant:admin"], "request"],
  "GET /admin/v1/usage": [[...platformReaders, "tenant:admin"], "request"],
  // The console, and its sessions.
  "GET /": ["public", "free"],
  "GET /console/:asset": ["public", "free"],
  "POST /admin/v1/session": ["public", "free"],
  "GET /admin/v1/session": [scopes, "free"],
  "DELETE /admin/v1/session": [scopes, "free"],
  // The description of all this.
  "GET /openapi.json": ["public", "free"],
  "GET /docs": ["public", "free"],
  "GET /docs/search": ["public", "free"],
  "GET /docs/style.css": ["public", "free"],
  "GET /docs/pictures/:picture": ["public", "free"],
  "GET /docs/api/:resource": ["public", "free"],
  "GET /docs/:page": ["public", "free"],
} as const satisfies Readonly<Record<`${Method} /${string}`, readonly [scope: RouteScope, count: RouteCount]>>;

export type RouteName = keyof typeof routes;
