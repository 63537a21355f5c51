/** What followers are told of tenants' KV by the second, against what the workers hold. */
import { expect, test } from "bun:test";
import { KvActivity, type KvSecond } from "../../../gateway/dispatch/kv/activity.ts";
import { Pins } from "../../../gateway/dispatch/kv/pins.ts";
import { Residency } from "../../../gateway/dispatch/kv/residency.ts";
import type { KvEvent } from "../../../worker/contract/messages.ts";
import type { WorkerTier } from "../../../worker/contract/tiers.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import { fc } from "../../support/fast-check.ts";

function rig(maxChanges = 1_000) {
  const clock = { nowMs: 1_000 };
  const residency = new Residency(
    (_worker, root) => ({ tenantId: `tenant_${root[0]}`, isFragment: false }),
    (worker, tier, ...change) => activity.blocks({ worker, tier }, ...change),
  );
  /** Of each tier that all workers share, the blocks of any tenant. */
  const shared = { disk: 0, s3: 0 };
  const activity = new KvActivity({
    heldBlocks: ({ worker, tier }, tenantId) =>
      worker === null ? shared[tier] : (residency.byTenant(worker, tier).get(tenantId)?.blockCount ?? 0),
    maxChanges,
    nowMs: () => clock.nowMs,
    gatherMs: 3_600_000,
  });
  const flush = (): void => {
    clock.nowMs += 1_000;
    activity.flush();
  };
  return { residency, activity, shared, flush, clock };
}

/** Blocks whose first letter is their tenant's. */
const stored = (tier: WorkerTier, ...names: string[]): KvEvent => {
  const blockKeys = names as BlockKey[];
  return { sequence: 1, type: "stored", tier, blockKeys, previousKeys: blockKeys, tokenCounts: names.map(() => 16) };
};
const removed = (tier: WorkerTier, ...names: string[]): KvEvent => {
  return { sequence: 1, type: "removed", tier, blockKeys: names as BlockKey[] };
};

/** All seconds up to the mark that nothing more is known. */
async function known(activity: KvActivity, tenantId?: string, lastId?: string): Promise<KvSecond[]> {
  const seconds: KvSecond[] = [];
  for await (const second of activity.follow(tenantId, lastId, new AbortController().signal)) {
    if (second === undefined) return seconds;
    seconds.push(second);
  }
  return seconds;
}

const change = (
  tenantId: string,
  storedBlocks: number,
  removedBlocks: number,
  heldBlocks: number,
  tier: WorkerTier = "device",
) => {
  return { tenantId, place: { worker: "w0", tier }, storedBlocks, removedBlocks, loadedBlocks: 0, heldBlocks };
};

test("blocks are told by tenant, tier and second, and a tenant's follower hears of its own alone", async () => {
  const { residency, activity, flush } = rig();
  residency.apply("w0", [stored("device", "a1", "a2", "b1"), stored("host", "a1")]);
  flush();
  residency.apply("w0", [removed("device", "a1", "b1", "b9"), stored("device", "a3", "a3")]);
  flush();
  expect(await known(activity, "tenant_b")).toEqual([
    { atMs: 2_000, blocks: [change("tenant_b", 1, 0, 1)], pins: [] },
    { atMs: 3_000, blocks: [change("tenant_b", 0, 1, 0)], pins: [] },
  ]);
  expect((await known(activity)).map(({ blocks }) => blocks)).toEqual([
    [change("tenant_a", 2, 0, 2), change("tenant_a", 1, 0, 1, "host"), change("tenant_b", 1, 0, 1)],
    [change("tenant_a", 1, 1, 2), change("tenant_b", 0, 1, 0)],
  ]);
  expect(await known(activity, "tenant_c")).toEqual([]);
});

test("what comes to files and the bucket, goes from them and is brought from them is told of its tenant", async () => {
  const { residency, activity, shared, flush } = rig();
  const [disk, s3] = [
    { worker: null, tier: "disk" },
    { worker: null, tier: "s3" },
  ] as const;
  activity.blocks(disk, "tenant_a", 32);
  activity.blocks(s3, "tenant_a", 32);
  activity.blocks(disk, "tenant_b", 5);
  Object.assign(shared, { disk: 32, s3: 32 });
  flush();
  activity.blocks(disk, "tenant_a", -32);
  activity.loaded("disk", "tenant_a", 8);
  activity.loaded("s3", "tenant_a", 32);
  activity.loaded("disk", "tenant_b", 0);
  residency.apply("w0", [stored("device", "a1")]);
  shared.disk = 0;
  flush();
  const none = { storedBlocks: 0, removedBlocks: 0, loadedBlocks: 0 };
  const own = { tenantId: "tenant_a", ...none };
  expect((await known(activity, "tenant_a")).map(({ blocks }) => blocks)).toEqual([
    [
      { ...own, place: disk, storedBlocks: 32, heldBlocks: 32 },
      { ...own, place: s3, storedBlocks: 32, heldBlocks: 32 },
    ],
    [
      { ...own, place: disk, removedBlocks: 32, loadedBlocks: 8, heldBlocks: 0 },
      { ...own, place: s3, loadedBlocks: 32, heldBlocks: 32 },
      change("tenant_a", 1, 0, 1),
    ],
  ]);
  const [other, ...more] = await known(activity, "tenant_b");
  expect([other?.blocks.map(({ storedBlocks }) => storedBlocks), more]).toEqual([[5], []]);
});

