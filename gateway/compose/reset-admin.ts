/** Makes a new platform key for an operator who has lost the first one, and has the data folder. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { DbError } from "../../db/errors.ts";
import { lockFolder } from "../../db/lock.ts";
import { openDb } from "../../db/open.ts";
import { AuditLog } from "../tenant/audit.ts";
import { scopes } from "../tenant/principal.ts";
import { loadServerSecret } from "../tenant/secret.ts";
import { TenantService } from "../tenant/tenants.ts";

/** Who has the data folder in hand may do everything; the audit log calls that actor by this name. */
export const folderOwner = { keyId: "data-folder", tenantId: undefined, scopes: new Set(scopes) } as const;

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
      const action = "spangate key reset-admin";
      const event = { requestId: `req_${crypto.randomUUID().replaceAll("-", "")}`, action, objectIds: {} };
      const replace = () => apiKeys.replacePlatformKeys();
      return new AuditLog(db).withEvent({ ...event, principal: folderOwner }, replace, ({ row }) => ({ id: row.id }))
        .apiKey;
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
