/** Blocks that the workers are told to evict last; each worker anew when it was started again. */
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
  /** Whose each pinned block is. */
  #tenants: ReadonlyMap<BlockKey, string> = new Map();

  constructor(options: PinsOptions) {
    this.#options = options;
  }

  /** These blocks are pinned from now on, and no others. */
  set(tenants: ReadonlyMap<BlockKey, string>): void {
    const gone = [...this.#tenants.keys()].filter((key) => !tenants.has(key));
    const added = [...tenants.keys()].filter((key) => !this.#tenants.has(key));
    this.#tenants = tenants;
    for (const { id } of this.#options.registry.ready()) {
      this.#send(id, gone, false);
      this.#send(id, added, true);
    }
  }

  /** A worker has begun with nothing. */
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
