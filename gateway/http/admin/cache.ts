/** GET /admin/v1/cache: whose KV the workers hold. Blocks that can be found by a key; what is in use without one is no one's. */
import type { Hono } from "hono";
import type { Pins } from "../../dispatch/kv/pins.ts";
import type { HeldKv, Residency } from "../../dispatch/kv/residency.ts";
import type { Registry, WorkerRecord } from "../../dispatch/workers/registry.ts";
import type { AppEnv } from "../transport/context.ts";
import { declare } from "../transport/route.ts";

export interface CacheDeps {
  readonly registry: Pick<Registry, "list">;
  readonly residency: Pick<Residency, "byTenant">;
  readonly pins: Pick<Pins, "heldBy">;
}

export function addCacheRoutes(app: Hono<AppEnv>, { registry, residency, pins }: CacheDeps): void {
  declare(app, "GET /admin/v1/cache", (context) => {
    const workers = registry.list().filter(({ state }) => state === "ready");
    const byTenant = new Map<string, TenantPart[]>();
    for (const worker of workers) {
      const pinned = pins.heldBy(worker.id);
      for (const [tenantId, held] of residency.byTenant(worker.id)) {
        const parts = byTenant.get(tenantId) ?? [];
        parts.push({ worker, held, pinnedBlocks: pinned.get(tenantId) ?? 0 });
        byTenant.set(tenantId, parts);
      }
    }
    const data = [...byTenant]
      .map(([tenantId, parts]) => describeTenant(tenantId, parts))
      .toSorted((a, b) => b.blocks - a.blocks || (a.tenant_id < b.tenant_id ? -1 : 1));
    return context.json({ object: "list", data });
  });
}

interface TenantPart {
  readonly worker: WorkerRecord;
  readonly held: HeldKv;
  readonly pinnedBlocks: number;
}

function describeTenant(tenantId: string, parts: readonly TenantPart[]) {
  const workers = parts.map(({ worker, held, pinnedBlocks }) => ({
    worker: worker.id,
    blocks: held.blockCount,
    fragment_blocks: held.fragmentBlockCount,
    pinned_blocks: pinnedBlocks,
    tokens: held.tokenCount,
    bytes: held.blockCount * (worker.card?.kvBytesPerBlock ?? 0),
  }));
  const sum = (field: "blocks" | "fragment_blocks" | "pinned_blocks" | "tokens" | "bytes"): number =>
    workers.reduce((total, worker) => total + worker[field], 0);
  return {
    object: "tenant_cache",
    tenant_id: tenantId,
    blocks: sum("blocks"),
    fragment_blocks: sum("fragment_blocks"),
    pinned_blocks: sum("pinned_blocks"),
    tokens: sum("tokens"),
    bytes: sum("bytes"),
    workers,
  };
}
