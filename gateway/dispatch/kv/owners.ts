/**
 * Gives tenants the numbers by which workers count KV. Workers know tenants by these numbers alone, which say nothing
 * outside of them. A tenant gets a number with its first request. The tenants that were unused longest lose theirs, and
 * get another one when they come back; the KV under the old number then has no active owner, and is evicted when it is
 * the oldest.
 */

import { LRUCache } from "lru-cache";
import type { TenantId } from "../../../db/ids.ts";
import { type KvOwner, nobody, type PlanOwners } from "../../../worker/contract/owners.ts";
import type { WorkOwner } from "../request/request.ts";

/** Most tenants whose number is remembered. */
const rememberedTenants = 65_536;

export class KvOwners {
  readonly #numbers: LRUCache<string, number>;
  readonly #quotaBytesOf: (tenantId: TenantId) => number | undefined;
  #lastNumber = nobody.number;

  /** @param quotaBytesOf bytes of KV that a tenant may keep on each worker; undefined: no quota */
  constructor(
    quotaBytesOf: (tenantId: TenantId) => number | undefined = () => undefined,
    maxTenants = rememberedTenants,
  ) {
    this.#numbers = new LRUCache({ max: maxTenants });
    this.#quotaBytesOf = quotaBytesOf;
  }

  /** @param tenantIds the owner of each run of the plan; "": no tenant owns it */
  ofPlan(tenantIds: readonly WorkOwner[], kvBytesPerBlock: number): PlanOwners {
    const [first] = tenantIds;
    // Nearly all plans are of one tenant.
    if (first !== undefined && tenantIds.every((tenantId) => tenantId === first)) {
      return { owners: [this.of(first, kvBytesPerBlock)], ofRun: new Uint16Array(tenantIds.length) };
    }
    const distinct = [...new Set(tenantIds)];
    const indexes = new Map(distinct.map((tenantId, index) => [tenantId, index]));
    const owners = distinct.map((tenantId) => this.of(tenantId, kvBytesPerBlock));
    return { owners, ofRun: Uint16Array.from(tenantIds, (tenantId) => indexes.get(tenantId) ?? 0) };
  }

  /** The number of a tenant. undefined: it has none, or it may have had another one before. */
  numberOf(tenantId: WorkOwner): number | undefined {
    const wasAnyForgotten = this.#lastNumber - nobody.number > this.#numbers.size;
    return wasAnyForgotten ? undefined : this.#numbers.peek(tenantId);
  }

  /** A tenant as workers know it; "": no tenant. */
  of(tenantId: WorkOwner, kvBytesPerBlock: number): KvOwner {
    if (tenantId === "") return nobody;
    let number = this.#numbers.get(tenantId);
    if (number === undefined) {
      this.#lastNumber += 1;
      number = this.#lastNumber;
      this.#numbers.set(tenantId, number);
    }
    const quotaBytes = this.#quotaBytesOf(tenantId);
    return quotaBytes === undefined ? { number } : { number, quotaBlocks: Math.floor(quotaBytes / kvBytesPerBlock) };
  }
}
