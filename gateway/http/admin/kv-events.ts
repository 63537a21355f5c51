/** GET /admin/v1/kv-events: which worker holds which blocks, as it changes. Keys and counts, no text and no tenant. */
import type { Hono } from "hono";
import { z } from "zod";
import type { FedChange, KvFeed } from "../../dispatch/kv/feed.ts";
import type { ConcurrencyLimiter } from "../middleware/concurrency.ts";
import type { AppEnv } from "../transport/context.ts";
import { readQuery } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import { sseResponse } from "../transport/sse.ts";

const noQuery = z.strictObject({});
const about = {
  summary:
    "Blocks that workers store and remove, as they do. First comes all that is held, up to the event `current`; with Last-Event-ID what has changed since, if that is still known.",
  answerTypes: ["text/event-stream"],
};
/** One line for all: the route is the platform's. */
const followers = "platform";

export function addKvEventRoutes(
  app: Hono<AppEnv>,
  feed: Pick<KvFeed, "follow">,
  streams: Pick<ConcurrencyLimiter, "enter">,
): void {
  declare(
    app,
    "GET /admin/v1/kv-events",
    (c) => {
      readQuery(c, noQuery);
      const lastId = c.req.header("last-event-id");
      const leave = streams.enter(followers);
      return sseResponse(c, async (stream) => {
        try {
          for await (const fed of feed.follow(lastId, stream.signal)) await stream.event(eventOf(fed));
        } finally {
          leave();
        }
      });
    },
    about,
  );
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
