/**
 * What whoever has the data folder in hand may do without an API key: replace the platform's keys, and have the tenant
 * of `serve --dev`, whose key the command line finds in the folder.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { DbError } from "../../db/errors.ts";
import { lockFolder } from "../../db/lock.ts";
import { openDb } from "../../db/open.ts";
import { readDevAccess, writeDevAccess } from "../settings/dev-access.ts";
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

/** Makes the tenant and its key unless an earlier start did, and writes down where this server is. */
export function openDevTenant(tenants: TenantService, audit: AuditLog, dataDir: string, url: string): void {
  const known = readDevAccess(dataDir)?.apiKey;
  const isValid = known !== undefined && tenants.apiKeys.valid(known)?.tenantId !== undefined;
  writeDevAccess(dataDir, { url, apiKey: isValid ? known : newKey(tenants, audit) });
}

function newKey(tenants: TenantService, audit: AuditLog): string {
  const event = eventOf("spangate serve --dev");
  const before = tenants.list({ limit: 100, order: "asc" }).rows.find(({ name }) => name === devName);
  const make = () => {
    const { id } = before ?? tenants.create(devName);
    return tenants.apiKeys.mint(folderOwner, id, "key of serve --dev", devScopes);
  };
  const { apiKey } = audit.withEvent(event, make, ({ row }) => ({ id: row.id, tenant_id: row.tenantId ?? "" }));
  return apiKey;
}
