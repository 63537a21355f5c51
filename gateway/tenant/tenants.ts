/** Tenants: they own keys, files and corpora, and each has a salt for its own text. */
import { countOtherAdminKeys, hasAdminKey } from "../../db/api-keys.ts";
import { newId, type TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Page, PageRange } from "../../db/page.ts";
import { Remembered } from "../../db/remembered.ts";
import {
  findTenant,
  findTenantSaltEpoch,
  insertTenant,
  listTenants,
  markTenantDeleting,
  raiseTenantSaltEpoch,
  type TenantRow,
  updateTenant,
} from "../../db/tenants.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";
import { ApiKeys } from "./api-keys.ts";
import { CallerLimits } from "./limits.ts";
import { Salts } from "./salts.ts";
import { Sealer, type ServerSecret } from "./secret.ts";

/** Salts of this many tenants are remembered, because every request with text of its own asks for one. */
const rememberedSalts = 4_096;

export class TenantService {
  readonly apiKeys: ApiKeys;
  readonly limits: CallerLimits;
  readonly sealer: Sealer;
  readonly #db: Db;
  readonly #salts: Salts;
  /** Each tenant's own salt, which every request asks for. */
  readonly #tenantSalts: Remembered<{ readonly salt: CacheSalt }>;

  constructor(db: Db, secret: ServerSecret) {
    this.#db = db;
    this.#salts = new Salts(secret);
    this.#tenantSalts = new Remembered(db, rememberedSalts);
    this.apiKeys = new ApiKeys(db, secret);
    this.limits = new CallerLimits(db);
    this.sealer = new Sealer(secret);
  }

  create(name: string): TenantRow {
    return insertTenant(this.#db, { id: newId("tenant"), name, createdAt: Date.now() });
  }

  /** @throws ApiError not_found */
  get(id: TenantId): TenantRow {
    return found(findTenant(this.#db, id));
  }

  list(range: PageRange): Page<TenantRow> {
    return listTenants(this.#db, range);
  }

  /** Changes a tenant. Disabling it takes effect on the next request. @throws ApiError not_found, conflict */
  update(id: TenantId, change: { name?: string | undefined; status?: "active" | "disabled" | undefined }): TenantRow {
    if (change.status === "disabled") this.#keepAnAdministrator(id);
    return found(updateTenant(this.#db, id, change));
  }

  /**
   * Deletes a tenant. Its keys, files and corpora are unknown from here on, and the corpus sweep removes what they
   * held.
   * @throws ApiError not_found, conflict
   */
  delete(id: TenantId): void {
    this.#keepAnAdministrator(id);
    if (!markTenantDeleting(this.#db, id, Date.now())) throw new ApiError("not_found");
  }

  /** Refuses to remove the last key that administers the platform: without one, nobody could ever make another. */
  #keepAnAdministrator(id: TenantId): void {
    if (!hasAdminKey(this.#db, id) || countOtherAdminKeys(this.#db, id) > 0) return;
    throw new ApiError("conflict", { message: "This tenant has the last key with the scope platform:admin." });
  }

  /**
   * The salt of the tenant's own text, that is of messages and inline documents.
   * @param subdivision the request's cache_salt
   */
  cacheSalt(tenantId: TenantId, subdivision?: string): CacheSalt {
    const salt = this.saltIfAny(tenantId, subdivision);
    if (salt === undefined) throw new ApiError("not_found");
    return salt;
  }

  /** As `cacheSalt`; undefined: the tenant is gone, and its KV with it. */
  saltIfAny(tenantId: TenantId, subdivision?: string): CacheSalt | undefined {
    const own = this.#tenantSalts.get(tenantId, () => {
      const saltEpoch = findTenantSaltEpoch(this.#db, tenantId);
      return saltEpoch === undefined ? undefined : { salt: this.#salts.ofTenant(tenantId, saltEpoch) };
    });
    return own === undefined || subdivision === undefined ? own?.salt : this.#salts.within(own.salt, subdivision);
  }

  corpusSalt(corpusId: string, epoch: number): CacheSalt {
    return this.#salts.ofCorpus(corpusId, epoch);
  }

  /**
   * Makes the KV of the tenant's own text unreachable from here on.
   * @returns the new epoch.
   * @throws ApiError not_found
   */
  rotateSalt(id: TenantId): number {
    const epoch = raiseTenantSaltEpoch(this.#db, id);
    if (epoch === undefined) throw new ApiError("not_found");
    return epoch;
  }
}

function found(row: TenantRow | undefined): TenantRow {
  if (row === undefined) throw new ApiError("not_found");
  return row;
}
