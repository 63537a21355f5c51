/** Limits of tenants and of API keys. */
import { eq } from "drizzle-orm";
import type { ApiKeyId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import { apiKeyLimits, tenantLimits } from "./schema.ts";

/**
 * null: no limit. Tokens are those of prompts and completions together; concurrency is the number of requests at the
 * same time.
 */
export interface RateLimits {
  readonly requestsPerMinute: number | null;
  readonly tokensPerMinute: number | null;
  readonly concurrency: number | null;
}

/** Tokens that may be computed in a day and in a month, both in UTC; null: as many as come. */
export interface TokenBudget {
  readonly tokensPerDay: number | null;
  readonly tokensPerMonth: number | null;
}

export interface TenantLimits extends RateLimits, TokenBudget {
  /** Bytes of KV that the tenant may keep on each worker. */
  readonly kvBytes: number | null;
  /** Bytes of KV that it may keep in files, and in a bucket. */
  readonly kvDiskBytes: number | null;
  readonly kvS3Bytes: number | null;
  /** Bytes that the tenant may store in all. */
  readonly storageBytes: number | null;
}

const columns = <Table extends typeof tenantLimits | typeof apiKeyLimits>(table: Table) => ({
  requestsPerMinute: table.requestsPerMinute,
  tokensPerMinute: table.tokensPerMinute,
  concurrency: table.concurrency,
});

/** undefined: no limits were ever set. */
export function findTenantLimits(db: Db, id: TenantId): TenantLimits | undefined {
  return db.statement("findTenantLimits", (orm) =>
    orm
      .select({
        ...columns(tenantLimits),
        kvBytes: tenantLimits.kvBytes,
        kvDiskBytes: tenantLimits.kvDiskBytes,
        kvS3Bytes: tenantLimits.kvS3Bytes,
        storageBytes: tenantLimits.storageBytes,
        tokensPerDay: tenantLimits.tokensPerDay,
        tokensPerMonth: tenantLimits.tokensPerMonth,
      })
      .from(tenantLimits)
      .where(eq(tenantLimits.tenantId, id))
      .get(),
  );
}

export function findKeyLimits(db: Db, id: ApiKeyId): RateLimits | undefined {
  return db.statement("findKeyLimits", (orm) =>
    orm.select(columns(apiKeyLimits)).from(apiKeyLimits).where(eq(apiKeyLimits.keyId, id)).get(),
  );
}

export function putTenantLimits(db: Db, tenantId: TenantId, limits: TenantLimits): void {
  db.statement("putTenantLimits", (orm) =>
    orm
      .insert(tenantLimits)
      .values({ tenantId, ...limits })
      .onConflictDoUpdate({ target: tenantLimits.tenantId, set: limits })
      .run(),
  );
}

export function putKeyLimits(db: Db, keyId: ApiKeyId, limits: RateLimits): void {
  db.statement("putKeyLimits", (orm) =>
    orm
      .insert(apiKeyLimits)
      .values({ keyId, ...limits })
      .onConflictDoUpdate({ target: apiKeyLimits.keyId, set: limits })
      .run(),
  );
}

interface CallerRow {
  readonly kind: "tenant" | "key";
  readonly requests_per_minute: number | null;
  readonly tokens_per_minute: number | null;
  readonly concurrency: number | null;
  readonly tokens_per_day: number | null;
  readonly tokens_per_month: number | null;
}

/** What was set for a tenant and for one of its keys, which has no budget. Runs on every request that is limited. */
export function findCallerLimits(
  db: Db,
  tenantId: TenantId,
  keyId: string,
): readonly (RateLimits & TokenBudget & { readonly kind: "tenant" | "key" })[] {
  const rows = db.statement("findCallerLimits", () =>
    db.client
      .query<CallerRow, [string, string]>(
        `select 'tenant' as kind, requests_per_minute, tokens_per_minute, concurrency, tokens_per_day, tokens_per_month
           from tenant_limits where tenant_id = ?
         union all
         select 'key', requests_per_minute, tokens_per_minute, concurrency, null, null
           from api_key_limits where key_id = ?`,
      )
      .all(tenantId, keyId),
  );
  return rows.map((row) => ({
    kind: row.kind,
    requestsPerMinute: row.requests_per_minute,
    tokensPerMinute: row.tokens_per_minute,
    concurrency: row.concurrency,
    tokensPerDay: row.tokens_per_day,
    tokensPerMonth: row.tokens_per_month,
  }));
}
