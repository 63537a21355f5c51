/**
 * GET /admin/v1/cache: whose KV there is, on the workers and in tiers that they share. Of a worker, blocks that can be
 * found by a key count; a block that is in use without a key is no one's. A tenant's administrator is told of the
 * tenant's own alone: what there is in all, and others' shares, are the platform's.
 */
import type { Hono } from "hono";
import { z } from "zod";
import type { TenantId } from "../../../db/ids.ts";
import { kvTiers, type WorkerTier, workerTiers } from "../../../worker/contract/tiers.ts";
import type { Pins } from "../../dispatch/kv/pins.ts";
import type { HeldKv, Residency } from "../../dispatch/kv/residency.ts";
import type { Registry, WorkerRecord } from "../../dispatch/workers/registry.ts";
import type { TenantTierUse, TierUse } from "../../kv/account.ts";
import { visibleTenant } from "../../tenant/audit.ts";
import { type AppEnv, principalOf } from "../transport/context.ts";
import { declare } from "../transport/route.ts";

export interface CacheDeps {
  readonly registry: Pick<Registry, "list">;
  readonly residency: Pick<Residency, "byTenant" | "blockCount">;
  readonly pins: Pick<Pins, "heldBy" | "heldOf">;
  /** KV that all workers share. */
  readonly tiers: () => readonly TierUse[];
  /** What tenants have of it: all that have any, and one. */
  readonly tiersByTenant: () => ReadonlyMap<string, readonly TenantTierUse[]>;
  readonly tiersOf: (tenantId: TenantId) => readonly TenantTierUse[];
}

const count = z.int().min(0);
const workerPart = z.strictObject({
  worker: z.string().describe("The worker's name."),
  blocks: count.describe("Blocks of the tenant in its pool."),
  fragment_blocks: count.describe("Those of them that are fragments of its vector stores."),
  pinned_blocks: count.describe("Those that are evicted last."),
  tokens: count.describe("Tokens in these blocks."),
  bytes: count.describe("Memory that they take."),
});
const tenantTier = z.strictObject({
  tier: z.enum(kvTiers).describe("`host`: memory beside the GPUs; `disk`: files; `s3`: the bucket."),
  objects: count.optional().describe("Files or objects; absent of memory."),
  blocks: count.describe("Blocks of the tenant there."),
  bytes: count.describe("What they take."),
  quota_bytes: count.nullable().describe("What the tenant may have there; null: no limit of its own."),
});
const { worker: _worker, ...sums } = workerPart.shape;
const tenantCache = z.strictObject({
  object: z.literal("tenant_cache"),
  tenant_id: z.string().describe("Whose KV it is."),
  ...sums,
  workers: z.array(workerPart).describe("By worker: what its pool holds."),
  tiers: z.array(tenantTier).describe("What lies outside of the pools."),
});
const tier = z.strictObject({
  tier: z.enum(kvTiers).describe("`device`: a worker's pool; `host`: memory beside it; `disk`, `s3`: shared by all."),
  worker: z.string().nullable().describe("null: all workers share it."),
  objects: count.optional().describe("Files or objects; absent of memory."),
  blocks: count.describe("Blocks there, whosever."),
  bytes: count.describe("What they take."),
  pinned_bytes: count.describe("Those of them that are pinned."),
  quota_bytes: count.nullable().describe("What there is room for; null: as much as there is."),
});
export const cacheAnswer = z.strictObject({
  object: z.literal("list"),
  data: z.array(tenantCache).describe("By tenant, who has most first; for a tenant's administrator the own one alone."),
  tiers: z.array(tier).describe("What there is in all; empty for a tenant's administrator."),
});

/** What the route does, for /openapi.json. */
const about = {
  summary: "How much KV there is, by tenant and by tier; a tenant's own with tenant:admin.",
  answer: cacheAnswer,
};

export function addCacheRoutes(app: Hono<AppEnv>, deps: CacheDeps): void {
  declare(app, "GET /admin/v1/cache", about, (context) => {
    const caller = principalOf(context);
    const workers = deps.registry.list().filter(({ state }) => state === "ready");
    const { tenantId } = caller;
    if (visibleTenant(caller) !== undefined && tenantId !== undefined) {
      return context.json({ object: "list", data: [ownCache(tenantId, workers, deps)], tiers: [] });
    }
    const own = workers.flatMap((worker) => workerTierUses(worker, deps));
    const tiers = [...own, ...deps.tiers().map(describeTier)];
    return context.json({ object: "list", data: allCaches(workers, deps), tiers });
  });
}

