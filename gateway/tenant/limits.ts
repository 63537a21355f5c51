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
import { Remembered } from "../../db/remembered.ts";
import type { KvTier } from "../../worker/contract/tiers.ts";
import type { Principal } from "./principal.ts";
import type { LimitedOwner } from "./rate-limiter.ts";

const unlimited: RateLimits = { requestsPerMinute: null, tokensPerMinute: null, concurrency: null };
const unlimitedTenant = {
  ...{ kvBytes: null, kvDiskBytes: null, kvS3Bytes: null, storageBytes: null },
  ...{ tokensPerDay: null, tokensPerMonth: null },
};
type KvQuotas = Readonly<Record<KvTier, number | null>>;
/** Quotas of this many tenants are cached, because a quota is read for every request that is sent to a worker. */
const rememberedQuotas = 4_096;
/** The limits of this many callers, which every request asks for. */
const rememberedCallers = 4_096;

export class CallerLimits {
  readonly #db: Db;
  readonly #quotas = new LRUCache<string, KvQuotas>({ max: rememberedQuotas });
  readonly #callers: Remembered<readonly LimitedOwner[]>;

  constructor(db: Db) {
    this.#db = db;
    this.#callers = new Remembered(db, rememberedCallers);
  }

  ofTenant(id: TenantId): TenantLimits {
    return findTenantLimits(this.#db, id) ?? { ...unlimited, ...unlimitedTenant };
  }

  /** Bytes of KV that the tenant may keep in a tier, on each worker in "device"; undefined: no quota. */
  kvBytesOf(tenantId: TenantId, tier: KvTier = "device"): number | undefined {
    let known = this.#quotas.get(tenantId);
    if (known === undefined) {
      const { kvBytes, kvDiskBytes, kvS3Bytes } = this.ofTenant(tenantId);
      known = { device: kvBytes, host: null, disk: kvDiskBytes, s3: kvS3Bytes };
      this.#quotas.set(tenantId, known);
    }
    return known[tier] ?? undefined;
  }

  ofKey(id: ApiKeyId): RateLimits {
    return findKeyLimits(this.#db, id) ?? unlimited;
  }

  /**
   * Sets a tenant's limits from the next request on. What the tenant has spent so far counts against the new limits.
   */
  setTenant(id: TenantId, limits: TenantLimits): void {
    putTenantLimits(this.#db, id, limits);
    this.#quotas.delete(id);
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
    return this.#callers.get(`${tenantId} ${keyId}`, () => this.#ownersOf(tenantId, keyId)) ?? [];
  }

  #ownersOf(tenantId: TenantId, keyId: Principal["keyId"]): readonly LimitedOwner[] {
    return findCallerLimits(this.#db, tenantId, keyId).map(({ kind, tokensPerDay, tokensPerMonth, ...limits }) => {
      if (kind === "key") return { id: keyId, kind: "API key", limits };
      return { id: tenantId, kind: "tenant", limits, budget: { tenantId, tokensPerDay, tokensPerMonth } };
    });
  }
}
