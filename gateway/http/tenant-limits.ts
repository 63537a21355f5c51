/** /admin/v1: what a tenant and an API key may take. */
import type { Hono } from "hono";
import { z } from "zod";
import type { RateLimits } from "../../db/limits.ts";
import { limits as bounds } from "../config.ts";
import type { Scope } from "../principal.ts";
import type { TenantService } from "../tenant/tenants.ts";
import { type AppEnv, principalOf } from "./auth.ts";
import { readJson } from "./body.ts";
import { declare } from "./route.ts";
import { managedTenant } from "./tenants.ts";

const limit = (max: number) =>
  z
    .int()
    .min(1)
    .max(max)
    .nullish()
    .transform((value) => value ?? null);

/** A field that is left out, or null, is no limit. */
const limitsSchema = z
  .strictObject({
    requests_per_minute: limit(bounds.limitRequestsPerMinute),
    tokens_per_minute: limit(bounds.limitTokensPerMinute),
    concurrency: limit(bounds.limitConcurrency),
  })
  .transform(({ requests_per_minute, tokens_per_minute, concurrency }): RateLimits => {
    return { requestsPerMinute: requests_per_minute, tokensPerMinute: tokens_per_minute, concurrency };
  });

const count = z.int().nullable();
const limitsAnswer = z.object({
  id: z.string(),
  object: z.enum(["tenant.limits", "api_key.limits"]),
  requests_per_minute: count,
  tokens_per_minute: count,
  concurrency: count,
});

const either: readonly Scope[] = ["platform:admin", "tenant:admin"];

export function addLimitRoutes(app: Hono<AppEnv>, tenants: TenantService): void {
  declare(
    app,
    "GET",
    "/admin/v1/tenants/:tenant_id/limits",
    either,
    (c) => {
      const { id } = managedTenant(c, tenants, c.req.param("tenant_id"));
      return c.json(limitsBody("tenant", id, tenants.limits.ofTenant(id)));
    },
    { summary: "What the tenant may take.", answer: limitsAnswer },
  );

  // A tenant's own administrators cannot raise what the platform gives it.
  declare(
    app,
    "PUT",
    "/admin/v1/tenants/:tenant_id/limits",
    "platform:admin",
    async (c) => {
      const wanted = await readJson(c, limitsSchema);
      const { id } = managedTenant(c, tenants, c.req.param("tenant_id"));
      tenants.limits.setTenant(id, wanted);
      return c.json(limitsBody("tenant", id, wanted));
    },
    { summary: "Sets what the tenant may take.", body: limitsSchema, answer: limitsAnswer },
  );

  declare(
    app,
    "GET",
    "/admin/v1/keys/:key_id/limits",
    either,
    (c) => {
      const { id } = tenants.apiKeys.get(principalOf(c), c.req.param("key_id"));
      return c.json(limitsBody("api_key", id, tenants.limits.ofKey(id)));
    },
    { summary: "What the API key may take.", answer: limitsAnswer },
  );

  declare(
    app,
    "PUT",
    "/admin/v1/keys/:key_id/limits",
    either,
    async (c) => {
      const wanted = await readJson(c, limitsSchema);
      const { id } = tenants.apiKeys.get(principalOf(c), c.req.param("key_id"));
      tenants.limits.setKey(id, wanted);
      return c.json(limitsBody("api_key", id, wanted));
    },
    {
      summary: "Sets what the API key may take, within its tenant's limits.",
      body: limitsSchema,
      answer: limitsAnswer,
    },
  );
}

function limitsBody(kind: "tenant" | "api_key", id: string, limits: RateLimits) {
  return {
    id,
    object: `${kind}.limits`,
    requests_per_minute: limits.requestsPerMinute,
    tokens_per_minute: limits.tokensPerMinute,
    concurrency: limits.concurrency,
  };
}
