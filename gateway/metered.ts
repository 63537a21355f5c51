/** Work that is sent to workers for a caller with limits: reserved before, settled after. */
import type { Dispatcher } from "./dispatch/dispatcher.ts";
import type { BulkRunner } from "./execute/bulk.ts";
import { tokenCount } from "./room.ts";
import type { RateLimiter } from "./tenant/rate-limiter.ts";

/** The dispatcher, for work of requests that came over HTTP. */
export function metered(dispatcher: Pick<Dispatcher, "submit">, limiter: RateLimiter): Pick<Dispatcher, "submit"> {
  return {
    submit: (request) => {
      const admission = limiter.admissionOf(request.requestId);
      if (admission === undefined) return dispatcher.submit(request);
      const reservation = admission.reserve(tokenCount(request.plan.runs) + request.params.maxTokens);
      try {
        return dispatcher.submit({ ...request, onEnd: (tokens) => reservation.settle(tokens) });
      } catch (error) {
        reservation.settle(0);
        throw error;
      }
    },
  };
}

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
