/**
 * What becomes of KV, as it does. GET /admin/v1/kv-events: which worker holds which blocks, for routers and monitoring:
 * keys and counts, no text and no tenant. GET /admin/v1/cache/events: how many blocks of a tenant are stored, removed,
 * loaded and pinned, by the second, for people who look; a tenant's administrator is told of the tenant's own.
 */
import type { Hono } from "hono";
import { z } from "zod";
import { kvTiers, workerTiers } from "../../../worker/contract/tiers.ts";
import type { BlockChange, KvActivity, KvSecond, PinChange } from "../../dispatch/kv/activity.ts";
import type { FedChange, KvFeed } from "../../dispatch/kv/feed.ts";
import { visibleTenant } from "../../tenant/audit.ts";
import type { ConcurrencyLimiter } from "../middleware/concurrency.ts";
import { type AppEnv, principalOf } from "../transport/context.ts";
import { readQuery, seconds } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import { sseResponse } from "../transport/sse.ts";

const noQuery = z.strictObject({});

const count = z.int().min(0);
const worker = z.string().describe("The worker's name.");
const blockKeys = z.array(z.string()).describe("The blocks' names: a hash of all that the KV depends on.");
const workerTier = z.enum(workerTiers).describe("`device`: the worker's pool; `host`: memory beside it.");
const nothing = z.strictObject({}).describe("All that is known was told; what follows has just happened.");
const kvPlace = { worker, tier: workerTier, block_keys: blockKeys };
const goOn = "Sent back as the header Last-Event-ID, it asks for what came after this event.";

/** Events of GET /admin/v1/kv-events. */
export const kvEvents = {
  cleared: {
    data: z.strictObject({ worker: worker.nullable().describe("Who holds nothing now; null: no worker does.") }),
    id: `${goOn} Absent while all that is held is told.`,
  },
  stored: {
    data: z.strictObject({ ...kvPlace, token_counts: z.array(count).describe("Tokens in each of the blocks.") }),
    id: `${goOn} Absent while all that is held is told.`,
  },
  removed: { data: z.strictObject(kvPlace), id: goOn },
  current: { data: nothing, id: goOn },
};

const turnoverAnswer = {
  stored: count.describe("Blocks that came to be there."),
  removed: count.describe("Blocks that are there no more: evicted, or of text that was deleted."),
  loaded: count.describe(
    "Blocks that were brought from there to a nearer tier: to a pool, or from the bucket to files.",
  ),
};
const whose = z.string().describe("Whose KV it is.");
const blockChange = z.strictObject({
  tenant_id: whose,
  worker: worker.nullable().describe("Where it happened; null: in a tier that all workers share."),
  tier: z
    .enum(kvTiers)
    .describe("`device`: a worker's pool; `host`: memory beside it; `disk`: files; `s3`: the bucket."),
  ...turnoverAnswer,
  held: count.describe("Blocks of the tenant there at the second's end."),
});
const pinChange = z.strictObject({
  tenant_id: whose,
  tier: workerTier,
  pinned: count.describe("Blocks that are evicted last from now on."),
  unpinned: count.describe("Blocks for which that is over."),
});
/** Tenants whose changes of a second an operator is told one by one; those of others are summed up. */
const shownChanges = 100;

/** Events of GET /admin/v1/cache/events. */
export const cacheEvents = {
  change: {
    data: z.strictObject({
      at: z.int().describe("When the second ended: Unix time in seconds."),
      blocks: z
        .array(blockChange)
        .max(shownChanges)
        .describe("By tenant and place, the largest change first. A tenant's administrator is told of its own."),
      pins: z.array(pinChange).max(shownChanges).describe("By tenant and tier."),
      others: z
        .strictObject(turnoverAnswer)
        .optional()
        .describe(`Sums of the changes beyond the first ${shownChanges}.`),
    }),
    id: goOn,
  },
  current: { data: nothing },
};

