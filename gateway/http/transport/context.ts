/** Credentials of a request: who calls, and for which tenant. */
import type { Context, MiddlewareHandler } from "hono";
import { ApiError } from "../../base/errors.ts";
import type { Authenticator, BatchCaller, Principal } from "../../base/principal.ts";
import { limits } from "../../config.ts";
import type { Held } from "../middleware/rate-limits.ts";
import type { RequestBudget } from "./request-budget.ts";

/** Makes a change and writes it down with the ids that are known then. */
type AuditLogWriter = <Result>(
  change: () => Result,
  made: (result: Result) => Readonly<Record<string, string>>,
) => Result;

/** What middleware leaves on the context for handlers. */
export interface AppEnv {
  Bindings: {
    /** Lifts the socket's idle time-out until the answer is there. Absent in tests without a socket, as the next. */
    keepOpen?: () => void;
    /** The answer is a stream: lifts the time-out until what this gives is called. */
    holdStream?: () => () => void;
    /** A line of a batch. Nobody outside can set it. */
    batch?: BatchCaller;
  };
  Variables: {
    /** Ours, on every answer as `x-request-id`. */
    requestId: string;
    /** undefined: no key, or not a valid one. A declared route's handler only sees it when its scope is met. */
    principal: Principal | undefined;
    apiKeyGiven: boolean;
    /** undefined: the server has no limits for callers. */
    held: Held | undefined;
    /** What the request may take of the server. */
    budget: RequestBudget;
    /** See `changed`; undefined: changes are not written down. */
    audited: AuditLogWriter | undefined;
  };
}

export function authenticate(authenticator: Authenticator): MiddlewareHandler<AppEnv> {
  return async (context, next) => {
    const apiKey = apiKeyOf(context.req.header("authorization"), context.req.header("x-api-key"));
    const within = context.env?.batch?.principal;
    context.set("apiKeyGiven", apiKey !== undefined || within !== undefined);
    const usable = apiKey !== undefined && apiKey.length <= limits.apiKeyChars;
    context.set("principal", within ?? (usable ? authenticator.authenticate(apiKey) : undefined));
    await next();
  };
}

/** The caller; for handlers of routes that are not public. */
export function principalOf(context: Context<AppEnv>): Principal {
  const principal = context.get("principal");
  if (principal === undefined) throw new ApiError("missing_api_key");
  return principal;
}

/** The caller's tenant; 403 `no_tenant` for a platform key. */
export function tenantIdOf(context: Context<AppEnv>): string {
  const { tenantId } = principalOf(context);
  if (tenantId === undefined) throw new ApiError("no_tenant");
  return tenantId;
}

function apiKeyOf(authorization: string | undefined, xApiKey: string | undefined): string | undefined {
  if (authorization !== undefined) {
    const match = /^Bearer +([^\s]+) *$/i.exec(authorization);
    // A malformed header is a credential that is not valid, never "no credential".
    return match?.[1] ?? "";
  }
  return xApiKey;
}
