import { and, isNull } from "drizzle-orm";
import type { ApiKeyId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import type { Page, PageRange } from "./page.ts";
import { countRows, findRow, insertRow, pageOfRows, updateRow } from "./rows.ts";
import { apiKeys } from "./schema.ts";

export type ApiKeyRow = typeof apiKeys.$inferSelect;

/** The identity that a valid key stands for. `hash` is for the comparison in constant time. */
export interface ApiKeyIdentity {
  readonly id: ApiKeyId;
  readonly tenantId: TenantId | null;
  readonly hash: Uint8Array;
  readonly scopes: readonly string[];
  /** null: never. */
  readonly expiresAt: number | null;
}

interface IdentityRow {
  readonly id: ApiKeyId;
  readonly tenant_id: TenantId | null;
  readonly hash: Uint8Array;
  readonly scopes: string;
  readonly expires_at: number | null;
}

export function insertApiKey(
  db: Db,
  row: Pick<ApiKeyRow, "id" | "tenantId" | "name" | "prefix" | "scopes" | "createdAt"> & {
    hash: Uint8Array;
    expiresAt?: number | null;
  },
): ApiKeyRow {
  return insertRow(db, "insertApiKey", apiKeys, { ...row, hash: Buffer.from(row.hash) });
}

/** Finds a key by its hash, unless it is revoked or its tenant is not active; one that has expired is found. Runs on every request. */
export function findApiKeyByHash(db: Db, hash: Uint8Array): ApiKeyIdentity | undefined {
  const row = db.statement("findApiKeyByHash", () =>
    db.client
      .query<IdentityRow, [Uint8Array]>(
        `select k.id, k.tenant_id, k.hash, k.scopes, k.expires_at from api_keys k left join tenants t on t.id = k.tenant_id
         where k.hash = ? and k.revoked_at is null and (k.tenant_id is null or t.status = 'active')`,
      )
      .get(hash),
  );
  if (row === null) return undefined;
  const scopes = JSON.parse(row.scopes) as string[];
  return { id: row.id, tenantId: row.tenant_id, hash: row.hash, scopes, expiresAt: row.expires_at };
}

export function findApiKey(db: Db, id: ApiKeyId): ApiKeyRow | undefined {
  return findRow(db, "findApiKey", apiKeys, { id });
}

export function countPlatformKeys(db: Db): number {
  return countRows(db, "countPlatformKeys", apiKeys, {}, isNull(apiKeys.tenantId));
}

/**
 * Counts the keys that could still administer the platform without this key, or without this tenant's keys. One that
 * expires is none of them: when it has, nobody could make another.
 */
export function countOtherAdminKeys(db: Db, without: ApiKeyId | TenantId): number {
  const row = db.statement("countOtherAdminKeys", () =>
    db.client
      .query<{ n: number }, [string]>(
        `select count(*) as n from api_keys k left join tenants t on t.id = k.tenant_id
         where k.id <> ?1 and k.tenant_id is not ?1 and k.revoked_at is null and k.expires_at is null
           and (k.tenant_id is null or t.status = 'active')
           and exists (select 1 from json_each(k.scopes) where value = 'platform:admin')`,
      )
      .get(without),
  );
  return row?.n ?? 0;
}

/** Whether one of the tenant's keys administers the platform. */
export function hasAdminKey(db: Db, tenantId: TenantId): boolean {
  const row = db.statement("hasAdminKey", () =>
    db.client
      .query<{ n: number }, [string]>(
        `select count(*) as n from api_keys k where k.tenant_id = ? and k.revoked_at is null
           and exists (select 1 from json_each(k.scopes) where value = 'platform:admin')`,
      )
      .get(tenantId),
  );
  return (row?.n ?? 0) > 0;
}

export function listApiKeys(db: Db, tenantId: TenantId, range: PageRange): Page<ApiKeyRow> {
  return pageOfRows(db, "listApiKeys", apiKeys, { tenantId }, range);
}

/** @returns false when there is no such key or it is revoked already. */
export function revokeApiKey(db: Db, id: ApiKeyId, now: number): boolean {
  const row = updateRow(db, "revokeApiKey", apiKeys, { id }, { revokedAt: now }, isNull(apiKeys.revokedAt));
  return row !== undefined;
}

/** Revokes every key that belongs to no tenant. */
export function revokePlatformKeys(db: Db, now: number): void {
  const open = and(isNull(apiKeys.tenantId), isNull(apiKeys.revokedAt));
  db.statement("revokePlatformKeys", (orm) => orm.update(apiKeys).set({ revokedAt: now }).where(open).run());
}
