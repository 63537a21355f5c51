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
}

/** The tenant of each pinned block. */
export type PinnedBlocks = ReadonlyMap<BlockKey, string>;

const keysPerMessage = 4_096;
const none: PinnedBlocks = new Map();

export class Pins {
  readonly #options: PinsOptions;
  /** "host": those that are pinned in the host's memory alone. */
  #pinned: Readonly<Record<WorkerTier, PinnedBlocks>> = { device: none, host: none };

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
    const counts = new Map<string, number>();
    for (const pinned of tier === "device" ? ["device" as const] : workerTiers) {
      for (const [key, tenantId] of this.#pinned[pinned]) {
        if (this.#options.residency.holds(workerId, key, tier)) counts.set(tenantId, (counts.get(tenantId) ?? 0) + 1);
      }
    }
    return counts;
  }

  #send(workerId: string, blockKeys: readonly BlockKey[], pinned: boolean, tier: WorkerTier = "device"): void {
    const where = tier === "host" ? { tier } : {};
    for (let at = 0; at < blockKeys.length; at += keysPerMessage) {
      const part = blockKeys.slice(at, at + keysPerMessage);
      this.#options.supervisor.send(workerId, { type: "pin", blockKeys: part, pinned, ...where });
    }
  }
}
