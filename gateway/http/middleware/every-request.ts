/** What every request passes on its way to a route: its URL must be whole, and it gets its budget. */
import type { MiddlewareHandler } from "hono";
import { ApiError } from "../../base/errors.ts";
import { limits } from "../../config.ts";
import { BodyMemory } from "../transport/body-memory.ts";
import type { AppEnv } from "../transport/context.ts";
import { RequestBudget } from "../transport/request-budget.ts";

/**
 * Bun gives the path alone where the Host header is no host, and the router would take the path's first segment for the
 * host: what is routed must be the path that was asked for.
 */
export const requireWholeUrl: MiddlewareHandler<AppEnv> = async (context, next) => {
  const { url } = context.req;
  if (!/^https?:\/\//.test(url) || !URL.canParse(url)) {
    throw new ApiError("invalid_request", { message: "The Host header is not a host, or the path is not one." });
  }
  await next();
};

export const bodyMemory = (): BodyMemory =>
  new BodyMemory({
    totalBytes: limits.bodyMemoryBytes,
    tenantBytes: limits.bodyMemoryTenantBytes,
    reserveBytes: limits.bodyMemoryReserveBytes,
    tenantBodies: limits.bodiesPerTenant,
  });

/** Needs the caller, whose tenant's part of the memory for bodies the request takes from. */
export function requestBudgets(memory: BodyMemory): MiddlewareHandler<AppEnv> {
  return async (context, next) => {
    const principal = context.get("principal");
    const budget = new RequestBudget(memory, principal?.tenantId ?? principal?.keyId ?? "");
    context.set("budget", budget);
    try {
      await next();
    } finally {
      budget.releaseBody();
    }
  };
}
