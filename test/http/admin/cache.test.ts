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
  addCacheRoutes(rig.app, {
    ...rig,
    tiers: () => rig.state.tiers,
    tiersByTenant: () => new Map(),
    tiersOf: () => [],
  });
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
          tiers: [],
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

test("memory of the host beside a worker is a tier of its own, for the worker and for its tenants", async () => {
  const rig = chatRig();
  addCacheRoutes(rig.app, { ...rig, tiers: () => [], tiersByTenant: () => new Map(), tiersOf: () => [] });
  const hostKv = { blockCount: 100, bytesPerBlock: 10 };
  rig.processes[0]?.handlers.onMessage({ type: "ready", card: { ...fakeCard, hostKv } });
  await post(rig.app, question);
  const keys = [...rig.residency.keys("worker-0")];
  const stored = { type: "stored", blockKeys: keys, previousKeys: keys, tokenCounts: keys.map(() => 16) } as const;
  rig.residency.apply("worker-0", [{ sequence: 9, tier: "host", ...stored }]);
  rig.residency.apply("worker-0", [{ sequence: 10, type: "removed", blockKeys: keys }]);
  rig.pins.set(new Map(), new Map(keys.slice(0, 1).map((key) => [key, "tenant_a"])));
  const headers = { authorization: "Bearer key-platform" };
  const { data, tiers } = (await (await rig.app.request("/admin/v1/cache", { headers })).json()) as {
    data: unknown;
    tiers: { tier: string }[];
  };
  const blocks = keys.length;
  expect(tiers.map(({ tier }) => tier)).toEqual(["device", "host"]);
  expect(tiers).toMatchObject([
    { worker: "worker-0", blocks: 0, bytes: 0, pinned_bytes: 0 },
    { worker: "worker-0", blocks, bytes: blocks * 10, pinned_bytes: 10, quota_bytes: 1_000 },
  ]);
  const own = { tier: "host", blocks, bytes: blocks * 10, quota_bytes: null };
  expect(data).toMatchObject([{ tenant_id: "tenant_a", blocks: 0, workers: [], tiers: [own] }]);
});

test("tiers are told: each worker's pool, and what all share with what a tenant has of it", async () => {
  const rig = chatRig();
  const disk = { tier: "disk", objects: 2, blocks: 40, bytes: 9_000 } as const;
  rig.state.tiers.push({ ...disk, pinnedBytes: 4_500, quotaBytes: 2 ** 30 });
  const tiersByTenant = () =>
    new Map([
      [
        "tenant_b",
        [
          { ...disk, quotaBytes: undefined },
          { ...disk, tier: "s3" as const, quotaBytes: 7 },
        ],
      ],
    ]);
  addCacheRoutes(rig.app, { ...rig, tiers: () => rig.state.tiers, tiersByTenant, tiersOf: () => [] });
  await post(rig.app, question);
  const blocks = rig.residency.blockCount("worker-0");
  rig.pins.set(new Map([...rig.residency.keys("worker-0")].slice(0, 1).map((key) => [key, "tenant_a"])));
  const headers = { authorization: "Bearer key-platform" };
  const { data, tiers } = (await (await rig.app.request("/admin/v1/cache", { headers })).json()) as {
    data: { tenant_id: string }[];
    tiers: unknown;
  };
  const blockBytes = fakeCard.kvBytesPerBlock;
  const pool = { bytes: blocks * blockBytes, pinned_bytes: blockBytes, quota_bytes: fakeCard.blockCount * blockBytes };
  expect(blocks).toBeGreaterThan(0);
  expect(tiers).toEqual([
    { tier: "device", worker: "worker-0", blocks, ...pool },
    { ...disk, worker: null, pinned_bytes: 4_500, quota_bytes: 2 ** 30 },
  ]);
  expect(data.find(({ tenant_id }) => tenant_id === "tenant_b")).toEqual({
    ...{ object: "tenant_cache", tenant_id: "tenant_b", blocks: 0, fragment_blocks: 0, pinned_blocks: 0 },
    ...{
      tokens: 0,
      bytes: 0,
      workers: [],
      tiers: [
        { ...disk, quota_bytes: null },
        { ...disk, tier: "s3", quota_bytes: 7 },
      ],
    },
  });
});
