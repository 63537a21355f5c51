/** /admin/v1: tenants and their API keys. */
import type { Context, Hono } from "hono";
import { z } from "zod";
import type { ApiKeyRow } from "../../../db/api-keys.ts";
import { parseId, type TenantId } from "../../../db/ids.ts";
import type { TenantRow } from "../../../db/tenants.ts";
import { ApiError } from "../../base/errors.ts";
import type { BatchService } from "../../batches/service.ts";
import { limits } from "../../config.ts";
import type { Corpus } from "../../corpus/corpus.ts";
import { scopes } from "../../tenant/principal.ts";
import type { StoredResponses } from "../../tenant/stored-responses.ts";
import type { TenantService } from "../../tenant/tenants.ts";
import { changed } from "../middleware/audit.ts";
import {
  apiKeyAnswer,
  deletedAnswer,
  listOf,
  mintedKeyAnswer,
  saltAnswer,
  tenantAnswer,
} from "../transport/answer-schemas.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, principalOf } from "../transport/context.ts";
import { listBody, pageQuery, rangeOf, readNoFields, readQuery, seconds } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";

const name = z.string().min(1).max(256);
const createSchema = z.strictObject({ name });
const updateSchema = z.strictObject({
  name: name.optional(),
  status: z.enum(["active", "disabled"]).optional(),
});
const mintSchema = z.strictObject({
  scopes: z.array(z.enum(scopes)).min(1).max(scopes.length),
  name: z.string().max(256).default(""),
  expires_in_seconds: z
    .int()
    .min(1)
    .max(limits.keySeconds)
    .nullish()
    .describe("From now on the key is valid for so long; absent: until it is revoked."),
});

const purgeAbout = {
  summary: "Drops the tenant's KV, that of its vector stores included, from all workers; nothing else is changed.",
  answer: z.strictObject({
    id: z.string(),
    object: z.literal("tenant_cache.deleted"),
    deleted: z.literal(true),
    blocks: z.int().min(0).describe("Blocks that were held, on all workers."),
  }),
};

export interface TenantRouteDeps {
  readonly tenants: TenantService;
  readonly corpus: Corpus;
  /** Woken when a tenant is deleted, to delete its stored responses. */
  readonly stored: Pick<StoredResponses, "wake">;
  /** Called when a tenant or a key is gone, so that the batch lines that run for it end. */
  readonly batches: Pick<BatchService, "recheck">;
  /** Told of tenants that are deleted, whose traces it forgets. */
  readonly traces: { readonly forget: (tenantId: TenantId) => void };
}

/** What the routes do, for /openapi.json. */
const about = {
  create: { summary: "Makes a tenant.", body: createSchema, answer: tenantAnswer, status: 201 },
  list: { summary: "Lists tenants.", query: pageQuery, answer: listOf(tenantAnswer) },
  get: { summary: "Describes a tenant.", answer: tenantAnswer },
  update: { summary: "Renames, disables or enables a tenant.", body: updateSchema, answer: tenantAnswer },
  delete: { summary: "Deletes a tenant with all it owns.", answer: deletedAnswer },
  rotate: { summary: "Makes the KV of the tenant's own text unreachable.", answer: saltAnswer },
  keysCreate: { summary: "Makes an API key, shown this once.", body: mintSchema, answer: mintedKeyAnswer, status: 201 },
  keysList: { summary: "Lists a tenant's API keys.", query: pageQuery, answer: listOf(apiKeyAnswer) },
  keysDelete: { summary: "Revokes an API key.", answer: deletedAnswer },
};

