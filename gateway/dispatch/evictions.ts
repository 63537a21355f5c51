/**
 * Takes KV from all workers: by key, or all of a tenant's. What is resident goes at once, and what is being computed is
 * not kept. A request that read its texts before may be sent only afterwards, for it waited or is tried again: it runs
 * without keeping anything.
 */
import type { BlockKey } from "../../worker/contract/units.ts";
import type { KvHistory } from "./kv-history.ts";
import type { Registry } from "./registry.ts";
import type { DispatchRequest } from "./request.ts";
import type { Residency } from "./residency.ts";
import type { Supervisor } from "./supervisor.ts";
import type { Underway } from "./underway.ts";

export interface EvictionsOptions {
  readonly registry: Pick<Registry, "ready">;
  readonly residency: Residency;
  readonly underway: Underway;
  readonly supervisor: Pick<Supervisor, "send">;
  readonly history?: Pick<KvHistory, "removed">;
  /** How long after it read its texts a request may still be sent. */
  readonly rememberMs?: number;
  /** With more to remember, whatever was read before is not kept. */
  readonly maxRemembered?: number;
}

/** "text": the tenant's own, its corpora's fragments left out. */
export type TenantPart = "text" | "all";

const keysPerMessage = 4_096;

export class Evictions {
  readonly #options: EvictionsOptions;
  /** When each was evicted, by performance.now(), the oldest first. */
  readonly #keys = new Map<BlockKey, number>();
  readonly #tenants = new Map<string, number>();
  /** Nothing that was read before is kept. */
  #allBeforeMs = Number.NEGATIVE_INFINITY;

  constructor(options: EvictionsOptions) {
    this.#options = options;
  }

  /** Every worker forgets the blocks with these keys, and what was computed from them. */
  evict(blockKeys: readonly BlockKey[]): void {
    if (blockKeys.length === 0) return;
    const { residency, history } = this.#options;
    this.#remember(this.#keys, blockKeys);
    history?.removed(blockKeys.filter((key) => residency.holders(key).length > 0));
    for (const { id } of this.#options.registry.ready()) this.#send(id, blockKeys);
  }

  /** Every worker forgets what is counted for the tenant. @returns blocks that were held, on all workers */
  evictTenant(tenantId: string, part: TenantPart): number {
    const { registry, residency, underway, history } = this.#options;
    this.#remember(this.#tenants, [tenantId]);
    let blockCount = 0;
    for (const { id } of registry.ready()) {
      const held = residency.keysOf(id, tenantId, part === "text");
      blockCount += held.length;
      history?.removed(held);
      this.#send(id, [...held, ...underway.rootsOf(id, tenantId, part === "text")]);
    }
    return blockCount;
  }

  /** Whether something that the request is over was evicted since it read its texts. */
  concern({ plan, tenantId }: Pick<DispatchRequest, "plan" | "tenantId">, readAtMs: number): boolean {
    if (readAtMs <= this.#allBeforeMs) return true;
    const isSince = (atMs: number | undefined): boolean => atMs !== undefined && atMs >= readAtMs;
    if (isSince(this.#tenants.get(tenantId))) return true;
    if (this.#keys.size === 0) return false;
    const isGone = (key: BlockKey | undefined): boolean => key !== undefined && isSince(this.#keys.get(key));
    return plan.runs.some(({ rootKey, blockKeys, quotes = [] }) => {
      return isGone(rootKey) || isGone(blockKeys.at(-1)) || quotes.some(isGone);
    });
  }

  #send(workerId: string, blockKeys: readonly BlockKey[]): void {
    for (let at = 0; at < blockKeys.length; at += keysPerMessage) {
      const part = blockKeys.slice(at, at + keysPerMessage);
      this.#options.supervisor.send(workerId, { type: "evict", blockKeys: part });
    }
  }

  #remember<Name>(known: Map<Name, number>, names: readonly Name[]): void {
    const { rememberMs = 600_000, maxRemembered = 100_000 } = this.#options;
    const nowMs = performance.now();
    for (const name of names) {
      // Written anew, so that the map's order is that of time.
      known.delete(name);
      known.set(name, nowMs);
    }
    for (const [name, atMs] of known) {
      const isOld = atMs < nowMs - rememberMs;
      if (!isOld && known.size <= maxRemembered) break;
      known.delete(name);
      if (!isOld) this.#allBeforeMs = atMs;
    }
  }
}
