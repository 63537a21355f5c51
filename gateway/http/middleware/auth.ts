/** Credentials of a request: who calls. */
import type { MiddlewareHandler } from "hono";
import type { Authenticator } from "../../base/principal.ts";
import { limits } from "../../config.ts";
import type { AppEnv } from "../transport/context.ts";

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

function apiKeyOf(authorization: string | undefined, xApiKey: string | undefined): string | undefined {
  if (authorization !== undefined) {
    const match = /^Bearer +([^\s]+) *$/i.exec(authorization);
    // A malformed header is a credential that is not valid, never "no credential".
    return match?.[1] ?? "";
  }
  return xApiKey;
}
