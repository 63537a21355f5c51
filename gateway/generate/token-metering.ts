/** Applies callers' token limits to work for workers: tokens are reserved before the work and settled after it. */
import type { TenantId } from "../../db/ids.ts";
import type { Dispatcher } from "../dispatch/dispatcher.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { LimitedOwner, RateLimiter } from "../tenant/rate-limiter.ts";
import { tokenCount } from "./context-budget.ts";
import { countEmbedding } from "./usage-counters.ts";

/**
 * Wraps the dispatcher so that the tokens of HTTP requests and of batch lines count against their callers' limits.
 * @param isBackground whether the work belongs to a batch; its id is a request's id, alone or followed by a point and
 *   more
 */
export function metered(
  dispatcher: Pick<Dispatcher, "submit">,
  limiter: RateLimiter,
  isBackground: (workId: string) => boolean = () => false,
): Pick<Dispatcher, "submit"> {
  return {
    submit: (given) => {
      const request = isBackground(given.requestId) ? { ...given, background: true } : given;
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

/** Work of the embedder that a request waits for. */
export interface EmbedderWork {
  readonly requestId: string;
  readonly tenantId: TenantId;
  readonly tokens: number;
}

/** Runs the work with its tokens reserved, and counts them as usage when it succeeds. @throws ApiError rate_limited */
export type EmbedderMeter = <Result>(work: EmbedderWork, run: () => Promise<Result>) => Promise<Result>;

export function embedderMeter(limiter: RateLimiter, metrics: Metrics): EmbedderMeter {
  return async ({ requestId, tenantId, tokens }, run) => {
    const reservation = limiter.admissionOf(requestId)?.reserve(tokens);
    try {
      const result = await run();
      reservation?.settle(tokens);
      countEmbedding(metrics, tenantId, tokens);
      return result;
    } catch (error) {
      reservation?.settle(0);
      throw error;
    }
  };
}

/**
 * Tokens that are computed for a tenant outside of an admitted request: for searches, prepared fragments and pinned
 * fragments.
 */
export interface TenantMeter {
  /** Call before background work. @throws ApiError rate_limited, with the time to wait */
  requireTokens(tenantId: TenantId): void;
  /** Call once the tokens are computed. */
  spend(tenantId: TenantId, tokens: number): void;
}

export function tenantMeter(limiter: RateLimiter, ownerOf: (tenantId: TenantId) => LimitedOwner): TenantMeter {
  return {
    requireTokens: (tenantId) => limiter.requireTokens(ownerOf(tenantId)),
    spend: (tenantId, tokens) => limiter.spend(ownerOf(tenantId), tokens),
  };
}
