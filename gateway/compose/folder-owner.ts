/**
 * What whoever has the data folder in hand may do without an API key: replace the platform's keys, and have the tenant
 * of `serve --dev`, whose keys the command line finds in the folder.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { DbError } from "../../db/errors.ts";
import { type ApiKeyId, parseId } from "../../db/ids.ts";
import { lockFolder } from "../../db/lock.ts";
import { openDb } from "../../db/open.ts";
import { ApiError } from "../base/errors.ts";
import { readDevAccess, writeDevAccess } from "../settings/dev-access.ts";
import type { MintedApiKey } from "../tenant/api-keys.ts";
import { type AuditedAction, AuditLog } from "../tenant/audit.ts";
import { type Scope, scopes } from "../tenant/principal.ts";
import { loadServerSecret } from "../tenant/secret.ts";
import { TenantService } from "../tenant/tenants.ts";

/** Who has the data folder in hand may do everything; the audit log calls that actor by this name. */
const folderOwner = { keyId: "data-folder", tenantId: undefined, scopes: new Set(scopes) } as const;

const eventOf = (action: string): AuditedAction => ({
  requestId: `req_${crypto.randomUUID().replaceAll("-", "")}`,
  principal: folderOwner,
  action,
  objectIds: {},
});

/**
 * Revokes the platform's keys and makes a new one, and writes that down in the audit log.
 * @returns the key, to be shown once
 * @throws Error in one sentence: no database there, a server that runs, a missing secret
 */
export function resetAdminKey(dataDir: string): string {
  if (!existsSync(join(dataDir, "spangate.db"))) {
    throw new Error(`${dataDir} has no database: name the server's data folder with --data or SPANGATE_DATA`);
  }
  const unlock = lockStopped(dataDir);
  try {
    const db = openDb(join(dataDir, "spangate.db"));
    try {
      const { apiKeys } = new TenantService(db, loadServerSecret(dataDir, db));
      const event = eventOf("spangate key reset-admin");
      const replace = () => apiKeys.replacePlatformKeys();
      return new AuditLog(db).withEvent(event, replace, ({ row }) => ({ id: row.id })).apiKey;
    } finally {
      db.close();
    }
  } finally {
    unlock();
  }
}

function lockStopped(dataDir: string): () => void {
  try {
    return lockFolder(dataDir);
  } catch (error) {
    if (!(error instanceof DbError) || error.code !== "busy") throw error;
    throw new Error(`a server runs on ${dataDir}: stop it first, then reset the key`, { cause: error });
  }
}

const devName = "default";
const devScopes: readonly Scope[] = ["inference", "corpus:read", "corpus:write", "corpus:prepare", "tenant:admin"];

/**
 * Makes the tenant and its keys unless an earlier start did, and writes down where this server is.
 * @returns the id of the tenant's key
 */
export function openDevTenant(tenants: TenantService, audit: AuditLog, dataDir: string, url: string): ApiKeyId {
  const known = readDevAccess(dataDir);
  const { apiKeys } = tenants;
  const valid = (key = ""): string | undefined => (apiKeys.valid(key) === undefined ? undefined : key);
  const made = (make: () => MintedApiKey): string =>
    audit.withEvent(eventOf("spangate serve --dev"), make, ({ row }) => ({ id: row.id, tenant_id: row.tenantId ?? "" }))
      .apiKey;
  const apiKey = valid(known?.apiKey) ?? made(() => tenantKey(tenants));
  writeDevAccess(dataDir, {
    url,
    apiKey,
    adminKey: valid(known?.adminKey) ?? made(() => apiKeys.mintPlatform("admin key of serve --dev")),
  });
  const keyId = parseId("apiKey", apiKeys.valid(apiKey)?.keyId ?? "");
  if (keyId === undefined) throw new Error("the key of serve --dev is not valid");
  return keyId;
}

function tenantKey(tenants: TenantService): MintedApiKey {
  const before = tenants.list({ limit: 100, order: "asc" }).rows.find(({ name }) => name === devName);
  const { id } = before ?? tenants.create(devName);
  return tenants.apiKeys.mint(folderOwner, id, "key of serve --dev", devScopes);
}

/** A server that others may reach has no admin key that lies in a file. The last one stays: nobody is locked out. */
export function closeDevAdmin(tenants: TenantService, audit: AuditLog, dataDir: string): void {
  const access = readDevAccess(dataDir);
  if (access?.adminKey === undefined) return;
  const { adminKey, ...rest } = access;
  const keyId = tenants.apiKeys.valid(adminKey)?.keyId;
  try {
    const revoke = () => tenants.apiKeys.revoke(folderOwner, keyId ?? "");
    if (keyId !== undefined) audit.withEvent(eventOf("spangate serve"), revoke, ({ id }) => ({ id }));
  } catch (error) {
    if (error instanceof ApiError && error.code === "conflict") return;
    throw error;
  }
  writeDevAccess(dataDir, rest);
}
