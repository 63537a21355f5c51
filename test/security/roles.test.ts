/**
 * Every role against every route of the server as it is started. What each route takes is said here a second time,
 * so that a route whose scope is changed, and one that is new, fails until somebody has decided who may call it.
 */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { RouteDeclaration } from "../../gateway/http/transport/route.ts";
import { type Scope, scopes } from "../../gateway/tenant/principal.ts";
import { type FuzzWorld, openWorld, tenantScopes } from "../fuzz/world.ts";

setDefaultTimeout(120_000);

const platform = ["platform:admin"];
const observers = ["platform:admin", "platform:read"];
const administrators = ["platform:admin", "tenant:admin"];
const reader = ["corpus:read"];
const writer = ["corpus:write"];
const preparer = ["corpus:prepare"];
const owner = ["tenant:admin"];
const inference = ["inference"];
const anyone: readonly string[] = [];

const expected: Readonly<Record<string, readonly string[]>> = {
  "POST /admin/v1/tenants": platform,
  "GET /admin/v1/tenants": platform,
  "GET /admin/v1/tenants/:tenant_id": administrators,
  "PATCH /admin/v1/tenants/:tenant_id": platform,
  "DELETE /admin/v1/tenants/:tenant_id": platform,
  "POST /admin/v1/tenants/:tenant_id/salt/rotate": administrators,
  "DELETE /admin/v1/tenants/:tenant_id/cache": administrators,
  "POST /admin/v1/tenants/:tenant_id/keys": administrators,
  "GET /admin/v1/tenants/:tenant_id/keys": administrators,
  "DELETE /admin/v1/keys/:key_id": administrators,
  "GET /admin/v1/tenants/:tenant_id/limits": administrators,
  "PUT /admin/v1/tenants/:tenant_id/limits": platform,
  "GET /admin/v1/keys/:key_id/limits": administrators,
  "PUT /admin/v1/keys/:key_id/limits": administrators,
  "GET /admin/v1/audit": [...observers, "tenant:admin"],
  "GET /admin/v1/usage": [...observers, "tenant:admin"],
  "GET /admin/v1/cache": [...observers, "tenant:admin"],
  "GET /admin/v1/cache/events": [...observers, "tenant:admin"],
  "GET /admin/v1/kv-events": observers,
  "GET /admin/v1/traces": ["inference", "tenant:admin", ...observers],
  "GET /admin/v1/traces/:request_id": ["inference", "tenant:admin", ...observers],
  "GET /admin/v1/stats": ["inference", "tenant:admin", ...observers],
  "GET /admin/v1/workers": observers,
  "GET /metrics": observers,
  "POST /v1/files": writer,
  "GET /v1/files": reader,
  "GET /v1/files/:file_id": reader,
  "DELETE /v1/files/:file_id": writer,
  "GET /v1/files/:file_id/content": reader,
  "POST /v1/uploads": writer,
  "POST /v1/uploads/:upload_id/parts": writer,
  "POST /v1/uploads/:upload_id/complete": writer,
  "POST /v1/uploads/:upload_id/cancel": writer,
  "POST /v1/vector_stores": writer,
  "GET /v1/vector_stores": reader,
  "GET /v1/vector_stores/:vector_store_id": reader,
  "POST /v1/vector_stores/:vector_store_id": writer,
  "DELETE /v1/vector_stores/:vector_store_id": writer,
  "POST /v1/vector_stores/:vector_store_id/search": reader,
  "POST /admin/v1/vector_stores/:vector_store_id/salt/rotate": administrators,
  "POST /admin/v1/vector_stores/:vector_store_id/grants": owner,
  "GET /admin/v1/vector_stores/:vector_store_id/grants": owner,
  "DELETE /admin/v1/vector_stores/:vector_store_id/grants/:tenant_id": owner,
  "POST /v1/vector_stores/:vector_store_id/files": writer,
  "GET /v1/vector_stores/:vector_store_id/files": reader,
  "GET /v1/vector_stores/:vector_store_id/files/:file_id": reader,
  "POST /v1/vector_stores/:vector_store_id/files/:file_id": writer,
  "DELETE /v1/vector_stores/:vector_store_id/files/:file_id": writer,
  "GET /v1/vector_stores/:vector_store_id/files/:file_id/content": reader,
  "POST /v1/vector_stores/:vector_store_id/file_batches": writer,
  "GET /v1/vector_stores/:vector_store_id/file_batches/:batch_id": reader,
  "POST /v1/vector_stores/:vector_store_id/file_batches/:batch_id/cancel": writer,
  "GET /v1/vector_stores/:vector_store_id/file_batches/:batch_id/files": reader,
  "POST /admin/v1/vector_stores/:vector_store_id/prepare": preparer,
  "GET /admin/v1/jobs/:job_id": preparer,
  "GET /admin/v1/jobs/:job_id/events": preparer,
  "POST /admin/v1/jobs/:job_id/cancel": preparer,
  "POST /admin/v1/vector_stores/:vector_store_id/sources": writer,
  "GET /admin/v1/vector_stores/:vector_store_id/sources": reader,
  "GET /admin/v1/sources/:source_id": reader,
  "POST /admin/v1/sources/:source_id/run": writer,
  "DELETE /admin/v1/sources/:source_id": writer,
  "GET /admin/v1/vector_stores/:vector_store_id/fragments": reader,
  "POST /admin/v1/fragments/:fragment_id/pin": preparer,
  "POST /admin/v1/fragments/:fragment_id/unpin": preparer,
  "POST /admin/v1/fragments/:fragment_id/evict": preparer,
  "POST /v1/chat/completions": inference,
  "POST /v1/completions": inference,
  "POST /v1/messages": inference,
  "POST /v1/messages/count_tokens": inference,
  "POST /v1/responses": inference,
  "POST /v1/responses/input_tokens": inference,
  "GET /v1/responses/:response_id": inference,
  "DELETE /v1/responses/:response_id": inference,
  "POST /v1/responses/:response_id/cancel": inference,
  "GET /v1/responses/:response_id/input_items": inference,
  "POST /v1/embeddings": inference,
  "POST /v1/rerank": inference,
  "POST /mcp": ["inference", "corpus:read"],
  "POST /tokenize": inference,
  "POST /detokenize": inference,
  "POST /v1/query/execute": inference,
  "POST /v1/query/prepare": ["inference", "corpus:prepare"],
  "POST /v1/query/explain": inference,
  "POST /v1/batches": inference,
  "GET /v1/batches": inference,
  "GET /v1/batches/:request_batch_id": inference,
  "POST /v1/batches/:request_batch_id/cancel": inference,
  "POST /v1/messages/batches": inference,
  "GET /v1/messages/batches": inference,
  "GET /v1/messages/batches/:message_batch_id": inference,
  "DELETE /v1/messages/batches/:message_batch_id": inference,
  "POST /v1/messages/batches/:message_batch_id/cancel": inference,
  "GET /v1/messages/batches/:message_batch_id/results": inference,
  "POST /v1/query/bulk": inference,
  "GET /v1/query/bulk/:bulk_id": inference,
  "GET /v1/query/bulk/:bulk_id/results/:result_id": inference,
  "GET /v1/models": scopes,
  "GET /v1/models/:id": scopes,
  "GET /": anyone,
  "GET /console/:asset": anyone,
  "POST /admin/v1/session": anyone,
  "GET /admin/v1/session": scopes,
  "DELETE /admin/v1/session": scopes,
  "GET /health": anyone,
  "GET /ready": anyone,
  "GET /openapi.json": anyone,
  "GET /docs": anyone,
  "GET /docs/search": anyone,
  "GET /docs/style.css": anyone,
  "GET /docs/pictures/:picture": anyone,
  "GET /docs/api/:resource": anyone,
  "GET /docs/:page": anyone,
};

