/** Batches, tenants, keys, grants, limits and what operators look at. */

import { jsonCase, plainCase, type StallCase } from "./case.ts";
import { batchLines } from "./corpus-cases.ts";
import { prose, times } from "./texts.ts";
import { type StallWorld, tenantOfStores, upload } from "./world.ts";

const platform = { as: "platform" } as const;
const tenants = "/admin/v1/tenants";
const tenant = `${tenants}/{tenant_id}`;
const grants = "/admin/v1/vector_stores/{vector_store_id}/grants";
const emptyStores = 1_000;

const json = (body: unknown) => ({ body: JSON.stringify(body), contentType: "application/json" });

/** A running batch of 2,000 lines. @returns its id */
async function batchOf({ hostile, model }: StallWorld): Promise<string> {
  const fileId = await upload(hostile.client, batchLines(model, 2_000), `${crypto.randomUUID()}.jsonl`, "batch");
  const body = { input_file_id: fileId, endpoint: "/v1/completions", completion_window: "24h" };
  return (await hostile.client.json<{ id: string }>("POST", "/v1/batches", body)).id;
}

const messageRequests = (model: string, count: number, chars: number) =>
  times(count, (at) => ({
    custom_id: `${at}`,
    params: { model, max_tokens: 1, messages: [{ role: "user", content: prose(chars, at) }] },
  }));

/** One that has ended. @returns its id */
async function messageBatch({ hostile, model }: StallWorld): Promise<string> {
  const path = "/v1/messages/batches";
  const { id } = await hostile.client.json<{ id: string }>("POST", path, { requests: messageRequests(model, 20, 60) });
  for (;;) {
    const { ended_at: endedAt } = await hostile.client.json<{ ended_at: string | null }>("GET", `${path}/${id}`);
    if (endedAt !== null) return id;
    await Bun.sleep(50);
  }
}

function madeCase(
  route: string,
  name: string,
  make: (world: StallWorld) => Promise<string>,
  more: Pick<StallCase, "as" | "afterMs"> & { readonly body?: object } = {},
): StallCase {
  const [method = ""] = route.split(" ");
  const { body, ...rest } = more;
  return {
    route,
    name,
    ...rest,
    make: async (world) => ({ method, path: await make(world), ...(body === undefined ? {} : json(body)) }),
  };
}

const batchCases: readonly StallCase[] = [
  {
    route: "POST /v1/batches",
    name: "10,000 lines",
    afterMs: 5_000,
    make: async ({ hostile, model }) => {
      const fileId = await upload(hostile.client, batchLines(model, 10_000), `${crypto.randomUUID()}.jsonl`, "batch");
      const body = { input_file_id: fileId, endpoint: "/v1/completions", completion_window: "24h" };
      return { method: "POST", path: "/v1/batches", ...json(body) };
    },
  },
  plainCase("GET /v1/batches", "100 of them", "?limit=100"),
  madeCase(
    "GET /v1/batches/{request_batch_id}",
    "one that runs",
    async (world) => `/v1/batches/${await batchOf(world)}`,
  ),
  madeCase(
    "POST /v1/batches/{request_batch_id}/cancel",
    "one that runs",
    async (world) => `/v1/batches/${await batchOf(world)}/cancel`,
    { body: {}, afterMs: 1_000 },
  ),
  jsonCase(
    "POST /v1/messages/batches",
    "10,000 messages in 30 MB",
    ({ model }) => ({ requests: messageRequests(model, 10_000, 2_900) }),
    { afterMs: 5_000 },
  ),
  plainCase("GET /v1/messages/batches", "1,000 of them", "?limit=1000"),
  madeCase(
    "GET /v1/messages/batches/{message_batch_id}",
    "one",
    async (world) => `/v1/messages/batches/${await messageBatch(world)}`,
  ),
  madeCase(
    "GET /v1/messages/batches/{message_batch_id}/results",
    "of one",
    async (world) => `/v1/messages/batches/${await messageBatch(world)}/results`,
  ),
  madeCase(
    "POST /v1/messages/batches/{message_batch_id}/cancel",
    "an ended one",
    async (world) => `/v1/messages/batches/${await messageBatch(world)}/cancel`,
    { body: {} },
  ),
  madeCase(
    "DELETE /v1/messages/batches/{message_batch_id}",
    "one",
    async (world) => `/v1/messages/batches/${await messageBatch(world)}`,
  ),
];

