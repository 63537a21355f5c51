/** What tenants and API keys may take: kept in the database, read anew for every request. */

import type { ApiKeyId, TenantId } from "../../db/ids.ts";
import {
  findCallerLimits,
  findKeyLimits,
  findTenantLimits,
  putKeyLimits,
  putTenantLimits,
  type RateLimits,
} from "../../db/limits.ts";
import type { Db } from "../../db/open.ts";
import type { Principal } from "../principal.ts";
import type { LimitedOwner } from "./rate-limiter.ts";

const unlimited: RateLimits = { requestsPerMinute: null, tokensPerMinute: null, concurrency: null };

export class CallerLimits {
  readonly #db: Db;

  constructor(db: Db) {
    this.#db = db;
  }

  ofTenant(id: TenantId): RateLimits {
    return findTenantLimits(this.#db, id) ?? unlimited;
  }

  ofKey(id: ApiKeyId): RateLimits {
    return findKeyLimits(this.#db, id) ?? unlimited;
  }

  /** Takes effect on the next request. What was spent so far counts against the new limit. */
  setTenant(id: TenantId, limits: RateLimits): void {
    putTenantLimits(this.#db, id, limits);
  }

  setKey(id: ApiKeyId, limits: RateLimits): void {
    putKeyLimits(this.#db, id, limits);
  }

  /** Those whose limits a request of this caller counts against; none for a platform key. */
  owners({ tenantId, keyId }: Pick<Principal, "tenantId" | "keyId">): readonly LimitedOwner[] {
    if (tenantId === undefined) return [];
    return findCallerLimits(this.#db, tenantId, keyId).map(({ kind, ...limits }) =>
      kind === "tenant" ? { id: tenantId, kind: "tenant", limits } : { id: keyId, kind: "API key", limits },
    );
  }
}