const labelOf = ({ method, path }: RouteDeclaration): string => `${method} ${path}`;
/** Ids of no object: the answer is about the caller alone. */
const pathOf = ({ path }: RouteDeclaration): string => path.replace(/:\w+/g, "nobody");

let world: FuzzWorld;
beforeAll(async () => {
  world = await openWorld();
});
afterAll(async () => await world[Symbol.asyncDispose]());

const statusOf = async (key: string | undefined, method: string, path: string): Promise<number> => {
  const response = await world.call(key, method, path, method === "GET" || method === "HEAD" ? undefined : "{");
  // Some are streams without an end.
  await response.body?.cancel();
  return response.status;
};

test("every route is expected, with the scopes that it has, and every expected route is there", () => {
  const actual = world.routes.map((route) => {
    const taken: readonly string[] =
      route.scope === "public" ? [] : typeof route.scope === "string" ? [route.scope] : route.scope;
    return [labelOf(route), [...taken].sort()] as const;
  });
  const wanted = Object.entries(expected).map(([label, taken]) => [label, [...taken].sort()] as const);
  expect(Object.fromEntries(actual)).toEqual(Object.fromEntries(wanted));
});

describe("every role on every route", () => {
  test("a scope that the route does not take is refused before anything is looked at", async () => {
    for (const scope of scopes) {
      const key = await world.mint(world.caller.id, [scope]);
      for (const route of world.routes) {
        const taken = expected[labelOf(route)] ?? [];
        const status = await statusOf(key, route.method, pathOf(route));
        const refused = taken.length > 0 && !taken.includes(scope);
        expect([scope, labelOf(route), status === 403]).toEqual([scope, labelOf(route), refused]);
      }
    }
  });

  test("all scopes but the one that the route takes are as little", async () => {
    for (const scope of scopes) {
      const key = await world.mint(
        world.caller.id,
        scopes.filter((other) => other !== scope),
      );
      for (const route of world.routes.filter(({ scope: taken }) => taken === scope)) {
        const status = await statusOf(key, route.method, pathOf(route));
        expect([labelOf(route), status]).toEqual([labelOf(route), 403]);
      }
    }
  });

  test("no key, a wrong one, a revoked one, and one of a tenant that is disabled or gone: 401", async () => {
    const made = async (name: string) => {
      const { id } = await world.tenant(name);
      return { id, key: await world.mint(id, tenantScopes) };
    };
    const [disabled, gone] = [await made("disabled"), await made("gone")];
    await world.call(world.adminKey, "PATCH", `/admin/v1/tenants/${disabled.id}`, { status: "disabled" });
    await world.call(world.adminKey, "DELETE", `/admin/v1/tenants/${gone.id}`);
    const answer = await world.call(world.adminKey, "POST", `/admin/v1/tenants/${world.caller.id}/keys`, {
      scopes: tenantScopes,
    });
    const revoked = (await answer.json()) as { id: string; key: string };
    await world.call(world.adminKey, "DELETE", `/admin/v1/keys/${revoked.id}`);
    const keys = [undefined, "sk-wrong", "", revoked.key, disabled.key, gone.key, `${world.adminKey}x`];
    for (const key of keys) {
      for (const route of world.routes.filter(({ scope }) => scope !== "public")) {
        const label = [key?.slice(0, 8), labelOf(route)];
        expect([...label, await statusOf(key, route.method, pathOf(route))]).toEqual([...label, 401]);
      }
    }
  });

  test("no other method and no other spelling of a path is a way around", async () => {
    const variants = (path: string): readonly string[] => [
      ...[
        `/${path}`,
        `${path}/`,
        path.toUpperCase(),
        path.replace("v1", "v1/."),
        `${path}%00`,
        `${path};x`,
        `${path}%2f`,
      ],
      ...[
        `/${path.slice(1).replaceAll("/", "%2f")}`,
        `/health/..${path}`,
        `/health/%2e%2e${path}`,
        `${path}?key=${world.adminKey}`,
      ],
    ];
    for (const route of world.routes.filter(({ scope }) => scope !== "public")) {
      for (const path of [pathOf(route), ...variants(pathOf(route))]) {
        for (const method of [route.method, "HEAD", "OPTIONS"]) {
          const status = await statusOf(undefined, method, path);
          // A wrong method is told which ones the path takes, which /openapi.json says as well.
          const closed = [401, 404, 405].includes(status) || (status === 204 && method === "OPTIONS");
          expect([method, path, closed]).toEqual([method, path, true]);
        }
      }
    }
  });
});

