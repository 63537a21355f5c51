/** Queries of a bulk request wait for their tenant's tokens. */
import type { RateLimiter } from "../../tenant/rate-limiter.ts";
import type { BulkRunner } from "./bulk.ts";

/** Longest sleep between two looks: limits may be raised meanwhile. */
const maxWaitMs = 1_000;

/** Queries of a bulk request are not refused for tokens: each waits until there are any. */
export function paced(runner: BulkRunner, limiter: RateLimiter): BulkRunner {
  return {
    ...runner,
    run: async (query, requestId, signal) => {
      for (;;) {
        const waitMs = limiter.admissionOf(requestId)?.tokensWaitMs() ?? 0;
        if (waitMs === 0 || signal.aborted) break;
        await Bun.sleep(Math.min(maxWaitMs, Math.ceil(waitMs)));
      }
      return await runner.run(query, requestId, signal);
    },
  };
}
