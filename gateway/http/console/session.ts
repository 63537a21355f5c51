/** /admin/v1/session: signing in to the console with an API key, who is signed in, and signing out. */
import type { Context, Hono } from "hono";
import { deleteCookie, setCookie } from "hono/cookie";
import { z } from "zod";
import { type ApiKeyId, parseId } from "../../../db/ids.ts";
import { ApiError } from "../../base/errors.ts";
import { limits } from "../../config.ts";
import { expiredError } from "../../tenant/api-keys.ts";
import { type Authenticator, type Principal, scopes } from "../../tenant/principal.ts";
import type { SignInFailures } from "../../tenant/sign-in-failures.ts";
import type { TenantService } from "../../tenant/tenants.ts";
import { changed } from "../middleware/audit.ts";
import { type ConsoleDoor, consoleAddress, requireConsole, sessionOf } from "../middleware/console-door.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, principalOf } from "../transport/context.ts";
import { seconds } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";

const signInSchema = z.strictObject({
  api_key: z.string().min(1).max(limits.apiKeyChars).optional().describe("The key that the session stands for."),
  link: z
    .string()
    .min(1)
    .max(64)
    .optional()
    .describe("In place of a key: the token of the link that `serve --dev` prints, which signs in once."),
});

/** The longest key, escaped in JSON, and the braces around it. */
const signInBytes = 4_096;

const sessionAnswer = z.strictObject({
  object: z.literal("session"),
  key_id: z.string().describe("The API key that the caller is known by."),
  tenant_id: z.string().nullable().describe("The key's tenant; null for a key of the platform."),
  tenant_name: z.string().nullable().describe("The tenant's name; null for a key of the platform."),
  scopes: z.array(z.enum(scopes)).describe("What the key may do."),
  expires_at: z.int().nullable().describe("When the session ends at the latest, Unix time in seconds; null for a key."),
});

/** What the routes do, for /openapi.json. */
const about = {
  begin: {
    summary:
      "Signs the console in: sets a cookie that stands for the API key. It counts for the console's own requests alone; other clients send the key.",
    body: signInSchema,
    answer: sessionAnswer,
    status: 201,
  },
  get: { summary: "Who the caller is: its key, tenant and scopes.", answer: sessionAnswer },
  end: {
    summary: "Signs the console out.",
    answer: z.strictObject({ object: z.literal("session.deleted"), deleted: z.literal(true) }),
  },
};

export interface SessionRouteDeps {
  readonly door: ConsoleDoor;
  readonly failures: SignInFailures;
  readonly tenants: Pick<TenantService, "get"> & { readonly apiKeys: Authenticator };
}

export function addSessionRoutes(app: Hono<AppEnv>, deps: SessionRouteDeps): void {
  const { door, tenants } = deps;
  const body = ({ keyId, tenantId, scopes: granted }: Principal, endsAtMs: number | undefined) => ({
    object: "session",
    key_id: keyId,
    tenant_id: tenantId ?? null,
    tenant_name: tenantId === undefined ? null : tenants.get(tenantId).name,
    scopes: scopes.filter((scope) => granted.has(scope)),
    expires_at: endsAtMs === undefined ? null : seconds(endsAtMs),
  });

  declare(app, "POST /admin/v1/session", about.begin, async (c) => {
    const given = await readJson(c, signInSchema, { maxBytes: signInBytes });
    const { cookieName, secure } = requireConsole(c, door.publicUrl);
    const address = addressOf(c, secure);
    deps.failures.check(address);
    const principal = signIn(deps, given, address);
    const keyId = requireKeyId(principal);
    c.set("principal", principal);
    const { token, endsAtMs } = changed(
      c,
      () => door.sessions.begin(keyId),
      () => ({ id: keyId }),
    );
    setCookie(c, cookieName, token, { httpOnly: true, sameSite: "Strict", path: "/", secure });
    c.header("cache-control", "no-store");
    return c.json(body(principal, endsAtMs), 201);
  });

  declare(app, "GET /admin/v1/session", about.get, (c) => {
    c.header("cache-control", "no-store");
    const principal = principalOf(c);
    return c.json(body(principal, c.get("byCookie") ? sessionOf(c, door)?.endsAtMs : undefined));
  });

  declare(app, "DELETE /admin/v1/session", about.end, (c) => {
    const token = c.get("byCookie") ? sessionOf(c, door)?.token : undefined;
    const end = (): void => {
      if (token !== undefined) door.sessions.end(token);
    };
    changed(c, end, () => ({ id: principalOf(c).keyId }));
    const address = consoleAddress(c, door.publicUrl);
    if (address !== undefined) deleteCookie(c, address.cookieName, { path: "/", secure: address.secure });
    return c.json({ object: "session.deleted", deleted: true });
  });
}

/** @throws ApiError invalid_api_key and the like, which count as failures of the caller's address */
function signIn(deps: SessionRouteDeps, given: z.infer<typeof signInSchema>, address: string): Principal {
  const { api_key: apiKey, link } = given;
  if ((apiKey === undefined) === (link === undefined)) {
    throw new ApiError("missing_field", { param: "api_key", message: "Give an 'api_key', or a 'link'." });
  }
  const found =
    link === undefined ? deps.tenants.apiKeys.authenticate(apiKey ?? "") : deps.door.sessions.takeLink(link);
  if (found !== undefined && !("expiredAt" in found)) return found;
  deps.failures.note(address);
  if (found !== undefined) throw expiredError(found);
  if (link === undefined) throw new ApiError("invalid_api_key", { param: "api_key" });
  throw new ApiError("invalid_api_key", { param: "link", message: "This link has signed in before, or never did." });
}

function requireKeyId({ keyId }: Principal): ApiKeyId {
  const id = parseId("apiKey", keyId);
  if (id === undefined) throw new ApiError("invalid_api_key");
  return id;
}

/** Whose failures are counted: the socket's address; behind the proxy that has the TLS, the one that it names last. */
function addressOf(c: Context<AppEnv>, isProxied: boolean): string {
  const named = isProxied ? c.req.header("x-forwarded-for")?.split(",").at(-1)?.trim().slice(0, 64) : undefined;
  return named ?? c.env?.address?.() ?? "";
}
