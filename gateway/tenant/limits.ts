/** The limits of tenants and API keys. They are stored in the database and read for every request. */
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
import type { Principal } from "./principal.ts";
import type { LimitedOwner } from "./rate-limiter.ts";

const unlimited: RateLimits = { requestsPerMinute: null, tokensPerMinute: null, concurrency: null };
/** Quotas of this many tenants are cached, because a quota is read for every request that is sent to a worker. */
const rememberedQuotas = 4_096;

export class CallerLimits {
  readonly #db: Db;
  readonly #kvBytes = new LRUCache<string, { readonly kvBytes: number | null }>({ max: rememberedQuotas });

  constructor(db: Db) {
    this.#db = db;
  }

  ofTenant(id: TenantId): TenantLimits {
    const none = { ...unlimited, kvBytes: null, storageBytes: null, tokensPerDay: null, tokensPerMonth: null };
    return findTenantLimits(this.#db, id) ?? none;
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

  /**
   * Sets a tenant's limits from the next request on. What the tenant has spent so far counts against the new limits.
   */
  setTenant(id: TenantId, limits: TenantLimits): void {
    putTenantLimits(this.#db, id, limits);
    this.#kvBytes.delete(id);
  }

  setKey(id: ApiKeyId, limits: RateLimits): void {
    putKeyLimits(this.#db, id, limits);
  }

  /** The owner of work that is done for a tenant without any API key. */
  tenantOwner(tenantId: TenantId): LimitedOwner {
    const limits = this.ofTenant(tenantId);
    return { id: tenantId, kind: "tenant", limits, budget: { ...limits, tenantId } };
  }

  /** The tenant and the key whose limits a request of this caller counts against. A platform key has neither. */
  owners({ tenantId, keyId }: Pick<Principal, "tenantId" | "keyId">): readonly LimitedOwner[] {
    if (tenantId === undefined) return [];
    return findCallerLimits(this.#db, tenantId, keyId).map(({ kind, tokensPerDay, tokensPerMonth, ...limits }) => {
      if (kind === "key") return { id: keyId, kind: "API key", limits };
      return { id: tenantId, kind: "tenant", limits, budget: { tenantId, tokensPerDay, tokensPerMonth } };
    });
  }
}
