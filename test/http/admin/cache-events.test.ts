/** GET /admin/v1/cache and /cache/events of the whole server: two tenants and the operator. */
import { afterAll, beforeAll, expect, test } from "bun:test";
import type { z } from "zod";
import { readSse } from "../../../gateway/client/sse.ts";
import { cacheAnswer } from "../../../gateway/http/admin/cache.ts";
import { cacheEvents } from "../../../gateway/http/admin/cache-events.ts";
import { type Caller, type FuzzWorld, model, openWorld } from "../../fuzz/world.ts";

let world: FuzzWorld;
let acme: Caller;
let beta: Caller;

beforeAll(async () => {
  world = await openWorld();
  acme = await world.tenant("acme");
  beta = await world.tenant("beta");
});
afterAll(async () => await world[Symbol.asyncDispose]());

type Change = z.infer<typeof cacheEvents.change.data>;

async function ask(caller: Caller, word: string): Promise<void> {
  const messages = [{ role: "user", content: `${word} `.repeat(60) }];
  const answer = await world.call(caller.apiKey, "POST", "/v1/chat/completions", { model, messages, max_tokens: 1 });
  expect(answer.status).toBe(200);
  await answer.text();
}

async function cacheOf(key: string) {
  const answer = await world.call(key, "GET", "/admin/v1/cache");
  expect(answer.status).toBe(200);
  return cacheAnswer.parse(await answer.json());
}

async function open(key: string, lastEventId?: string) {
  const headers = { authorization: `Bearer ${key}`, ...(lastEventId && { "last-event-id": lastEventId }) };
  const response = await fetch(`${world.url}/admin/v1/cache/events`, { headers });
  expect(response.status).toBe(200);
  return readSse(response.body as ReadableStream<Uint8Array>);
}

/** Reads until `enough` of the changes so far. */
async function changesUntil(events: Awaited<ReturnType<typeof open>>, enough: (changes: Change[]) => boolean) {
  const changes: Change[] = [];
  let lastId = "";
  while (!enough(changes)) {
    const { value, done } = await events.next();
    if (done === true || value === undefined) throw new Error("the stream ended");
    if (value.event !== "change") continue;
    lastId = value.id ?? "";
    changes.push(cacheEvents.change.data.parse(JSON.parse(value.data)));
  }
  return { changes, lastId };
}

const sum = (changes: readonly Change[], field: "stored" | "removed"): number =>
  changes.flatMap(({ blocks }) => blocks).reduce((total, change) => total + change[field], 0);

test("a tenant's administrator is told of its own row and of no totals; the operator of all", async () => {
  await ask(acme, "acme");
  await ask(beta, "beta");
  const all = await cacheOf(world.adminKey);
  const own = await cacheOf(acme.apiKey);
  expect(own.tiers).toEqual([]);
  expect(own.data).toHaveLength(1);
  expect(own.data[0]?.blocks).toBeGreaterThan(2);
  expect(own.data).toEqual(all.data.filter(({ tenant_id }) => tenant_id === acme.id));
  expect(all.data.map(({ tenant_id }) => tenant_id)).toEqual(expect.arrayContaining([acme.id, beta.id]));
  expect(all.tiers[0]).toMatchObject({ tier: "device", worker: "worker-0" });
  const idle = await world.tenant("idle");
  expect((await cacheOf(idle.apiKey)).data).toMatchObject([{ tenant_id: idle.id, blocks: 0, workers: [], tiers: [] }]);
});

test("an eviction is told within two seconds, to its tenant and to the operator, and to nobody else", async () => {
  const events = { own: await open(acme.apiKey), others: await open(beta.apiKey), all: await open(world.adminKey) };
  await ask(acme, "again");
  const held = (await cacheOf(acme.apiKey)).data[0]?.blocks ?? 0;
  const isGone = (changes: Change[]): boolean =>
    changes.some(({ blocks }) => blocks.some(({ held: left }) => left === 0));
  const startMs = performance.now();
  const evicted = await world.call(acme.apiKey, "DELETE", `/admin/v1/tenants/${acme.id}/cache`);
  expect((await evicted.json()) as object).toMatchObject({ blocks: held });
  const { changes, lastId } = await changesUntil(events.own, isGone);
  expect(performance.now() - startMs).toBeLessThan(2_000);
  expect(new Set(changes.flatMap(({ blocks }) => blocks.map(({ tenant_id }) => tenant_id)))).toEqual(
    new Set([acme.id]),
  );
  expect(sum(changes, "removed")).toBe(held);
  expect((await changesUntil(events.all, isGone)).changes.length).toBeGreaterThan(0);
  // What the others are told next is of their own, after everything above.
  await ask(beta, "next");
  const theirs = await changesUntil(events.others, (seen) => sum(seen, "stored") > 0);
  expect(JSON.stringify(theirs.changes)).not.toContain(acme.id);
  // Who comes back is told what came after, and nothing twice.
  await ask(acme, "later");
  const later = await changesUntil(await open(acme.apiKey, lastId), (seen) => sum(seen, "stored") > 0);
  expect(sum(later.changes, "removed")).toBe(0);
  for (const stream of Object.values(events)) await stream.return(undefined);
});

test("a key without tenant:admin is refused, and so are parameters and too many streams", async () => {
  const member = await world.mint(acme.id, ["inference"]);
  expect((await world.call(member, "GET", "/admin/v1/cache/events")).status).toBe(403);
  expect((await world.call(member, "GET", "/admin/v1/cache")).status).toBe(403);
  expect((await world.call(acme.apiKey, "GET", "/admin/v1/cache/events?tenant_id=x")).status).toBe(400);
  const streams = await Promise.all(
    Array.from({ length: 20 }, () => world.call(acme.apiKey, "GET", "/admin/v1/cache/events")),
  );
  const statuses = streams.map(({ status }) => status);
  expect([statuses.filter((status) => status === 200).length > 8, statuses.includes(429)]).toEqual([true, true]);
  for (const stream of streams) await stream.body?.cancel();
});
