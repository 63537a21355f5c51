/**
 * GET /admin/v1/cache: whose KV there is, on the workers and in tiers that they share. Of a worker, blocks that can be
 * found by a key count; a block that is in use without a key is no one's. GET /admin/v1/kv-events: which worker holds which blocks, as it changes: keys and counts,
 * no text and no tenant.
 */
import type { Hono } from "hono";
import { z } from "zod";
import { type WorkerTier, workerTiers } from "../../../worker/contract/tiers.ts";
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
    const [below, shared] = [hostByTenant(workers, residency), deps.tiersByTenant()];
    const data = [...new Set([...byTenant.keys(), ...below.keys(), ...shared.keys()])]
      .map((id) => describeTenant(id, byTenant.get(id) ?? [], [below.get(id), describeShared(shared.get(id))]))
      .toSorted((a, b) => b.blocks - a.blocks || (a.tenant_id < b.tenant_id ? -1 : 1));
    const own = workers.flatMap((worker) => workerTierUses(worker, deps));
    return context.json({ object: "list", data, tiers: [...own, ...deps.tiers().map(describeTier)] });
  });
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

function describeShared(use: TenantTierUse | undefined) {
  if (use === undefined) return undefined;
  const { tier, quotaBytes, ...sums } = use;
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

const noQuery = z.strictObject({});
const eventsAbout = {
  summary:
    "Blocks that workers store and remove, as they do, with their tier: `device`, or `host` for memory beside it. First comes all that is held, up to the event `current`; with Last-Event-ID what has changed since, if that is still known.",
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
  const { worker, tier, blockKeys: block_keys } = change;
  const where = { worker, tier, block_keys };
  return change.type === "removed" ? where : { ...where, token_counts: change.tokenCounts };
}