function allCaches(workers: readonly WorkerRecord[], { residency, pins, tiersByTenant }: CacheDeps) {
  const byTenant = new Map<string, TenantPart[]>();
  for (const worker of workers) {
    const pinned = pins.heldBy(worker.id);
    for (const [tenantId, held] of residency.byTenant(worker.id)) {
      const pinnedBlocks = pinned.get(tenantId) ?? 0;
      byTenant.getOrInsertComputed(tenantId, () => []).push({ worker, held, pinnedBlocks });
    }
  }
  const [below, shared] = [hostByTenant(workers, residency), tiersByTenant()];
  return [...new Set([...byTenant.keys(), ...below.keys(), ...shared.keys()])]
    .map((id) =>
      describeTenant(id, byTenant.get(id) ?? [], [below.get(id), ...(shared.get(id) ?? []).map(describeShared)]),
    )
    .toSorted((a, b) => b.blocks - a.blocks || (a.tenant_id < b.tenant_id ? -1 : 1));
}

/** One tenant's, without a look at anybody else's. */
function ownCache(tenantId: TenantId, workers: readonly WorkerRecord[], { residency, pins, tiersOf }: CacheDeps) {
  const parts = workers.flatMap((worker) => {
    const held = residency.byTenant(worker.id).get(tenantId);
    return held === undefined ? [] : [{ worker, held, pinnedBlocks: pins.heldOf(worker.id, tenantId) }];
  });
  let [blocks, bytes] = [0, 0];
  for (const { id, card } of workers) {
    const { blockCount = 0 } = residency.byTenant(id, "host").get(tenantId) ?? {};
    blocks += blockCount;
    bytes += blockCount * (card?.hostKv?.bytesPerBlock ?? 0);
  }
  const host = blocks === 0 ? undefined : { tier: "host", blocks, bytes, quota_bytes: null };
  return describeTenant(tenantId, parts, [host, ...tiersOf(tenantId).map(describeShared)]);
}

interface TenantPart {
  readonly worker: WorkerRecord;
  readonly held: HeldKv;
  readonly pinnedBlocks: number;
}

/** Blocks of one of a worker's tiers, and bytes of each; undefined: it does not have it. */
function sizeOf({ card }: WorkerRecord, tier: WorkerTier) {
  if (tier === "host") return card?.hostKv;
  return { blockCount: card?.blockCount ?? 0, bytesPerBlock: card?.kvBytesPerBlock ?? 0 };
}

/** A worker's pool as a tier, and its memory of the host. */
function workerTierUses(worker: WorkerRecord, { residency, pins }: CacheDeps) {
  return workerTiers.flatMap((tier) => {
    const size = sizeOf(worker, tier);
    if (size === undefined) return [];
    const blocks = residency.blockCount(worker.id, tier);
    const pinnedBlocks = pins
      .heldBy(worker.id, tier)
      .values()
      .reduce((sum, count) => sum + count, 0);
    const { blockCount, bytesPerBlock } = size;
    return {
      ...{ tier, worker: worker.id, blocks, bytes: blocks * bytesPerBlock },
      ...{ pinned_bytes: pinnedBlocks * bytesPerBlock, quota_bytes: blockCount * bytesPerBlock },
    };
  });
}

function describeTier({ tier, objects, blocks, bytes, pinnedBytes, quotaBytes }: TierUse) {
  return { tier, worker: null, objects, blocks, bytes, pinned_bytes: pinnedBytes, quota_bytes: quotaBytes };
}

function describeShared({ tier, quotaBytes, ...sums }: TenantTierUse) {
  return { tier, ...sums, quota_bytes: quotaBytes ?? null };
}

/** What each tenant has in the host's memory of all workers. */
function hostByTenant(workers: readonly WorkerRecord[], residency: CacheDeps["residency"]) {
  const uses = new Map<string, { tier: "host"; blocks: number; bytes: number; quota_bytes: null }>();
  for (const { id, card } of workers) {
    for (const [tenantId, { blockCount }] of residency.byTenant(id, "host")) {
      const use = uses.getOrInsertComputed(tenantId, () => ({ tier: "host", blocks: 0, bytes: 0, quota_bytes: null }));
      use.blocks += blockCount;
      use.bytes += blockCount * (card?.hostKv?.bytesPerBlock ?? 0);
    }
  }
  return uses;
}

function describeTenant(tenantId: string, parts: readonly TenantPart[], tiers: readonly (object | undefined)[]) {
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
    tiers: tiers.filter((tier) => tier !== undefined),
  };
}
