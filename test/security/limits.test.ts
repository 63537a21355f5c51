/** A tenant's limits hold on every route of the server as it is started, whatever is asked for. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { type Caller, type FuzzWorld, openWorld } from "../fuzz/world.ts";

setDefaultTimeout(120_000);

let world: FuzzWorld;
beforeAll(async () => {
  world = await openWorld();
});
afterAll(async () => await world[Symbol.asyncDispose]());

const setLimits = async (caller: Caller, limits: object): Promise<void> => {
  const answer = await world.call(world.adminKey, "PUT", `/admin/v1/tenants/${caller.id}/limits`, limits);
  expect(answer.status).toBe(200);
};

test("every route counts as what it is", () => {
  const named = (count: string) =>
    world.routes.filter((route) => route.count === count).map(({ method, path }) => `${method} ${path}`);
  expect(named("look").sort()).toEqual([
    "GET /admin/v1/cache",
    "GET /admin/v1/cache/events",
    "GET /admin/v1/jobs/:job_id",
    "GET /admin/v1/jobs/:job_id/events",
    "GET /admin/v1/keys/:key_id/limits",
    "GET /admin/v1/sources/:source_id",
    "GET /admin/v1/stats",
    "GET /admin/v1/tenants/:tenant_id",
    "GET /admin/v1/tenants/:tenant_id/limits",
    "GET /admin/v1/traces",
    "GET /admin/v1/traces/:request_id",
    "GET /v1/batches/:request_batch_id",
    "GET /v1/files/:file_id",
    "GET /v1/messages/batches/:message_batch_id",
    "GET /v1/models",
    "GET /v1/models/:id",
    "GET /v1/query/bulk/:bulk_id",
    "GET /v1/query/bulk/:bulk_id/results/:result_id",
    "GET /v1/responses/:response_id",
    "GET /v1/vector_stores/:vector_store_id",
    "GET /v1/vector_stores/:vector_store_id/file_batches/:batch_id",
    "GET /v1/vector_stores/:vector_store_id/files/:file_id",
  ]);
  // Signing in has limits of its own (failures of an address, sessions of a key), and who one is takes nothing.
  for (const route of named("free"))
    expect(route).toMatch(
      /^DELETE |\/cancel$|^(?:GET|POST) \/admin\/v1\/session$|^GET \/(?:health|ready|docs.*|openapi\.json|console\/:asset)?$/,
    );
  const rest = world.routes.filter(({ count }) => count === "request");
  expect(rest.length).toBe(world.routes.length - named("look").length - named("free").length);
});

test.each(["search", "fragments", "prepare", "files", "store", "pin"])("%s: two a minute are two", async (what) => {
  const caller = await world.tenant(`hungry ${what}`);
  const ids = await world.objectsOf(caller);
  const store = ids.vector_store_id ?? "";
  const asks: Readonly<Record<string, readonly [string, string, unknown?]>> = {
    search: ["POST", `/v1/vector_stores/${store}/search`, { query: "amber" }],
    fragments: ["GET", `/admin/v1/vector_stores/${store}/fragments`],
    prepare: ["POST", `/admin/v1/vector_stores/${store}/prepare`],
    files: ["GET", "/v1/files?limit=1"],
    store: ["POST", "/v1/vector_stores", { name: "s" }],
    pin: ["POST", `/admin/v1/fragments/${ids.fragment_id}/pin`],
  };
  const [method, path, body] = asks[what] ?? ["GET", "/health"];
  await setLimits(caller, { requests_per_minute: 2 });
  const statuses: number[] = [];
  for (let round = 0; round < 40; round++) {
    const answer = await world.call(caller.apiKey, method, path, body);
    statuses.push(answer.status);
    await answer.text();
  }
  // One more comes back every 30 s.
  expect(statuses.filter((status) => status !== 429).length).toBeWithin(2, 5);
  const looks = Array.from({ length: 100 }, () => world.call(caller.apiKey, "GET", `/v1/vector_stores/${store}`));
  for (const answer of await Promise.all(looks)) expect(answer.status).toBe(200);
  expect((await world.call(caller.apiKey, "DELETE", `/v1/vector_stores/${store}`)).status).toBe(200);
});

test("a search's tokens are its tenant's: vectors of questions count", async () => {
  const caller = await world.tenant("thinker");
  const { vector_store_id: store = "" } = await world.objectsOf(caller);
  await setLimits(caller, { tokens_per_minute: 100 });
  const weights = { embedding_weight: 1, text_weight: 1 };
  const search = (query: string) =>
    world.call(caller.apiKey, "POST", `/v1/vector_stores/${store}/search`, {
      query,
      ranking_options: { hybrid_search: weights },
    });
  const first = await search("amber birch cedar ".repeat(200));
  expect([first.status, await first.text()]).toEqual([200, expect.any(String)]);
  expect(first.headers.get("x-ratelimit-remaining-tokens")).toBe("0");
  const refused = await search("amber");
  expect(refused.status).toBe(429);
  expect(await refused.json()).toMatchObject({ error: { code: "rate_limited" } });
});
