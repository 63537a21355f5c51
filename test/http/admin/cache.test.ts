import { expect, test } from "bun:test";
import { addCacheRoutes } from "../../../gateway/http/admin/cache.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import { fakeCard } from "../../dispatch/fake-core.ts";
import { chatRig, post, question } from "../chat-rig.ts";

interface Part {
  readonly worker: string;
  readonly blocks: number;
  readonly fragment_blocks: number;
  readonly tokens: number;
  readonly bytes: number;
}

test("the cache is told by tenant; fragments count for their corpus's owner, all else for who asked", async () => {
  const rig = chatRig();
  addCacheRoutes(rig.app, rig);
  const get = (key: string) => rig.app.request("/admin/v1/cache", { headers: { authorization: `Bearer ${key}` } });
  const cache = async () => {
    const { data } = (await (await get("key-platform")).json()) as {
      data: (Omit<Part, "worker"> & { tenant_id: string; workers: Part[] })[];
    };
    return new Map(data.map((tenant) => [tenant.tenant_id, tenant]));
  };
  expect((await get("key-a")).status).toBe(403);
  expect((await cache()).size).toBe(0);

  await post(rig.app, { ...question, documents: [{ id: "d", text: "the thing ".repeat(20) }] });
  const own = rig.submits()[0]?.plan.runs ?? [];
  const blocks = own.reduce((sum, run) => sum + run.blockKeys.length, 0);
  const tokens = own.reduce((sum, run) => {
    // Of an open run only full blocks are kept.
    return sum + Math.min(run.tokenIds.length, run.blockKeys.length * fakeCard.blockTokens);
  }, 0);
  expect(await cache()).toEqual(
    new Map([
      [
        "tenant_a",
        {
          object: "tenant_cache",
          tenant_id: "tenant_a",
          blocks,
          fragment_blocks: 0,
          pinned_blocks: 0,
          tokens,
          bytes: blocks * fakeCard.kvBytesPerBlock,
          workers: [
            {
              worker: "worker-0",
              blocks,
              fragment_blocks: 0,
              pinned_blocks: 0,
              tokens,
              bytes: blocks * fakeCard.kvBytesPerBlock,
            },
          ],
        },
      ],
    ]),
  );

  await post(rig.app, { ...question, file_search: { vector_store_ids: ["vs_1"] } }, { key: "key-b" });
  const searched = rig.submits()[1]?.plan.runs ?? [];
  const spanBlocks = searched.filter(({ kind }) => kind === "span").flatMap(({ blockKeys }) => blockKeys).length;
  const after = await cache();
  expect(after.get("tenant_corpus")).toMatchObject({ blocks: spanBlocks, fragment_blocks: spanBlocks });
  const [first] = searched.filter(({ kind }) => kind === "span");
  const keys = first?.blockKeys ?? [];
  rig.pins.set(new Map([...keys, "0".repeat(32) as BlockKey].map((key) => [key, "tenant_corpus"])));
  expect((await cache()).get("tenant_corpus")).toMatchObject({
    pinned_blocks: keys.length,
    workers: [{ worker: "worker-0", pinned_blocks: keys.length }],
  });
  expect(after.get("tenant_a")?.blocks).toBe(blocks);
  expect(after.get("tenant_b")?.fragment_blocks).toBe(0);

  rig.processes[0]?.die();
  expect((await cache()).size).toBe(0);
});