/** What the routes do, for /openapi.json. */
const about = {
  kv: {
    summary:
      "Blocks that workers store and remove, as they do, with their tier: `device`, or `host` for memory beside it. First comes all that is held, up to the event `current`; with Last-Event-ID what has changed since, if that is still known.",
    events: kvEvents,
  },
  cache: {
    summary:
      "How many blocks of KV are stored, removed, loaded and pinned, by the second (event `change`), with what is held then, in each tier: a worker's pool (`device`) and the memory beside it (`host`); files (`disk`) and the bucket (`s3`), which all workers share (`worker` is null). `loaded` counts what was brought from there: files to a pool, objects of the bucket to files. A tenant's own with tenant:admin. First comes what is known of the last minute, up to the event `current`; with Last-Event-ID what came after it.",
    events: cacheEvents,
  },
};

/** Operators share one limit, since the routes are the platform's. */
const operators = "platform";

export interface CacheEventDeps {
  readonly feed: Pick<KvFeed, "follow">;
  readonly feedStreams: Pick<ConcurrencyLimiter, "enter">;
  readonly activity: Pick<KvActivity, "follow" | "idOf">;
  /** How many streams each tenant may have open, and the operators together. */
  readonly activityStreams: Pick<ConcurrencyLimiter, "enter">;
}

export function addCacheEventRoutes(app: Hono<AppEnv>, deps: CacheEventDeps): void {
  const { feed, activity } = deps;
  declare(app, "GET /admin/v1/kv-events", about.kv, (c) => {
    readQuery(c, noQuery);
    const lastId = c.req.header("last-event-id");
    const hold = deps.feedStreams.enter(operators);
    return sseResponse(c, async (stream) => {
      using _hold = hold;
      for await (const fed of feed.follow(lastId, stream.signal)) await stream.event(eventOf(fed));
    });
  });

  declare(app, "GET /admin/v1/cache/events", about.cache, (c) => {
    readQuery(c, noQuery);
    const tenantId = visibleTenant(principalOf(c));
    const lastId = c.req.header("last-event-id");
    const hold = deps.activityStreams.enter(tenantId ?? operators);
    return sseResponse(c, async (stream) => {
      using _hold = hold;
      for await (const second of activity.follow(tenantId, lastId, stream.signal)) {
        if (second === undefined) await stream.event({ event: "current", data: "{}" });
        else
          await stream.event({ event: "change", id: activity.idOf(second), data: JSON.stringify(secondBody(second)) });
      }
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

const turnover = ({ storedBlocks, removedBlocks, loadedBlocks }: BlockChange): number =>
  storedBlocks + removedBlocks + loadedBlocks;

function secondBody({ atMs, blocks, pins }: KvSecond) {
  const byTurnover = blocks.toSorted((a, b) => turnover(b) - turnover(a));
  const others = byTurnover.slice(shownChanges);
  const sum = (field: "storedBlocks" | "removedBlocks" | "loadedBlocks"): number =>
    others.reduce((total, change) => total + change[field], 0);
  return {
    at: seconds(atMs),
    blocks: byTurnover.slice(0, shownChanges).map(blocksBody),
    pins: pins.slice(0, shownChanges).map(pinsBody),
    ...(others.length > 0 && {
      others: { stored: sum("storedBlocks"), removed: sum("removedBlocks"), loaded: sum("loadedBlocks") },
    }),
  };
}

function blocksBody({ tenantId, place, storedBlocks, removedBlocks, loadedBlocks, heldBlocks }: BlockChange) {
  const counts = { stored: storedBlocks, removed: removedBlocks, loaded: loadedBlocks, held: heldBlocks };
  return { tenant_id: tenantId, ...place, ...counts };
}

function pinsBody({ tenantId, tier, pinnedBlocks, unpinnedBlocks }: PinChange) {
  return { tenant_id: tenantId, tier, pinned: pinnedBlocks, unpinned: unpinnedBlocks };
}
