/** Tenants, what they may store, and the key that administers them. */
import type { TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Log } from "../base/log.ts";
import { type Config, limits } from "../config.ts";
import type { Disk } from "../data/disk.ts";
import { AuditLog } from "../tenant/audit.ts";
import { loadServerSecret } from "../tenant/secret.ts";
import { Sessions } from "../tenant/sessions.ts";
import { TenantStorage } from "../tenant/storage.ts";
import { TenantService } from "../tenant/tenants.ts";
import { closeDevAdmin, openDevTenant } from "./folder-owner.ts";

/** What is made once the server can answer. */
export interface FirstKeys {
  /** The first platform key, when this start made it: to be shown once. */
  readonly generatedAdminKey: string | undefined;
  /** Signs a browser in to the console of `serve --dev`, once. */
  readonly consoleLink: string | undefined;
}

export function openTenants(config: Config, db: Db, disk: Disk, log: Log) {
  const secret = loadServerSecret(config.dataDir, db);
  const tenants = new TenantService(db, secret);
  const limitOf = (tenantId: TenantId) => tenants.limits.ofTenant(tenantId).storageBytes;
  const storage = new TenantStorage(db, { disk, limitOf, defaultBytes: config.tenantStorageBytes });
  if (config.adminKey !== undefined) takeAdminKey(tenants, config.adminKey, log);
  const audit = new AuditLog(db);
  if (!config.dev) closeDevAdmin(tenants, audit, config.dataDir);
  const { apiKeys } = tenants;
  const sessions = new Sessions({
    secret,
    principalOf: (keyId) => apiKeys.principalOf(keyId),
    bounds: limits,
    nowMs: Date.now,
  });
  /** Makes the first administration key of a server that can answer, and then what `serve --dev` has. */
  const makeKeys = (url: string): FirstKeys => {
    const made = tenants.apiKeys.bootstrap(undefined);
    const devKeyId = config.dev ? openDevTenant(tenants, audit, config.dataDir, url) : undefined;
    const consoleLink = devKeyId === undefined ? undefined : `${url}/#/sign-in/${sessions.makeLink(devKeyId)}`;
    return { generatedAdminKey: made?.apiKey, consoleLink };
  };
  return { tenants, sessions, storage, makeKeys, secret };
}

/** The operator's own key is the first one, unless there was one before. */
function takeAdminKey({ apiKeys }: TenantService, given: string, log: Log): void {
  if (apiKeys.bootstrap(given) !== undefined) return;
  if (apiKeys.valid(given)?.scopes.has("platform:admin")) return;
  const counts = "the first start's counts, and those made since";
  const remedy = 'with the server stopped, "spangate key reset-admin" makes a new one';
  log("warn", `SPANGATE_ADMIN_KEY is no key that administers this data folder: ${counts}; ${remedy}`);
}