const tenantCases: readonly StallCase[] = [
  jsonCase(`POST ${tenants}`, "one", () => ({ name: "n".repeat(256) }), platform),
  plainCase(`GET ${tenants}`, "100 of them", "?limit=100", platform),
  plainCase(`GET ${tenant}`, "one", "", platform),
  jsonCase(`PATCH ${tenant}`, "its name", () => ({ name: "m".repeat(256) }), platform),
  madeCase(
    `DELETE ${tenant}`,
    `of ${emptyStores} empty vector stores`,
    async ({ server }) => `${tenants}/${await tenantOfStores(server, emptyStores)}`,
    { ...platform, afterMs: 3_000 },
  ),
  jsonCase(`POST ${tenant}/salt/rotate`, "over all its KV", () => ({}), { afterMs: 1_000 }),
  plainCase(`DELETE ${tenant}/cache`, "all its KV", "", { afterMs: 1_000 }),
  jsonCase(`POST ${tenant}/keys`, "one that ends", () => ({
    scopes: ["inference"],
    name: "n".repeat(256),
    expires_in_seconds: 86_400,
  })),
  plainCase(`GET ${tenant}/keys`, "100 of them", "?limit=100"),
  madeCase("DELETE /admin/v1/keys/{key_id}", "one", async ({ hostile }) => {
    const { id } = await hostile.client.json<{ id: string }>("POST", `${tenants}/${hostile.id}/keys`, {
      scopes: ["inference"],
    });
    return `/admin/v1/keys/${id}`;
  }),
  plainCase(`GET ${tenant}/limits`, "its own"),
  madeCase(`PUT ${tenant}/limits`, "another's", async ({ ids }) => `${tenants}/${ids.spare_tenant_id}/limits`, {
    ...platform,
    body: { concurrency: 100, tokens_per_day: 1_000_000_000, tokens_per_month: 1_000_000_000 },
  }),
  plainCase("GET /admin/v1/keys/{key_id}/limits", "one"),
  jsonCase("PUT /admin/v1/keys/{key_id}/limits", "one", () => ({ concurrency: 100 })),
  madeCase(`POST ${grants}`, "one", async ({ ids }) => `/admin/v1/vector_stores/${ids.vector_store_id}/grants`, {
    body: {},
  }),
  plainCase(`GET ${grants}`, "all"),
  madeCase(
    `DELETE ${grants}/{tenant_id}`,
    "one",
    async ({ ids }) => `/admin/v1/vector_stores/${ids.vector_store_id}/grants/${ids.spare_tenant_id}`,
  ),
  jsonCase("POST /admin/v1/vector_stores/{vector_store_id}/salt/rotate", "over its KV", () => ({}), { afterMs: 1_000 }),
];

const watchingCases: readonly StallCase[] = [
  plainCase("GET /admin/v1/audit", "100 of them", "?limit=100"),
  plainCase("GET /admin/v1/usage", "all there is"),
  plainCase("GET /admin/v1/cache", "all tenants", "", platform),
  plainCase("GET /admin/v1/traces", "the slowest of all", "?order=slowest&limit=100", platform),
  plainCase("GET /admin/v1/traces/{request_id}", "one of many messages"),
  plainCase("GET /admin/v1/stats", "two hours by minute"),
  plainCase("GET /admin/v1/workers", "all", "", platform),
  { ...plainCase("GET /admin/v1/cache/events", "of all tenants", "", platform), stream: true },
  { ...plainCase("GET /admin/v1/kv-events", "from the start", "", platform), stream: true },
  plainCase("GET /metrics", "all", "", platform),
  plainCase("GET /", "the map"),
  madeCase("GET /console/{asset}", "the console's script", async ({ server }) => {
    const page = await (await fetch(server.url, { headers: { accept: "text/html" } })).text();
    return /src="([^"]+)"/.exec(page)?.[1] ?? "";
  }),
  jsonCase("POST /admin/v1/session", "a key that is none", () => ({ api_key: "k".repeat(256) })),
  plainCase("GET /admin/v1/session", "its own"),
  plainCase("DELETE /admin/v1/session", "none"),
  plainCase("GET /health", "asked"),
  plainCase("GET /ready", "asked"),
  plainCase("GET /docs", "the page"),
  plainCase("GET /docs/search", "eight words that begin many", `?q=${"con de pre re st ma se co".slice(0, 100)}`),
  plainCase("GET /docs/style.css", "the style"),
  madeCase("GET /docs/{page}", "the longest", async () => "/docs/measurements"),
  madeCase("GET /docs/api/{resource}", "the longest", async () => "/docs/api/messages"),
  madeCase("GET /docs/pictures/{picture}", "one", async () => "/docs/pictures/needle.svg"),
  plainCase("GET /openapi.json", "the document"),
];

export const operatorCases: readonly StallCase[] = [...batchCases, ...tenantCases, ...watchingCases];
