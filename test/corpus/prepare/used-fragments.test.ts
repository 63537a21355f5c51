/** Which fragments that requests have read are written to files. */
import { afterEach, beforeEach, expect, test } from "bun:test";
import type { TenantId } from "../../../db/ids.ts";
import { yieldToRequests } from "../../../gateway/base/pace.ts";
import type { RequestUse, UsedFragment } from "../../../gateway/corpus/base/ports.ts";
import { createWorld, ingestText, type World } from "../world.ts";

let world: World;
let tenantId: TenantId;
let storeId: string;
let found: readonly UsedFragment[];

beforeEach(async () => {
  world = createWorld();
  tenantId = world.tenants.create("a").id;
  const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
  storeId = store.id;
  await ingestText(world, store, "a.txt", "Amber lies in the first hall.");
  const query = { tenantId, vectorStoreIds: [storeId], query: "amber", maxResults: 5 };
  found = await world.corpus.retrieve(query);
  expect(found).toHaveLength(1);
});
afterEach(() => world.remove());

async function use(other: Partial<RequestUse> = {}): Promise<number> {
  world.corpus.fragmentsUsed(found, { tenantId, readAtMs: performance.now(), ...other });
  await yieldToRequests();
  await yieldToRequests();
  return world.spans.keptByUse.length;
}

const preparedKey = (): unknown =>
  world.db.client.query<{ key: string | null }, []>("select prepared_span_key as key from fragments").get()?.key;

test("a fragment is written when it is used for the second time, and a start finds its text by that", async () => {
  expect(await use()).toBe(0);
  expect(preparedKey()).toBeNull();
  expect(await use()).toBe(1);
  const [fragment] = found;
  expect(preparedKey()).toBe(fragment && world.spans.lowerSpan(fragment).blockKeys.at(-1));
});

test.each([
  ["30m", 0],
  ["1h", 1],
  ["24h", 1],
] as const)("asked to be retained for %s, at its first use: %d", async (retention, kept) => {
  expect(await use({ retention })).toBe(kept);
});

test("another tenant's wish to retain it is no reason, and its second use is one", async () => {
  const other = { tenantId: world.tenants.create("b").id, retention: "24h" } as const;
  expect(await use(other)).toBe(0);
  expect(await use(other)).toBe(1);
});

test("nothing is written while no model is known", async () => {
  world.spans.ready = false;
  await use();
  expect(await use({ retention: "24h" })).toBe(0);
});

test("of very many fragments one is looked at in each turn of the event loop", async () => {
  const many = Array.from({ length: 200 }, () => found).flat();
  world.corpus.fragmentsUsed(many, { tenantId, readAtMs: performance.now() });
  const { keptByUse } = world.spans;
  let most = 0;
  for (let before = 0; before < 199; ) {
    await new Promise(setImmediate);
    most = Math.max(most, keptByUse.length - before);
    before = keptByUse.length;
  }
  expect(most).toBe(1);
});
