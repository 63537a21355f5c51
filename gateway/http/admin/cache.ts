/**
 * GET /admin/v1/cache: whose KV there is, on the workers and in tiers that they share. Of a worker, blocks that can be
 * found by a key count; a block that is in use without a key is no one's. GET /admin/v1/kv-events: which worker holds which blocks, as it changes: keys and counts,
 * no text and no tenant.
 */
import type { Hono } from "hono";
import { z } from "zod";
import type { FedChange, KvFeed } from "../../dispatch/kv/feed.ts";
import type { Pins } from "../../dispatch/kv/pins.ts";
import type { HeldKv, Residency } from "../../dispatch/kv/residency.ts";
import type { Registry, WorkerRecord } from "../../dispatch/workers/registry.ts";
import type { TenantTierUse, TierUse } from "../../kv/account.ts";
import type { ConcurrencyLimiter } from "../middleware/concurrency.ts";
import type { AppEnv } from "../transport/context.ts";
import { readQuery } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import { sseResponse } from "../transport/sse.ts";

export interface CacheDeps {
  readonly registry: Pick<Registry, "list">;
  readonly residency: Pick<Residency, "byTenant" | "blockCount">;
  readonly pins: Pick<Pins, "heldBy">;
  /** KV that all workers share. */
  readonly tiers: () => readonly TierUse[];
  /** What tenants have of it. */
  readonly tiersByTenant: () => ReadonlyMap<string, TenantTierUse>;
}

export function addCacheRoutes(app: Hono<AppEnv>, deps: CacheDeps): void {
  const { registry, residency, pins } = deps;
  declare(app, "GET /admin/v1/cache", { summary: "How much KV there is, by tenant and by tier." }, (context) => {
    const workers = registry.list().filter(({ state }) => state === "ready");
    const byTenant = new Map<string, TenantPart[]>();
    for (const worker of workers) {
      const pinned = pins.heldBy(worker.id);
      for (const [tenantId, held] of residency.byTenant(worker.id)) {
        const pinnedBlocks = pinned.get(tenantId) ?? 0;
        byTenant.getOrInsertComputed(tenantId, () => []).push({ worker, held, pinnedBlocks });
      }
    }
    const shared = deps.tiersByTenant();
    const data = [...new Set([...byTenant.keys(), ...shared.keys()])]
      .map((id) => describeTenant(id, byTenant.get(id) ?? [], shared.get(id)))
      .toSorted((a, b) => b.blocks - a.blocks || (a.tenant_id < b.tenant_id ? -1 : 1));
    const devices = workers.map((worker) => describeDevice(worker, residency.blockCount(worker.id), pins));
    return context.json({ object: "list", data, tiers: [...devices, ...deps.tiers().map(describeTier)] });
  });
}

interface TenantPart {
  readonly worker: WorkerRecord;
  readonly held: HeldKv;
  readonly pinnedBlocks: number;
}

/** A worker's pool as a tier. */
function describeDevice({ id, card }: WorkerRecord, blocks: number, pins: Pick<Pins, "heldBy">) {
  const blockBytes = card?.kvBytesPerBlock ?? 0;
  const pinnedBlocks = [...pins.heldBy(id).values()].reduce((sum, count) => sum + count, 0);
  return {
    ...{ tier: "device", worker: id, blocks, bytes: blocks * blockBytes },
    ...{ pinned_bytes: pinnedBlocks * blockBytes, quota_bytes: (card?.blockCount ?? 0) * blockBytes },
  };
}

function describeTier({ tier, objects, blocks, bytes, pinnedBytes, quotaBytes }: TierUse) {
  return { tier, worker: null, objects, blocks, bytes, pinned_bytes: pinnedBytes, quota_bytes: quotaBytes };
}

const describeShared = ({ tier, quotaBytes, ...sums }: TenantTierUse) => {
  return { tier, ...sums, quota_bytes: quotaBytes ?? null };
};

function describeTenant(tenantId: string, parts: readonly TenantPart[], shared: TenantTierUse | undefined) {
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
    tiers: shared === undefined ? [] : [describeShared(shared)],
  };
}

const noQuery = z.strictObject({});
const eventsAbout = {
  summary:
    "Blocks that workers store and remove, as they do. First comes all that is held, up to the event `current`; with Last-Event-ID what has changed since, if that is still known.",
  answerTypes: ["text/event-stream"],
};
/** All followers share one limit, since the route is the platform's. */
const followers = "platform";

export function addKvEventRoutes(
  app: Hono<AppEnv>,
  feed: Pick<KvFeed, "follow">,
  streams: Pick<ConcurrencyLimiter, "enter">,
): void {
  declare(app, "GET /admin/v1/kv-events", eventsAbout, (c) => {
    readQuery(c, noQuery);
    const lastId = c.req.header("last-event-id");
    const hold = streams.enter(followers);
    return sseResponse(c, async (stream) => {
      using _hold = hold;
      for await (const fed of feed.follow(lastId, stream.signal)) await stream.event(eventOf(fed));
    });
  });
}

function eventOf({ id, change }: FedChange) {
  return { ...(id === undefined ? {} : { id }), event: change.type, data: JSON.stringify(bodyOf(change)) };
}

function bodyOf(change: FedChange["change"]) {
  if (change.type === "current") return {};
  if (change.type === "cleared") return { worker: change.worker };
  const { worker, blockKeys: block_keys } = change;
  return change.type === "removed" ? { worker, block_keys } : { worker, block_keys, token_counts: change.tokenCounts };
}
