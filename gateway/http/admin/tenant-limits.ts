/** /admin/v1: what a tenant and an API key may take. */
import type { Hono } from "hono";
import { z } from "zod";
import type { TenantId } from "../../../db/ids.ts";
import type { RateLimits, TenantLimits, TokenBudget } from "../../../db/limits.ts";
import { limits as bounds } from "../../config.ts";
import type { TenantStorage } from "../../tenant/storage.ts";
import type { TenantService } from "../../tenant/tenants.ts";
import type { TokenBudgets } from "../../tenant/token-budgets.ts";
import { changed } from "../middleware/audit.ts";
import { keyLimitsAnswer, tenantLimitsAnswer } from "../transport/answer-schemas.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, principalOf } from "../transport/context.ts";
import { seconds } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import { keyIds, managedTenant } from "./tenants.ts";

const limit = (max: number) =>
  z
    .int()
    .min(1)
    .max(max)
    .nullish()
    .transform((value) => value ?? null);

const rateFields = {
  requests_per_minute: limit(bounds.limitRequestsPerMinute),
  tokens_per_minute: limit(bounds.limitTokensPerMinute),
  concurrency: limit(bounds.limitConcurrency),
};

type RateBody = Readonly<Record<keyof typeof rateFields, number | null>>;

const ratesOf = ({ requests_per_minute, tokens_per_minute, concurrency }: RateBody): RateLimits => {
  return { requestsPerMinute: requests_per_minute, tokensPerMinute: tokens_per_minute, concurrency };
};

/** A field that is left out, or null, is no limit. */
const keyLimitsSchema = z.strictObject(rateFields).transform(ratesOf);
const tenantLimitsSchema = z
  .strictObject({
    ...rateFields,
    kv_bytes: limit(bounds.limitBytes).describe("Bytes of KV on each worker."),
    kv_disk_bytes: limit(bounds.limitBytes).describe("Bytes of KV in files: what was used longest ago goes first."),
    kv_s3_bytes: limit(bounds.limitBytes).describe("Bytes of KV in a bucket."),
    storage_bytes: limit(bounds.limitBytes),
    tokens_per_day: limit(bounds.limitTokensPerPeriod).describe("Tokens that may be computed in a day (UTC)."),
    tokens_per_month: limit(bounds.limitTokensPerPeriod).describe("Tokens that may be computed in a month (UTC)."),
  })
  .transform(({ storage_bytes, tokens_per_day, tokens_per_month, ...wanted }): TenantLimits => {
    const { kv_bytes, kv_disk_bytes, kv_s3_bytes, ...rates } = wanted;
    const kv = { kvBytes: kv_bytes, kvDiskBytes: kv_disk_bytes, kvS3Bytes: kv_s3_bytes };
    const budget = { tokensPerDay: tokens_per_day, tokensPerMonth: tokens_per_month };
    return { ...ratesOf(rates), ...kv, storageBytes: storage_bytes, ...budget };
  });

/** What the routes do, for /openapi.json. */
const about = {
  tenant: { summary: "What the tenant may take.", answer: tenantLimitsAnswer },
  setTenant: {
    summary: "Sets what the tenant may take, and how much it may store and keep as KV on each worker.",
    body: tenantLimitsSchema,
    answer: tenantLimitsAnswer,
  },
  key: { summary: "What the API key may take.", answer: keyLimitsAnswer },
  setKey: {
    summary: "Sets what the API key may take, within its tenant's limits.",
    body: keyLimitsSchema,
    answer: keyLimitsAnswer,
  },
};

export interface LimitRouteDeps {
  readonly tenants: TenantService;
  readonly storage: Pick<TenantStorage, "use">;
  readonly budgets: Pick<TokenBudgets, "standing">;
  /** Called when a tenant's limits were set. */
  readonly onTenantSet?: (tenantId: TenantId) => void;
}

export function addLimitRoutes(app: Hono<AppEnv>, { tenants, storage, budgets, onTenantSet }: LimitRouteDeps): void {
  const budgetsBody = (tenantId: TenantId, budget: TokenBudget) =>
    Object.fromEntries(
      budgets
        .standing({ tenantId, ...budget })
        .map(({ period, limit, used, resetsAt }) => [period, { limit, used, resets_at: seconds(resetsAt) }]),
    );
  const tenantLimitsBody = (id: TenantId, limits: TenantLimits) => {
    const { kvBytes, kvDiskBytes, kvS3Bytes, storageBytes, tokensPerDay, tokensPerMonth, ...rates } = limits;
    const { limitBytes, usedBytes, stored } = storage.use(id);
    return {
      ...{ id, object: "tenant.limits", ...ratesBody(rates), storage_bytes: storageBytes },
      ...{ kv_bytes: kvBytes, kv_disk_bytes: kvDiskBytes, kv_s3_bytes: kvS3Bytes },
      ...{ tokens_per_day: tokensPerDay, tokens_per_month: tokensPerMonth },
      budgets: budgetsBody(id, { tokensPerDay, tokensPerMonth }),
      storage: { limit_bytes: limitBytes, used_bytes: usedBytes, ...stored },
    };
  };
  declare(app, "GET /admin/v1/tenants/:tenant_id/limits", about.tenant, (c) => {
    const { id } = managedTenant(c, tenants, c.req.param("tenant_id"));
    return c.json(tenantLimitsBody(id, tenants.limits.ofTenant(id)));
  });

  // A tenant's own administrators cannot raise what the platform gives it.
  declare(app, "PUT /admin/v1/tenants/:tenant_id/limits", about.setTenant, async (c) => {
    const wanted = await readJson(c, tenantLimitsSchema);
    const { id } = managedTenant(c, tenants, c.req.param("tenant_id"));
    changed(c, () => tenants.limits.setTenant(id, wanted));
    onTenantSet?.(id);
    return c.json(tenantLimitsBody(id, wanted));
  });

  declare(app, "GET /admin/v1/keys/:key_id/limits", about.key, (c) => {
    const { id } = tenants.apiKeys.get(principalOf(c), c.req.param("key_id"));
    return c.json(keyLimitsBody(id, tenants.limits.ofKey(id)));
  });

  declare(app, "PUT /admin/v1/keys/:key_id/limits", about.setKey, async (c) => {
    const wanted = await readJson(c, keyLimitsSchema);
    const key = tenants.apiKeys.get(principalOf(c), c.req.param("key_id"));
    const set = () => tenants.limits.setKey(key.id, wanted);
    changed(c, set, () => keyIds(key));
    return c.json(keyLimitsBody(key.id, wanted));
  });
}

const ratesBody = ({ requestsPerMinute, tokensPerMinute, concurrency }: RateLimits) => {
  return { requests_per_minute: requestsPerMinute, tokens_per_minute: tokensPerMinute, concurrency };
};

const keyLimitsBody = (id: string, limits: RateLimits) => ({ id, object: "api_key.limits", ...ratesBody(limits) });
