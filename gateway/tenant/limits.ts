/** What tenants and API keys may take: kept in the database, read anew for every request. */
import { LRUCache } from "lru-cache";
import type { ApiKeyId, TenantId } from "../../db/ids.ts";
import {
  findCallerLimits,
  findKeyLimits,
  findTenantLimits,
  putKeyLimits,
  putTenantLimits,
  type RateLimits,
  type TenantLimits,
} from "../../db/limits.ts";
import type { Db } from "../../db/open.ts";
import type { Principal } from "../base/principal.ts";
import type { LimitedOwner } from "./rate-limiter.ts";

const unlimited: RateLimits = { requestsPerMinute: null, tokensPerMinute: null, concurrency: null };
/** Tenants whose quota is in memory: it is asked for with every request that is sent to a worker. */
const rememberedQuotas = 4_096;

export class CallerLimits {
  readonly #db: Db;
  readonly #kvBytes = new LRUCache<string, { readonly kvBytes: number | null }>({ max: rememberedQuotas });

  constructor(db: Db) {
    this.#db = db;
  }

  ofTenant(id: TenantId): TenantLimits {
    return findTenantLimits(this.#db, id) ?? { ...unlimited, kvBytes: null, storageBytes: null };
  }

  /** Bytes of KV that the tenant may keep on each worker; undefined: no quota. */
  kvBytesOf(tenantId: TenantId): number | undefined {
    let known = this.#kvBytes.get(tenantId);
    if (known === undefined) {
      known = this.ofTenant(tenantId);
      this.#kvBytes.set(tenantId, known);
    }
    return known.kvBytes ?? undefined;
  }

  ofKey(id: ApiKeyId): RateLimits {
    return findKeyLimits(this.#db, id) ?? unlimited;
  }

  /** Takes effect on the next request. What was spent so far counts against the new limit. */
  setTenant(id: TenantId, limits: TenantLimits): void {
    putTenantLimits(this.#db, id, limits);
    this.#kvBytes.delete(id);
  }

  setKey(id: ApiKeyId, limits: RateLimits): void {
    putKeyLimits(this.#db, id, limits);
  }

  /** For work of a tenant that is no key's any more. */
  tenantOwner(tenantId: TenantId): LimitedOwner {
    return { id: tenantId, kind: "tenant", limits: this.ofTenant(tenantId) };
  }

  /** Those whose limits a request of this caller counts against; none for a platform key. */
  owners({ tenantId, keyId }: Pick<Principal, "tenantId" | "keyId">): readonly LimitedOwner[] {
    if (tenantId === undefined) return [];
    return findCallerLimits(this.#db, tenantId, keyId).map(({ kind, ...limits }) =>
      kind === "tenant" ? { id: tenantId, kind: "tenant", limits } : { id: keyId, kind: "API key", limits },
    );
  }
}
