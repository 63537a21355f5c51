/** Tenants, what they may store, and the key that administers them. */
import type { TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Log } from "../base/log.ts";
import type { Config } from "../config.ts";
import type { Disk } from "../data/disk.ts";
import { AuditLog } from "../tenant/audit.ts";
import { loadServerSecret } from "../tenant/secret.ts";
import { TenantStorage } from "../tenant/storage.ts";
import { TenantService } from "../tenant/tenants.ts";
import { closeDevAdmin, openDevTenant } from "./folder-owner.ts";

export function openTenants(config: Config, db: Db, disk: Disk, log: Log) {
  const secret = loadServerSecret(config.dataDir, db);
  const tenants = new TenantService(db, secret);
  const limitOf = (tenantId: TenantId) => tenants.limits.ofTenant(tenantId).storageBytes;
  const storage = new TenantStorage(db, { disk, limitOf, defaultBytes: config.tenantStorageBytes });
  if (config.adminKey !== undefined) takeAdminKey(tenants, config.adminKey, log);
  const audit = new AuditLog(db);
  if (!config.dev) closeDevAdmin(tenants, audit, config.dataDir);
  /**
   * Makes the first administration key of a server that can answer, and then what `serve --dev` has.
   * @returns undefined: there was one before
   */
  const makeKeys = (url: string): string | undefined => {
    const made = tenants.apiKeys.bootstrap(undefined);
    if (config.dev) openDevTenant(tenants, audit, config.dataDir, url);
    return made?.apiKey;
  };
  return { tenants, storage, makeKeys, secret };
}

/** The operator's own key is the first one, unless there was one before. */
function takeAdminKey({ apiKeys }: TenantService, given: string, log: Log): void {
  if (apiKeys.bootstrap(given) !== undefined) return;
  if (apiKeys.valid(given)?.scopes.has("platform:admin")) return;
  const counts = "the first start's counts, and those made since";
  const remedy = 'with the server stopped, "spangate key reset-admin" makes a new one';
  log("warn", `SPANGATE_ADMIN_KEY is no key that administers this data folder: ${counts}; ${remedy}`);
}
