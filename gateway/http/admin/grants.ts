/** /admin/v1/vector_stores/{id}/grants: whom a tenant lets read its vector store. */
import type { Context, Hono } from "hono";
import { z } from "zod";
import type { GrantRow } from "../../../db/grants.ts";
import type { Corpus } from "../../corpus/corpus.ts";
import { changed } from "../middleware/audit.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { seconds } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";

const createSchema = z.strictObject({ tenant_id: z.string().min(1).max(64) });

const grant = z.strictObject({
  object: z.literal("vector_store.grant"),
  vector_store_id: z.string(),
  tenant_id: z.string(),
  created_at: z.int().describe("Unix time in seconds."),
});
const grants = z.strictObject({ object: z.literal("list"), data: z.array(grant) });
const deleted = z.strictObject({
  id: z.string(),
  object: z.literal("vector_store.grant.deleted"),
  deleted: z.literal(true),
});

const path = "/admin/v1/vector_stores/:vector_store_id/grants";
const createAbout = {
  summary: "Lets another tenant read a vector store. Both share one copy of its KV, which is counted for the owner.",
  body: createSchema,
  answer: grant,
  status: 201,
};
const listAbout = { summary: "Lists whom a vector store is shared with, the oldest grant first.", answer: grants };
const revokeAbout = { summary: "Ends the sharing: to that tenant the vector store is unknown.", answer: deleted };

export function addGrantRoutes(app: Hono<AppEnv>, { corpus }: { readonly corpus: Corpus }): void {
  const share = async (c: Context<AppEnv, typeof path>): Promise<Response> => {
    const { tenant_id: grantee } = await readJson(c, createSchema);
    const owner = tenantIdOf(c);
    const create = () => corpus.grants.create(owner, c.req.param("vector_store_id"), grantee);
    const row = changed(c, create, ({ tenantId }) => ({ tenant_id: tenantId }));
    return c.json(grantBody(row), 201);
  };
  const list = (c: Context<AppEnv, typeof path>): Response => {
    const rows = corpus.grants.list(tenantIdOf(c), c.req.param("vector_store_id"));
    return c.json({ object: "list", data: rows.map(grantBody) });
  };
  const revoke = (c: Context<AppEnv, `${typeof path}/:tenant_id`>): Response => {
    const { vector_store_id: id, tenant_id: grantee } = c.req.param();
    const revoked = changed(c, () => corpus.grants.revoke(tenantIdOf(c), id, grantee));
    return c.json({ id: revoked, object: "vector_store.grant.deleted", deleted: true });
  };
  declare(app, `POST ${path}`, createAbout, share);
  declare(app, `GET ${path}`, listAbout, list);
  declare(app, `DELETE ${path}/:tenant_id`, revokeAbout, revoke);
}

function grantBody({ corpusId, tenantId, createdAt }: GrantRow) {
  const ids = { vector_store_id: corpusId, tenant_id: tenantId };
  return { object: "vector_store.grant", ...ids, created_at: seconds(createdAt) };
}
