/** What a request carries to its handler: who calls, for which tenant, and what it may take of the server. */
import type { Context } from "hono";
import type { TenantId } from "../../../db/ids.ts";
import { ApiError } from "../../base/errors.ts";
import type { Hold } from "../../base/hold.ts";
import type { BatchCaller, Principal } from "../../tenant/principal.ts";
import type { RequestBudget } from "./request-budget.ts";
import type { RouteCount } from "./routes.ts";

/** Makes a change and writes it to the audit log with the ids that are known after it. */
type AuditLogWriter = <Result>(
  change: () => Result,
  made: (result: Result) => Readonly<Record<string, string>>,
) => Result;

/** What the request holds of its caller's limits. */
export interface Held {
  /** @throws ApiError rate_limited, concurrency_limited */
  admit(principal: Principal, count: Exclude<RouteCount, "free">): void;
  /** Keeps the request's place after its handler has returned, until the function that it returns is called. */
  holdOpen(): () => void;
  /** Calls back with the tokens that the request used, once it has ended; with undefined where none are counted. */
  whenEnded(callback: (tokens: number | undefined) => void): void;
}

/** What middleware leaves on the context for handlers. */
export interface AppEnv {
  Bindings: {
    /** Lifts the socket's idle time-out until the answer is there. Absent in tests without a socket, as the next. */
    keepOpen?: () => void;
    /** For streams: lifts the time-out until the function that it returns is called. */
    holdStream?: () => () => void;
    /** The peer's address. */
    address?: () => string;
    /** Set when the request is a line of a batch. Nobody outside can set it. */
    batch?: BatchCaller;
  };
  Variables: {
    /** The server's own id of the request, on every answer as `x-request-id`. */
    requestId: string;
    /** undefined: no key, or not a valid one. A declared route's handler runs only when the key has the scope. */
    principal: Principal | undefined;
    /** The principal is known by the console's cookie. */
    byCookie: boolean | undefined;
    /** Calls back when the caller does not count any more, until the hold ends. undefined: nobody is known to call. */
    watchCaller: ((onRefused: (error: ApiError) => void) => Hold) | undefined;
    /** Why there is no principal: a key that was not given, is not valid, or has expired. */
    refusal: () => ApiError;
    /** undefined: the server has no limits for callers. */
    held: Held | undefined;
    /** What the request may take of the server. */
    budget: RequestBudget;
    /** Unknown fields of a body are errors. */
    strict: boolean;
    /** Fields of the body that were left out, for the answer's header. */
    ignored: readonly string[] | undefined;
    /** Lets the request's trace last from `enter` to `release`. undefined: it has none. */
    trace: { enter(): void; release(): void } | undefined;
    /** Used by `changed`; undefined: there is no audit log. */
    audited: AuditLogWriter | undefined;
  };
}

/** The caller; for handlers of routes that are not public. */
export function principalOf(context: Context<AppEnv>): Principal {
  const principal = context.get("principal");
  if (principal === undefined) throw new ApiError("missing_api_key");
  return principal;
}

/** The caller's tenant; 403 `no_tenant` for a platform key. */
export function tenantIdOf(context: Context<AppEnv>): TenantId {
  const { tenantId } = principalOf(context);
  if (tenantId === undefined) throw new ApiError("no_tenant");
  return tenantId;
}