export function addTenantRoutes(
  app: Hono<AppEnv>,
  { tenants, corpus, stored, batches, traces }: TenantRouteDeps,
): void {
  declare(app, "POST /admin/v1/tenants", about.create, async (c) => {
    const fields = await readJson(c, createSchema);
    return c.json(tenantBody(changed(c, () => tenants.create(fields.name))), 201);
  });

  declare(app, "GET /admin/v1/tenants", about.list, (c) => {
    const range = rangeOf(readQuery(c, pageQuery), (id) => tenants.get(requireId(id)));
    return c.json(listBody(tenants.list(range), tenantBody));
  });

  declare(app, "GET /admin/v1/tenants/:tenant_id", about.get, (c) =>
    c.json(tenantBody(managedTenant(c, tenants, c.req.param("tenant_id")))),
  );

  declare(app, "PATCH /admin/v1/tenants/:tenant_id", about.update, async (c) => {
    const change = await readJson(c, updateSchema);
    const id = requireId(c.req.param("tenant_id"));
    const row = changed(c, () => tenants.update(id, change));
    if (row.status !== "active") batches.recheck(id);
    return c.json(tenantBody(row));
  });

  declare(app, "DELETE /admin/v1/tenants/:tenant_id", about.delete, async (c) => {
    const id = requireId(c.req.param("tenant_id"));
    changed(c, () => tenants.delete(id));
    traces.forget(id);
    stored.wake();
    batches.recheck(id);
    await corpus.tenantDeleted(id);
    return c.json({ id, object: "tenant.deleted", deleted: true });
  });

  declare(app, "POST /admin/v1/tenants/:tenant_id/salt/rotate", about.rotate, async (c) => {
    await readNoFields(c);
    const { id } = managedTenant(c, tenants, c.req.param("tenant_id"));
    const epoch = changed(c, () => tenants.rotateSalt(id));
    corpus.tenantSaltRetired(id);
    return c.json({ id, object: "tenant.salt", epoch });
  });

  const purge = (c: Context<AppEnv, "/admin/v1/tenants/:tenant_id/cache">): Response => {
    const { id } = managedTenant(c, tenants, c.req.param("tenant_id"));
    return c.json({
      id,
      object: "tenant_cache.deleted",
      deleted: true,
      blocks: changed(c, () => corpus.purgeCache(id)),
    });
  };
  declare(app, "DELETE /admin/v1/tenants/:tenant_id/cache", purgeAbout, purge);

  addApiKeyRoutes(app, { tenants, batches });
}

type ApiKeyRouteDeps = Pick<TenantRouteDeps, "tenants" | "batches">;

function addApiKeyRoutes(app: Hono<AppEnv>, { tenants, batches }: ApiKeyRouteDeps): void {
  declare(app, "POST /admin/v1/tenants/:tenant_id/keys", about.keysCreate, async (c) => {
    const fields = await readJson(c, mintSchema);
    const { id } = managedTenant(c, tenants, c.req.param("tenant_id"));
    const expiresInS = fields.expires_in_seconds ?? undefined;
    const mint = () => tenants.apiKeys.mint(principalOf(c), id, fields.name, fields.scopes, expiresInS);
    const { row, apiKey } = changed(c, mint, (minted) => ({ id: minted.row.id }));
    // The only answer that ever holds a key: no cache may keep it.
    c.header("cache-control", "no-store");
    return c.json({ ...apiKeyBody(row), key: apiKey }, 201);
  });

  declare(app, "GET /admin/v1/tenants/:tenant_id/keys", about.keysList, (c) => {
    const { id } = managedTenant(c, tenants, c.req.param("tenant_id"));
    const range = rangeOf(readQuery(c, pageQuery), (keyId) => {
      const row = tenants.apiKeys.get(principalOf(c), keyId);
      if (row.tenantId !== id) throw new ApiError("not_found");
      return row;
    });
    return c.json(listBody(tenants.apiKeys.list(id, range), apiKeyBody));
  });

  declare(app, "DELETE /admin/v1/keys/:key_id", about.keysDelete, (c) => {
    const { id, tenantId } = changed(c, () => tenants.apiKeys.revoke(principalOf(c), c.req.param("key_id")), keyIds);
    if (tenantId !== null) batches.recheck(tenantId);
    return c.json({ id, object: "api_key.deleted", deleted: true });
  });
}

function requireId(raw: string): TenantId {
  const id = parseId("tenant", raw);
  if (id === undefined) throw new ApiError("not_found");
  return id;
}

/** A tenant the caller may manage; another one answers like one that does not exist. */
export function managedTenant(c: Context<AppEnv>, tenants: TenantService, raw: string): TenantRow {
  const principal = principalOf(c);
  const row = tenants.get(requireId(raw));
  if (principal.scopes.has("platform:admin") || row.id === principal.tenantId) return row;
  throw new ApiError("not_found");
}

/** Ids of a key that was changed and of its tenant, whose audit log shows the change. */
export const keyIds = ({ id, tenantId }: Pick<ApiKeyRow, "id" | "tenantId">): Record<string, string> =>
  tenantId === null ? { id } : { id, tenant_id: tenantId };

function tenantBody(row: TenantRow) {
  return { id: row.id, object: "tenant", name: row.name, status: row.status, created_at: seconds(row.createdAt) };
}

function apiKeyBody(row: ApiKeyRow) {
  return {
    id: row.id,
    object: "api_key",
    tenant_id: row.tenantId,
    name: row.name,
    prefix: row.prefix,
    scopes: row.scopes,
    created_at: seconds(row.createdAt),
    revoked_at: row.revokedAt === null ? null : seconds(row.revokedAt),
    expires_at: row.expiresAt === null ? null : seconds(row.expiresAt),
  };
}
