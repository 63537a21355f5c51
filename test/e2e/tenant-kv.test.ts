/** Tenants in one small pool of a real server: one's corpus stays beside another's flood, and a quota bounds what is kept. */
import { expect, test } from "bun:test";
import { addFile, askChat, listAll, prepareStore, waitForFile } from "../../gateway/cli/support/operations.ts";
import { fillerWords } from "../bench/support/prompts.ts";
import { cacheOf, firstWorkerOf } from "../support/operator.ts";
import { startTestServer } from "../support/server.ts";
import { until } from "../support/until.ts";

interface Fragment {
  readonly id: string;
  readonly resident: readonly object[];
}

const poolBytes = 2 ** 23;

test("a prepared corpus stays beside ever new text; what a tenant keeps is within its kv_bytes", async () => {
  await using server = await startTestServer({ model: "one-layer", env: { SPANGATE_KV_BYTES: String(poolBytes) } });
  const blocksOf = async (tenantId: string): Promise<number> => (await cacheOf(server, tenantId))?.blocks ?? 0;
  const [light, heavy] = [await server.tenant("light"), await server.tenant("heavy")];
  const { id: storeId } = await light.client.json<{ id: string }>("POST", "/v1/vector_stores", { name: "s" });
  const text = fillerWords(1, 130).join(" ");
  await waitForFile(light.client, storeId, await addFile(light.client, storeId, "a.txt", new Blob([text])));
  await prepareStore(light.client, storeId, () => undefined);
  const resident = async (): Promise<boolean[]> => {
    const fragments = await listAll<Fragment>(light.client, `/admin/v1/vector_stores/${storeId}/fragments`);
    return fragments.map((fragment) => fragment.resident.length > 0);
  };
  const { block_count: blockCount, kv_bytes_per_block: blockBytes } = await firstWorkerOf(server);
  // Within its floor: what one of two tenants keeps in any case.
  expect(await blocksOf(light.id)).toBeWithin(8, blockCount / 4);
  const flood = async (seed: number): Promise<number> => {
    const messages = [{ role: "user", content: fillerWords(seed, 250).join(" ") }];
    const { usage } = await askChat(heavy.client, { model: server.model, messages, max_tokens: 1 });
    return usage.prompt_tokens;
  };
  let tokens = 0;
  for (let seed = 100; tokens < 2 * 16 * blockCount; seed++) tokens += await flood(seed);
  expect((await resident()).every(Boolean)).toBe(true);
  expect(await blocksOf(heavy.id)).toBeGreaterThan(blockCount / 4);

  const quotaBlocks = 10;
  await server.admin.json("PUT", `/admin/v1/tenants/${heavy.id}/limits`, { kv_bytes: quotaBlocks * blockBytes });
  await flood(1_000);
  // The worker tells what it evicted after it has answered; the gateway's count follows.
  await until(async () => (await blocksOf(heavy.id)) <= quotaBlocks, "the count of evicted blocks");
  expect(await blocksOf(heavy.id)).toBeWithin(1, quotaBlocks + 1);
  expect((await resident()).every(Boolean)).toBe(true);
}, 120_000);
