/**
 * Evicts KV from all workers: blocks by their keys, all blocks of a tenant, or what a tenant computed from a corpus.
 * Blocks that are resident go at once, and blocks that are being computed are not kept. A request that read its texts
 * before an eviction may be sent after it, because it waited or is tried again: it then runs without keeping any KV.
 */
import type { PlanRun } from "../../../worker/contract/messages.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import { TenantLru } from "../../base/tenant-lru.ts";
import type { DispatchRequest, WorkOwner } from "../request/request.ts";
import type { Registry } from "../workers/registry.ts";
import type { Supervisor } from "../workers/supervisor.ts";
import type { KvHistory } from "./history.ts";
import type { KvOwners } from "./owners.ts";
import type { PendingBlocks } from "./pending-blocks.ts";
import type { Residency } from "./residency.ts";

/** Runs of a request, as far as they say what it reads, and whose request it is. */
interface UseOfTexts extends Pick<DispatchRequest, "tenantId"> {
  readonly plan: { readonly runs: readonly Pick<PlanRun, "rootKey" | "blockKeys" | "quotes">[] };
}

export interface EvictionsOptions {
  readonly registry: Pick<Registry, "ready">;
  readonly residency: Residency;
  readonly pendingBlocks: PendingBlocks;
  readonly supervisor: Pick<Supervisor, "send">;
  readonly history?: Pick<KvHistory, "removed">;
  readonly owners: Pick<KvOwners, "numberOf">;
  /**
   * Evicted keys that are remembered, of all tenants together. Beyond that, the tenant with the most keys loses its
   * oldest; requests that read its corpora before then keep no KV.
   */
  readonly maxRemembered?: number;
}

/** "text": the tenant's own, its corpora's fragments left out. */
export type TenantPart = "text" | "all";

const keysPerMessage = 4_096;
const maxRemembered = 100_000;
/** Longest time between a request reading its texts and being sent. */
const rememberMs = 600_000;

export class Evictions {
  readonly #options: EvictionsOptions;
  /** When each key was evicted (performance.now()), by the tenant that owns the corpus. */
  readonly #keys: TenantLru<number>;
  /** When the last key was evicted that is forgotten by now, by tenant. */
  readonly #forgottenMs = new Map<string, number>();
  /** When all KV of a tenant was evicted. This map and the one above are ordered by time. */
  readonly #tenants = new Map<string, number>();
  /** When a part of any corpus was evicted last. */
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
   * @param rootKey the key that the spans of these blocks' corpus begin with
   */
  evict(blockKeys: readonly BlockKey[], rootKey: BlockKey): void {
    if (blockKeys.length === 0) return;
    const { residency, history } = this.#options;
    this.#remember(rootKey, blockKeys);
    history?.removed(blockKeys.filter((key) => residency.holders(key).length > 0));
    for (const { id } of this.#options.registry.ready()) this.#send(id, blockKeys);
  }

  /** Every worker forgets what the tenant computed from spans of another tenant that begin with this key. */
  evictDerived(rootKey: BlockKey, tenantId: WorkOwner): void {
    const { registry, supervisor, owners } = this.#options;
    this.#remember(rootKey, [derivedName(rootKey, tenantId)]);
    const owner = owners.numberOf(tenantId);
    // A tenant without a number holds nothing on the workers, unless it lost its number: then everything of it is evicted.
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

  /** Whether texts that the request uses were evicted after it read them. */
  concern({ plan, tenantId }: UseOfTexts, readAtMs: number): boolean {
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

  /** Notes the time as the newest entry, and drops entries that are older than any request still to be sent. */
  #note(times: Map<string, number>, tenantId: string, atMs: number): void {
    times.delete(tenantId);
    times.set(tenantId, atMs);
    for (const [name, thenMs] of times) {
      if (thenMs >= atMs - rememberMs) break;
      times.delete(name);
    }
  }
}

/** The name under which the eviction of what a tenant computed from a corpus is remembered. */
const derivedName = (rootKey: BlockKey, tenantId: WorkOwner): string => `${rootKey} ${tenantId}`;