describe("keys that make keys", () => {
  const mintedBy = async (key: string, tenantId: string, wanted: readonly string[]): Promise<number> =>
    (await world.call(key, "POST", `/admin/v1/tenants/${tenantId}/keys`, { scopes: wanted })).status;

  test("give what they hold, to their own tenant, and nothing else", async () => {
    const tenants = [world.caller.id, (await world.tenant("other")).id];
    const others = scopes.filter((scope) => scope !== "tenant:admin");
    // Every set of scopes that a tenant's administrator may hold.
    for (let bits = 0; bits < 2 ** others.length; bits++) {
      const held: readonly Scope[] = ["tenant:admin", ...others.filter((_, index) => (bits >> index) % 2 === 1)];
      const key = await world.mint(world.caller.id, held);
      for (const wanted of scopes) {
        const status = await mintedBy(key, world.caller.id, [wanted]);
        // Who administers the platform may let it be read.
        const gives = held.includes(wanted) || (wanted === "platform:read" && held.includes("platform:admin"));
        expect([held, wanted, status]).toEqual([held, wanted, gives ? 201 : 403]);
        expect(await mintedBy(key, world.caller.id, ["tenant:admin", wanted])).toBe(status);
      }
      const elsewhere = held.includes("platform:admin") ? 201 : 404;
      expect([held, await mintedBy(key, tenants[1] ?? "", ["tenant:admin"])]).toEqual([held, elsewhere]);
    }
  });

  test("a scope that does not exist, or is spelled otherwise, is refused", async () => {
    for (const wanted of [
      "*",
      "/*",
      "admin",
      "PLATFORM:ADMIN",
      "platform:admin ",
      "platform:admin\u0000",
      "",
      "__proto__",
    ]) {
      expect([wanted, await mintedBy(world.adminKey, world.caller.id, [wanted])]).toEqual([wanted, 400]);
    }
  });
});
