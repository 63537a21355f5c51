/**
 * POST /mcp: the Model Context Protocol over streamable HTTP, without sessions: each message is a request of its own,
 * with the key, the limits and the body bounds that every route has. The protocol is the official SDK's part, which is
 * loaded with the first message: it would be a tenth of the server's start.
 */
import type { Context, Hono } from "hono";
import { z } from "zod";
import { ApiError } from "../../base/errors.ts";
import { limits } from "../../config.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, principalOf, tenantIdOf } from "../transport/context.ts";
import { shortString } from "../transport/fields.ts";
import { readQuery } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import type { ToolDeps } from "./tools.ts";

export interface McpDeps extends ToolDeps {
  /** Origins whose pages may call this server; "*": all. */
  readonly corsOrigins: readonly string[];
}

/** One message; the SDK checks the rest of it. Lists of messages are of an older revision, and would be many requests in one. */
const messageSchema = z.looseObject({ jsonrpc: z.literal("2.0"), method: shortString.optional() });

const querySchema = z.strictObject({
  vector_store_ids: z
    .string()
    .max(limits.vectorStoresPerSearch * 64)
    .transform((ids) => ids.split(","))
    .pipe(z.array(shortString.min(1)).min(1).max(limits.vectorStoresPerSearch))
    .optional()
    .describe("Ids with commas between: the vector stores that tools search which name none."),
});

/** What the route does, for /openapi.json. */
const about = {
  summary: "Tools for MCP clients, by streamable HTTP without sessions: search and ask.",
  query: querySchema,
  body: messageSchema,
  answerTypes: ["application/json", "text/event-stream"],
};

/**
 * Loading the library takes 115 ms of processor time and holds the event loop for 40 ms of them: not while a server
 * starts and its first requests come, nor in one that soon ends, nor under the first message of a client.
 */
const loadAfterMs = 10_000;

const load = () => Promise.all([import("@modelcontextprotocol/server"), import("./tools.ts")]);

export function addMcpRoutes(app: Hono<AppEnv>, { corsOrigins, ...deps }: McpDeps): void {
  // A failure is seen by the message that needs it.
  setTimeout(() => void load().catch(() => undefined), loadAfterMs).unref();
  declare(app, "POST /mcp", about, async (context) => {
    await requireOrigin(context, corsOrigins);
    const caller = {
      requestId: context.get("requestId"),
      tenantId: tenantIdOf(context),
      scopes: principalOf(context).scopes,
      signal: context.req.raw.signal,
      stores: readQuery(context, querySchema).vector_store_ids,
    };
    const parsedBody = await readJson(context, messageSchema, { maxBytes: limits.mcpBodyBytes });
    const [{ createMcpHandler }, { makeServer }] = await load();
    // Nothing here changes while a client is connected, so there is nothing to subscribe to.
    const handler = createMcpHandler(() => makeServer(deps, caller), { maxSubscriptions: 0, keepAliveMs: 0 });
    const answer = await handler.fetch(context.req.raw, { parsedBody });
    // The answer is whole before it is sent: the request holds its place in the caller's limits until then.
    const text = await answer.text();
    return new Response(text === "" ? null : text, { status: answer.status, headers: answer.headers });
  });
}

/**
 * A page that a browser shows may not call a server on the user's own machine through a name of the page's that leads
 * there (DNS rebinding): the specification asks every server to look at the origin. Clients that are no browsers send
 * none.
 * @throws ApiError origin_not_allowed
 */
async function requireOrigin(context: Context<AppEnv>, allowed: readonly string[]): Promise<void> {
  const origin = context.req.header("origin");
  if (origin === undefined || allowed.includes("*") || allowed.includes(origin)) return;
  const { localhostAllowedOrigins, validateOriginHeader } = await import("@modelcontextprotocol/server");
  if (!validateOriginHeader(origin, localhostAllowedOrigins()).ok) throw new ApiError("origin_not_allowed");
}