test("a worker that ends takes its blocks with it", async () => {
  const { residency, activity, flush } = rig();
  residency.apply("w0", [stored("device", "a1", "a2"), stored("host", "a1")]);
  flush();
  residency.forget("w0");
  flush();
  const [, second] = await known(activity, "tenant_a");
  expect(second?.blocks).toEqual([change("tenant_a", 0, 2, 0), change("tenant_a", 0, 1, 0, "host")]);
});

test("what is pinned and what is no more", async () => {
  const { residency, activity, flush } = rig();
  const pins = new Pins({
    registry: { ready: () => [] },
    residency,
    supervisor: { send: () => true },
    onChange: (...pinned) => activity.pins(...pinned),
  });
  const keys = (...names: string[]) => new Map(names.map((name) => [name as BlockKey, `tenant_${name[0]}`]));
  pins.set(keys("a1", "a2", "b1"), keys("a5"));
  flush();
  pins.set(keys("a2", "a3", "a4"), keys("a5"));
  flush();
  pins.set(keys("a2", "a3", "a4"), keys("a5"));
  flush();
  const pin = (pinnedBlocks: number, unpinnedBlocks: number, tier: WorkerTier) => {
    return { tenantId: "tenant_a", tier, pinnedBlocks, unpinnedBlocks };
  };
  expect((await known(activity, "tenant_a")).map((second) => second.pins)).toEqual([
    [pin(2, 0, "device"), pin(1, 0, "host")],
    [pin(2, 1, "device")],
  ]);
});

test("a follower that waits is told of the next second; one that comes back, of what it has missed alone", async () => {
  const { residency, activity, flush } = rig();
  const stop = new AbortController();
  const live = activity.follow("tenant_a", undefined, stop.signal);
  expect(await live.next()).toEqual({ done: false, value: undefined });
  const next = live.next();
  residency.apply("w0", [stored("device", "b1")]);
  flush();
  residency.apply("w0", [stored("device", "a1")]);
  flush();
  const { value } = await next;
  expect(value?.blocks).toEqual([change("tenant_a", 1, 0, 1)]);
  residency.apply("w0", [removed("device", "a1")]);
  flush();
  const id = value === undefined ? "" : activity.idOf(value);
  expect((await known(activity, "tenant_a", id)).map(({ blocks }) => blocks)).toEqual([[change("tenant_a", 0, 1, 0)]]);
  // An id of another process's, or none at all: everything that is kept.
  for (const other of [id.replace(/^./, (digit) => (digit === "0" ? "1" : "0")), "x", undefined]) {
    expect(await known(activity, "tenant_a", other)).toHaveLength(2);
  }
  const ended = live.return(undefined);
  stop.abort();
  await ended;
});

test("a clock that is set back makes no second come twice, and seconds are forgotten", async () => {
  const { residency, activity, flush, clock } = rig(4);
  for (let at = 0; at < 6; at++) {
    residency.apply("w0", [stored("device", `a${at}`)]);
    if (at === 4) clock.nowMs = 0;
    flush();
  }
  const seconds = await known(activity);
  expect(seconds.map(({ atMs }) => atMs)).toEqual([4_000, 5_000, 5_001, 5_002]);
  for (let at = 0; at < 80; at++) {
    residency.apply("w0", [removed("device", `a${at % 6}`), stored("device", `a${at % 6}`)]);
    flush();
  }
  expect((await known(activity)).length).toBeLessThanOrEqual(4);
});

test("sums of what is told are what the workers hold, whatever happens", async () => {
  const name = fc.constantFrom("a1", "a2", "a3", "b1", "b2", "c1");
  const step = fc.record({
    kind: fc.constantFrom("stored", "removed", "lost", "flush"),
    worker: fc.constantFrom("w0", "w1"),
    tier: fc.constantFrom<WorkerTier>("device", "host"),
    names: fc.uniqueArray(name, { minLength: 1 }),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 40 }), async (steps) => {
      const { residency, activity, flush } = rig(10_000);
      for (const { kind, worker, tier, names } of steps) {
        if (kind === "stored") residency.apply(worker, [stored(tier, ...names)]);
        else if (kind === "removed") residency.apply(worker, [removed(tier, ...names)]);
        else if (kind === "lost") residency.forget(worker);
        else flush();
      }
      flush();
      const sums = new Map<string, number>();
      const last = new Map<string, number>();
      for (const { blocks } of await known(activity)) {
        for (const { tenantId, place: at, ...counts } of blocks) {
          const place = `${at.worker} ${at.tier} ${tenantId}`;
          sums.set(place, (sums.get(place) ?? 0) + counts.storedBlocks - counts.removedBlocks);
          last.set(place, counts.heldBlocks);
        }
      }
      for (const [place, sum] of sums) {
        const [worker = "", tier = "device", tenantId = ""] = place.split(" ");
        const held = residency.byTenant(worker, tier as WorkerTier).get(tenantId as `tenant_${string}`);
        expect([place, sum, last.get(place)]).toEqual([place, held?.blockCount ?? 0, held?.blockCount ?? 0]);
      }
    }),
  );
});
