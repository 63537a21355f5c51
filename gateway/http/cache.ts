/** GET /admin/v1/cache: whose KV the workers hold. Blocks that can be found by a key; what is in use without one is no one's. */
import type { Hono } from "hono";
import type { Registry, WorkerRecord } from "../dispatch/registry.ts";
import type { HeldKv, Residency } from "../dispatch/residency.ts";
import type { AppEnv } from "./auth.ts";
import { declare } from "./route.ts";

export interface CacheDeps {
  readonly registry: Pick<Registry, "list">;
  readonly residency: Pick<Residency, "byTenant">;
}

export function addCacheRoutes(app: Hono<AppEnv>, { registry, residency }: CacheDeps): void {
  declare(app, "GET", "/admin/v1/cache", "platform:admin", (context) => {
    const workers = registry.list().filter(({ state }) => state === "ready");
    const byTenant = new Map<string, TenantPart[]>();
    for (const worker of workers) {
      for (const [tenantId, held] of residency.byTenant(worker.id)) {
        const parts = byTenant.get(tenantId) ?? [];
        parts.push({ worker, held });
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
}

function describeTenant(tenantId: string, parts: readonly TenantPart[]) {
  const workers = parts.map(({ worker, held }) => ({
    worker: worker.id,
    blocks: held.blockCount,
    fragment_blocks: held.fragmentBlockCount,
    tokens: held.tokenCount,
    bytes: held.blockCount * (worker.card?.kvBytesPerBlock ?? 0),
  }));
  const sum = (field: "blocks" | "fragment_blocks" | "tokens" | "bytes"): number =>
    workers.reduce((total, worker) => total + worker[field], 0);
  return {
    object: "tenant_cache",
    tenant_id: tenantId,
    blocks: sum("blocks"),
    fragment_blocks: sum("fragment_blocks"),
    tokens: sum("tokens"),
    bytes: sum("bytes"),
    workers,
  };
}
