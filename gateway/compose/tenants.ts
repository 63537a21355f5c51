/** Tenants, what they may store, and the key that administers them. */
import type { TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Log } from "../base/log.ts";
import type { Config } from "../config.ts";
import type { Disk } from "../data/disk.ts";
import { loadServerSecret } from "../tenant/secret.ts";
import { TenantStorage } from "../tenant/storage.ts";
import { TenantService } from "../tenant/tenants.ts";

export function openTenants(config: Config, db: Db, disk: Disk, log: Log) {
  const tenants = new TenantService(db, loadServerSecret(config.dataDir, db));
  const limitOf = (tenantId: TenantId) => tenants.limits.ofTenant(tenantId).storageBytes;
  const storage = new TenantStorage(db, { disk, limitOf, defaultBytes: config.tenantStorageBytes });
  return { tenants, storage, generatedAdminKey: openAdminKey(tenants, config.adminKey, log) };
}

/** @returns the administration key that was made by this start, if any */
function openAdminKey({ apiKeys }: TenantService, given: string | undefined, log: Log): string | undefined {
  const made = apiKeys.bootstrap(given);
  if (made !== undefined) return made.generated ? made.apiKey : undefined;
  const known = given === undefined || apiKeys.authenticate(given)?.scopes.has("platform:admin") === true;
  const counts = "the first start's counts, and those made since";
  if (!known) log("warn", `SPANGATE_ADMIN_KEY is no key that administers this data folder: ${counts}`);
  return undefined;
}
