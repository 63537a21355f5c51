/** The blocks that workers evict last. Workers are told whenever these change, and again when they were restarted. */
import type { BlockKey } from "../../../worker/contract/units.ts";
import type { Registry } from "../workers/registry.ts";
import type { Supervisor } from "../workers/supervisor.ts";
import type { Residency } from "./residency.ts";

export interface PinsOptions {
  readonly registry: Pick<Registry, "ready">;
  readonly residency: Pick<Residency, "holds">;
  readonly supervisor: Pick<Supervisor, "send">;
}

const keysPerMessage = 4_096;

export class Pins {
  readonly #options: PinsOptions;
  /** The tenant of each pinned block. */
  #tenants: ReadonlyMap<BlockKey, string> = new Map();

  constructor(options: PinsOptions) {
    this.#options = options;
  }

  /** Pins exactly these blocks from now on. */
  set(tenants: ReadonlyMap<BlockKey, string>): void {
    const gone = [...this.#tenants.keys()].filter((key) => !tenants.has(key));
    const added = [...tenants.keys()].filter((key) => !this.#tenants.has(key));
    this.#tenants = tenants;
    for (const { id } of this.#options.registry.ready()) {
      this.#send(id, gone, false);
      this.#send(id, added, true);
    }
  }

  /** To be called when a worker has started with an empty pool. */
  onReady(workerId: string): void {
    this.#send(workerId, [...this.#tenants.keys()], true);
  }

  /** Pinned blocks that the worker holds, by tenant. */
  heldBy(workerId: string): ReadonlyMap<string, number> {
    const counts = new Map<string, number>();
    for (const [key, tenantId] of this.#tenants) {
      if (this.#options.residency.holds(workerId, key)) counts.set(tenantId, (counts.get(tenantId) ?? 0) + 1);
    }
    return counts;
  }

  #send(workerId: string, blockKeys: readonly BlockKey[], pinned: boolean): void {
    for (let at = 0; at < blockKeys.length; at += keysPerMessage) {
      const part = blockKeys.slice(at, at + keysPerMessage);
      this.#options.supervisor.send(workerId, { type: "pin", blockKeys: part, pinned });
    }
  }
}
