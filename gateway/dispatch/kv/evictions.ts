/**
 * Takes KV from all workers: by key, all of a tenant's, or what a tenant made of a corpus. What is resident goes at once,
 * and what is being computed is not kept. A request that read its texts before may be sent only afterwards, for it waited
 * or is tried again: it runs without keeping anything.
 */
import type { BlockKey } from "../../../worker/contract/units.ts";
import { TenantLru } from "../../base/tenant-lru.ts";
import type { DispatchRequest, WorkOwner } from "../request/request.ts";
import type { Registry } from "../workers/registry.ts";
import type { Supervisor } from "../workers/supervisor.ts";
import type { KvHistory } from "./history.ts";
import type { KvOwners } from "./owners.ts";
import type { PendingBlocks } from "./pending-blocks.ts";
import type { Residency } from "./residency.ts";

export interface EvictionsOptions {
  readonly registry: Pick<Registry, "ready">;
  readonly residency: Residency;
  readonly pendingBlocks: PendingBlocks;
  readonly supervisor: Pick<Supervisor, "send">;
  readonly history?: Pick<KvHistory, "removed">;
  readonly owners: Pick<KvOwners, "numberOf">;
  /** How long after it read its texts a request may still be sent. */
  readonly rememberMs?: number;
  /**
   * Keys that are remembered for all tenants. Of the tenant that has most the oldest are forgotten: whatever was read
   * of its corpora before is not kept then.
   */
  readonly maxRemembered?: number;
}

/** "text": the tenant's own, its corpora's fragments left out. */
export type TenantPart = "text" | "all";

const keysPerMessage = 4_096;
const maxRemembered = 100_000;
const rememberMs = 600_000;

export class Evictions {
  readonly #options: EvictionsOptions;
  /** When each key was evicted, by performance.now(), under the tenant whose corpus it is of. */
  readonly #keys: TenantLru<number>;
  /** Of tenants with keys that are forgotten: when the last of these was evicted. */
  readonly #forgottenMs = new Map<string, number>();
  /** When all of a tenant's was evicted. Both maps are in the order of time. */
  readonly #tenants = new Map<string, number>();
  /** When anything of a corpus was evicted last. */
  #lastMs = Number.NEGATIVE_INFINITY;

  constructor(options: EvictionsOptions) {
    this.#options = options;
    this.#keys = new TenantLru({
      maxSize: options.maxRemembered ?? maxRemembered,
      onForget: (tenantId, atMs) => this.#note(this.#forgottenMs, tenantId, atMs),
    });
  }

  /**
   * Every worker forgets the blocks with these keys, and what was computed from them.
   * @param rootKey what the spans of the corpus begin with that the blocks are of
   */
  evict(blockKeys: readonly BlockKey[], rootKey: BlockKey): void {
    if (blockKeys.length === 0) return;
    const { residency, history } = this.#options;
    this.#remember(rootKey, blockKeys);
    history?.removed(blockKeys.filter((key) => residency.holders(key).length > 0));
    for (const { id } of this.#options.registry.ready()) this.#send(id, blockKeys);
  }

  /** Every worker forgets what the tenant computed from spans that begin with the key, which are another's. */
  evictDerived(rootKey: BlockKey, tenantId: WorkOwner): void {
    const { registry, supervisor, owners } = this.#options;
    this.#remember(rootKey, [derivedName(rootKey, tenantId)]);
    const owner = owners.numberOf(tenantId);
    // The workers hold nothing that is counted for a tenant without a number, unless it lost one: all of it goes then.
    if (owner === undefined) this.evictTenant(tenantId, "text");
    else for (const { id } of registry.ready()) supervisor.send(id, { type: "evict", blockKeys: [rootKey], owner });
  }

  /** Every worker forgets what is counted for the tenant. @returns blocks that were held, on all workers */
  evictTenant(tenantId: WorkOwner, part: TenantPart): number {
    const { registry, residency, pendingBlocks, history } = this.#options;
    this.#note(this.#tenants, tenantId, performance.now());
    let blockCount = 0;
    for (const { id } of registry.ready()) {
      const held = residency.keysOf(id, tenantId, part === "text");
      blockCount += held.length;
      history?.removed(held);
      this.#send(id, [...held, ...pendingBlocks.rootsOf(id, tenantId, part === "text")]);
    }
    return blockCount;
  }

  /** Whether something that the request is over was evicted since it read its texts. */
  concern({ plan, tenantId }: Pick<DispatchRequest, "plan" | "tenantId">, readAtMs: number): boolean {
    const isSince = (atMs: number | undefined): boolean => atMs !== undefined && atMs >= readAtMs;
    if (isSince(this.#tenants.get(tenantId))) return true;
    if (this.#lastMs < readAtMs) return false;
    const keys = plan.runs.flatMap(({ rootKey, blockKeys, quotes = [] }) => [
      rootKey,
      ...blockKeys.slice(-1),
      ...quotes,
    ]);
    const names: string[] = [...keys];
    const owners = new Set([""]);
    for (const key of new Set(keys)) {
      const owner = this.#options.pendingBlocks.corpusOwner(key);
      if (owner === undefined) continue;
      owners.add(owner);
      names.push(derivedName(key, tenantId));
    }
    return [...owners].some((owner) => {
      return isSince(this.#forgottenMs.get(owner)) || names.some((name) => isSince(this.#keys.peek(owner, name)));
    });
  }

  #send(workerId: string, blockKeys: readonly BlockKey[]): void {
    for (let at = 0; at < blockKeys.length; at += keysPerMessage) {
      const part = blockKeys.slice(at, at + keysPerMessage);
      this.#options.supervisor.send(workerId, { type: "evict", blockKeys: part });
    }
  }

  #remember(rootKey: BlockKey, names: readonly string[]): void {
    const owner = this.#options.pendingBlocks.corpusOwner(rootKey) ?? "";
    this.#lastMs = performance.now();
    for (const name of names) this.#keys.set(owner, name, this.#lastMs);
  }

  /** What is written last stands last, and what no request can have been read before is left out. */
  #note(times: Map<string, number>, tenantId: string, atMs: number): void {
    times.delete(tenantId);
    times.set(tenantId, atMs);
    for (const [name, thenMs] of times) {
      if (thenMs >= atMs - (this.#options.rememberMs ?? rememberMs)) break;
      times.delete(name);
    }
  }
}

/** What a tenant computed from a corpus is remembered by this name. */
const derivedName = (rootKey: BlockKey, tenantId: WorkOwner): string => `${rootKey} ${tenantId}`;
