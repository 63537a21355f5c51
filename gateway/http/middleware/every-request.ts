/**
 * What every request passes on its way to a route: its URL must be whole, its API key tells who calls, it gets a budget
 * of memory, and a trace if it does work. Requests that fail inside are logged.
 */
import type { Context } from "hono";
import { DbError } from "../../../db/errors.ts";
import { ApiError } from "../../base/errors.ts";
import { type Log, placeOf } from "../../base/log.ts";
import type { Turns } from "../../base/turns.ts";
import { limits } from "../../config.ts";
import type { Tracer } from "../../telemetry/tracer.ts";
import { expiredError } from "../../tenant/api-keys.ts";
import type { Caller, CallerWatch } from "../../tenant/caller-watch.ts";
import type { Authenticator } from "../../tenant/principal.ts";
import { BodyMemory } from "../transport/body-memory.ts";
import type { AppEnv } from "../transport/context.ts";
import { RequestBudget } from "../transport/request-budget.ts";
import { type ConsoleDoor, sessionOf } from "./console-door.ts";
import { isWork } from "./request-log.ts";
import type { Step } from "./steps.ts";

/**
 * Bun gives the path alone where the Host header is no host, and the router would take the path's first segment for the
 * host: what is routed must be the path that was asked for.
 */
export const requireWholeUrl: Step = (context) => {
  const { url } = context.req;
  if (!/^https?:\/\//.test(url) || !URL.canParse(url)) {
    throw new ApiError("invalid_request", { message: "The Host header is not a host, or the path is not one." });
  }
  return undefined;
};

export const bodyMemory = (): BodyMemory =>
  new BodyMemory({
    totalBytes: limits.bodyMemoryBytes,
    tenantBytes: limits.bodyMemoryTenantBytes,
    reserveBytes: limits.bodyMemoryReserveBytes,
    tenantBodies: limits.bodiesPerTenant,
  });

/** Gives each request its budget. Runs after `authenticate`, since a body counts against its tenant's part of the memory. */
export function requestBudgets(memory: BodyMemory, turns: Turns): Step {
  return (context) => {
    const principal = context.get("principal");
    const budget = new RequestBudget(memory, principal?.tenantId ?? principal?.keyId ?? "", turns);
    context.set("budget", budget);
    return () => budget.releaseBody();
  };
}

/**
 * Finds out who calls, by the key in `authorization: Bearer` or `x-api-key`, else by the console's cookie.
 * @param callers looks after callers whose requests go on for long
 * @param door undefined: there is no console
 */
export function authenticate(authenticator: Authenticator, callers: CallerWatch, door?: ConsoleDoor): Step {
  return (context) => {
    const apiKey = apiKeyOf(context.req.header("authorization"), context.req.header("x-api-key"));
    // A line of a batch is run for the caller that the batch was made by.
    const batchCaller = context.env?.batch?.principal;
    const usable = batchCaller === undefined && apiKey !== undefined && apiKey.length <= limits.apiKeyChars;
    const found = usable ? authenticator.authenticate(apiKey) : batchCaller;
    const expired = found !== undefined && "expiredAt" in found;
    context.set("principal", expired ? undefined : found);
    const code = apiKey === undefined ? "missing_api_key" : "invalid_api_key";
    if (usable && found !== undefined && !expired) {
      watchBy(context, callers, { id: found.keyId, refusal: () => refusalOf(authenticator.authenticate(apiKey)) });
    }
    context.set("refusal", () => (expired ? expiredError(found) : new ApiError(code)));
    if (door !== undefined && apiKey === undefined && batchCaller === undefined)
      authenticateByCookie(context, callers, door);
    return undefined;
  };
}

const watchBy = (context: Context<AppEnv>, callers: CallerWatch, caller: Caller): void =>
  context.set("watchCaller", (onRefused) => callers.watch(caller, onRefused));

/** Why a key does not count any more that did when its request began. */
function refusalOf(found: ReturnType<Authenticator["authenticate"]>): ApiError | undefined {
  if (found === undefined) return new ApiError("invalid_api_key");
  return "expiredAt" in found ? expiredError(found) : undefined;
}

/** A cookie that does not count leaves the request without a caller: routes that need one say why. */
function authenticateByCookie(context: Context<AppEnv>, callers: CallerWatch, door: ConsoleDoor): void {
  try {
    const session = sessionOf(context, door);
    if (session === undefined) return;
    context.set("principal", session.principal);
    context.set("byCookie", true);
    const { token } = session;
    const refusal = () => (door.sessions.isOpen(token) ? undefined : new ApiError("session_ended"));
    watchBy(context, callers, { id: token, refusal });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    context.set("refusal", () => error);
  }
}

function apiKeyOf(authorization: string | undefined, xApiKey: string | undefined): string | undefined {
  if (authorization !== undefined) {
    const match = /^Bearer +([^\s]+) *$/i.exec(authorization);
    // A malformed header is a credential that is not valid, never "no credential".
    return match?.[1] ?? "";
  }
  return xApiKey;
}

/** Makes a trace for each request that does work. */
export function traceRequests(tracer: Tracer, knownMethod: (method: string) => string): Step {
  return (context) => {
    // Browsers ask with OPTIONS whether they may ask.
    if (!isWork(context.req.path) || context.req.method === "OPTIONS") return undefined;
    const requestId = context.get("requestId");
    const trace = tracer.begin(requestId, context.req.header("traceparent"));
    if (trace === undefined) return undefined;
    context.set("trace", trace);
    return () => {
      const { tenantId, keyId } = context.get("principal") ?? {};
      const { req, res } = context;
      trace.describe({
        requestId,
        tenantId,
        keyId,
        method: knownMethod(req.method),
        route: req.routePath,
        status: res.status,
      });
      trace.leave();
    };
  };
}

/** Tells the operator what kind of error it was and where it came from; its message is left out, since it may hold a tenant's text. */
export function logFailure(log: Log, error: ApiError, requestId: string): void {
  const { cause } = error;
  const kind = cause instanceof Error ? cause.name : undefined;
  log(error.code === "internal" ? "error" : "warn", "request failed", {
    requestId,
    code: error.code,
    kind,
    // A DbError's message names a statement and a code, never a value.
    reason: cause instanceof DbError ? cause.message : undefined,
    at: placeOf(cause),
  });
}
