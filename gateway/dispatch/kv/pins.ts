/** The blocks that workers evict last, on the device and in the host's memory beside it, or there alone. Workers are told whenever these change, and again when they were restarted. */
import { type WorkerTier, workerTiers } from "../../../worker/contract/tiers.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import type { Registry } from "../workers/registry.ts";
import type { Supervisor } from "../workers/supervisor.ts";
import type { Residency } from "./residency.ts";

export interface PinsOptions {
  readonly registry: Pick<Registry, "ready">;
  readonly residency: Pick<Residency, "holds">;
  readonly supervisor: Pick<Supervisor, "send">;
  /** Told of a tenant's blocks that are pinned from now on or, with a count below zero, no more. */
  readonly onChange?: (tier: WorkerTier, tenantId: string, count: number) => void;
}

/** The tenant of each pinned block. */
export type PinnedBlocks = ReadonlyMap<BlockKey, string>;

const keysPerMessage = 4_096;
const none: PinnedBlocks = new Map();
/** "host": those that are pinned in the host's memory alone. */
type PinnedByTier = Readonly<Record<WorkerTier, PinnedBlocks>>;

type KeysByTenant = ReadonlyMap<string, readonly BlockKey[]>;

function keysByTenant(pinned: PinnedBlocks): KeysByTenant {
  const keys = new Map<string, BlockKey[]>();
  for (const [key, tenantId] of pinned) keys.getOrInsertComputed(tenantId, () => []).push(key);
  return keys;
}

export class Pins {
  readonly #options: PinsOptions;
  #pinned: PinnedByTier = { device: none, host: none };
  #byTenant: Readonly<Record<WorkerTier, KeysByTenant>> = { device: new Map(), host: new Map() };

  constructor(options: PinsOptions) {
    this.#options = options;
  }

  /** Pins exactly these blocks from now on. @param below in the host's memory alone, unless `device` has them too */
  set(device: PinnedBlocks, below = none): void {
    const before = this.#pinned;
    const now = { device, host: new Map([...below].filter(([key]) => !device.has(key))) };
    this.#pinned = now;
    const keysOf = (tier: WorkerTier, of: typeof before, but: typeof before): BlockKey[] =>
      [...of[tier].keys()].filter((key) => !but[tier].has(key));
    this.#tell(before, now, 1);
    this.#tell(now, before, -1);
    this.#byTenant = { device: keysByTenant(now.device), host: keysByTenant(now.host) };
    const gone = workerTiers.flatMap((tier) => keysOf(tier, before, now));
    for (const { id } of this.#options.registry.ready()) {
      this.#send(id, gone, false);
      for (const tier of workerTiers) this.#send(id, keysOf(tier, now, before), true, tier);
    }
  }

  /** To be called when a worker has started with an empty pool. */
  onReady(workerId: string): void {
    for (const tier of workerTiers) this.#send(workerId, [...this.#pinned[tier].keys()], true, tier);
  }

  /** Pinned blocks that the worker holds in a tier, by tenant. */
  heldBy(workerId: string, tier: WorkerTier = "device"): ReadonlyMap<string, number> {
    const tenants = new Set(workerTiers.flatMap((pinned) => [...this.#byTenant[pinned].keys()]));
    const counts = [...tenants].map((tenantId) => [tenantId, this.heldOf(workerId, tenantId, tier)] as const);
    return new Map(counts.filter(([, count]) => count > 0));
  }

  /** Pinned blocks of one tenant that the worker holds in a tier. A device's pins hold in the host's memory too. */
  heldOf(workerId: string, tenantId: string, tier: WorkerTier = "device"): number {
    let count = 0;
    for (const pinned of tier === "device" ? ["device" as const] : workerTiers) {
      for (const key of this.#byTenant[pinned].get(tenantId) ?? []) {
        if (this.#options.residency.holds(workerId, key, tier)) count += 1;
      }
    }
    return count;
  }

  /** Tells of the blocks that are pinned in `these` and not in `those`. */
  #tell(those: PinnedByTier, these: PinnedByTier, sign: 1 | -1): void {
    const { onChange } = this.#options;
    if (onChange === undefined) return;
    for (const tier of workerTiers) {
      const counts = new Map<string, number>();
      for (const [key, tenantId] of these[tier]) {
        if (!those[tier].has(key)) counts.set(tenantId, (counts.get(tenantId) ?? 0) + 1);
      }
      for (const [tenantId, count] of counts) onChange(tier, tenantId, sign * count);
    }
  }

  #send(workerId: string, blockKeys: readonly BlockKey[], pinned: boolean, tier: WorkerTier = "device"): void {
    const where = tier === "host" ? { tier } : {};
    for (let at = 0; at < blockKeys.length; at += keysPerMessage) {
      const part = blockKeys.slice(at, at + keysPerMessage);
      this.#options.supervisor.send(workerId, { type: "pin", blockKeys: part, pinned, ...where });
    }
  }
}
