/** Objects that are in the bucket alone: who waits for them, for how long, and what becomes of who waited in vain. */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { KvObject } from "../../worker/contract/kv-object.ts";
import type { FileTier } from "../../worker/contract/messages.ts";
import { nobody } from "../../worker/contract/owners.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { Fetches } from "../../worker/tiers/fetches.ts";
import { FetchCosts } from "../../worker/tiers/load-costs.ts";
import type { LackingRun } from "../../worker/tiers/requester.ts";
import { eosTokenIds, type TinyWorld } from "../engine/harness.ts";
import { countUp, submitPlan } from "../engine/plans.ts";
import { referenceAnswer } from "../engine/reference.ts";
import { fakeShape } from "../support/fake-backend.ts";
import { until } from "../support/until.ts";
import { DiskFolder, keyFrom, openWorld, shape, writeSpans } from "./disk-world.ts";

const spans = [countUp(1, 9), countUp(50, 138)];
let folder: DiskFolder;
let objects: KvObject[];
beforeAll(async () => {
  folder = new DiskFolder();
  objects = await writeSpans(folder.path, spans);
});
afterAll(() => folder[Symbol.dispose]());

const askedOf = ({ messages }: TinyWorld): string[] =>
  messages.flatMap((one) => (one.type === "fetch" ? [one.objectId] : []));

/** Has a world answer a question while each fetch is answered so. */
async function ask(world: TinyWorld, id: string, tier: FileTier): Promise<readonly number[]> {
  const message = submitPlan(id, { spans, question: countUp(80, 5) });
  world.engine.submit(message);
  let [answered, isDone] = [0, false];
  const settled = world.settle().then(() => {
    isDone = true;
  });
  await until(
    () => {
      const asked = askedOf(world);
      if (asked.length > answered) {
        const objectIds = asked.slice(answered);
        world.engine.tiers.disk?.receive({ type: "moved", objectIds, tier });
      }
      answered = asked.length;
      return isDone;
    },
    "the question is answered",
    20_000,
    1,
  );
  await settled;
  expect(world.tokensOf(id)).toEqual(
    referenceAnswer(message, { ...fakeShape, ...shape }, eosTokenIds).tokenIds as number[],
  );
  return world.tokensOf(id);
}

function worldWithBucket(): TinyWorld {
  const world = openWorld();
  world.engine.tiers.disk?.receive({ type: "catalog", folder: folder.path, objects, warm: false, tier: "s3" });
  return world;
}

test("what a request lacks is asked for once, and loaded when it has come", async () => {
  const world = worldWithBucket();
  await ask(world, "a", "disk");
  expect(askedOf(world).toSorted()).toEqual(objects.map(({ id }) => id).toSorted());
  // Five tokens of the question and three of the answer: nothing else is computed.
  expect(world.backend.rowCount).toBe(8);
  await ask(world, "b", "disk");
  expect(askedOf(world).length).toBe(objects.length);
});

test("what is not to be had now is computed, and not asked for again at once", async () => {
  const world = worldWithBucket();
  await ask(world, "a", "s3");
  const asked = askedOf(world);
  expect(asked.length).toBeGreaterThan(0);
  expect(world.backend.rowCount).toBeGreaterThan(100);
  world.engine.evict([objects[0]?.rootKey ?? rootKey("fake", "" as CacheSalt, "span")]);
  await ask(world, "b", "s3");
  expect(askedOf(world)).toEqual(asked);
});

test("a file that went to make room is asked for; what is forgotten is not", async () => {
  const world = openWorld();
  const disk = world.engine.tiers.disk;
  disk?.receive({ type: "catalog", folder: folder.path, objects, warm: false });
  const [first, ...others] = objects.map(({ id }) => id);
  disk?.receive({ type: "moved", objectIds: [first ?? ""], tier: "s3" });
  disk?.receive({ type: "forget", objectIds: others });
  await ask(world, "a", "disk");
  expect(askedOf(world)).toEqual([first ?? ""]);
});

test("which file of an object cannot be read is said by its number", async () => {
  using empty = new DiskFolder();
  const world = openWorld();
  const [first] = objects;
  const disk = world.engine.tiers.disk;
  disk?.receive({ type: "catalog", folder: empty.path, objects: objects.slice(0, 1), warm: false, tier: "s3" });
  disk?.receive({ type: "moved", objectIds: [first?.id ?? ""], tier: "disk", copy: 3 });
  world.engine.submit(submitPlan("a", { spans: spans.slice(0, 1), question: countUp(80, 5) }));
  await world.settle();
  const failed = world.messages.filter(({ type }) => type === "load failed");
  expect(failed).toEqual([{ type: "load failed", objectId: first?.id ?? "", reason: "ENOENT", copy: 3 }]);
});

const blockTokens = 4;
const root = rootKey("fake", "c2FsdA==" as CacheSalt, "span");

/** A run of one object, of which nothing is there. */
function lacking(from: number): { readonly run: LackingRun; readonly object: KvObject } {
  const tokenIds = countUp(from, 20);
  const keys = runBlockKeys(root, tokenIds, blockTokens, true);
  const lastKey = keys.at(-1) ?? root;
  const id = `${from}`.padStart(32, "0");
  const chain = { rootKey: root, previousKey: root, lastKey, position: 0, tokenCount: 20 };
  const run: LackingRun = {
    ...{ plan: { rootKey: root, position: 0 }, keyed: true, complete: false, owner: nobody, blocks: [] },
    ...{ blockCount: keys.length, keyAt: (index) => keys[index], isResident: () => false },
  };
  return { run, object: { id, dataKey: keyFrom(id), ...chain, owner: nobody } };
}

/** @param tokenMs what a token takes to be computed @param loadMs what any file takes to be loaded */
function openFetches(tokenMs = Number.POSITIVE_INFINITY, loadMs = 0) {
  const clock = { ms: 0 };
  const asked: string[] = [];
  const emit = (message: { readonly type: string; readonly objectId?: string }): void =>
    void asked.push(message.objectId ?? message.type);
  const fetches = new Fetches({
    ...{ blockTokens, blockBytes: 4_080, computeMs: (tokens: number) => tokens * tokenMs, loadMs: () => loadMs },
    ...{ emit, isLoading: () => false, has: () => false, onChange: () => undefined },
    nowMs: () => clock.ms,
  });
  const runs = Array.from({ length: 6 }, (_, index) => lacking(1 + 100 * index));
  fetches.add(runs.map(({ object }) => object));
  const want = (...indices: readonly number[]): boolean => {
    const wanted = indices.flatMap((index) => runs[index]?.run ?? []);
    fetches.want([{ runs: wanted, openRun: undefined, reservedBlocks: 0 }]);
    return fetches.isBusy;
  };
  return { clock, asked, fetches, want, ids: runs.map(({ object }) => object.id) };
}

test.each([
  [Number.POSITIVE_INFINITY, 1_000],
  [10, 200],
  [500, 10_000],
  [0.1, 50],
])("where a token takes %d ms to compute, one of 20 tokens is waited for %d ms", (tokenMs, waitMs) => {
  const { clock, want } = openFetches(tokenMs);
  expect(want(0)).toBe(true);
  clock.ms += waitMs;
  expect(want(0)).toBe(true);
  clock.ms += 1;
  expect(want(0)).toBe(false);
});

test("nobody waits longer than a second for what nobody knows the price of, nor at all after three that were late, until a minute has passed", () => {
  const { clock, asked, want, ids } = openFetches();
  for (const index of [0, 1, 2]) {
    expect(want(index)).toBe(true);
    clock.ms += 1_001;
    expect(want(index)).toBe(false);
  }
  expect(want(3)).toBe(false);
  expect(want(3)).toBe(false);
  // It is asked for all the same, and there for who comes later.
  expect(asked).toEqual(ids.slice(0, 4));
  clock.ms += 60_001;
  expect([want(4), want(3), want(0)]).toEqual([true, true, true]);
});

test("one that comes in time ends a row of late ones", () => {
  const { clock, fetches, want, ids } = openFetches();
  for (const index of [0, 1, 2, 3, 4]) {
    expect(want(index)).toBe(true);
    if (index === 2) expect(fetches.arrived(ids[index] ?? "")?.id).toBe(ids[index] ?? "");
    clock.ms += 1_001;
    want(index);
  }
  expect(want(5)).toBe(true);
  fetches.forget([], [root]);
  expect([fetches.isBusy, want(5)]).toEqual([false, false]);
});

test("what is computed sooner than fetches took before is not asked for", () => {
  // Each run has 20 tokens.
  const { clock, asked, fetches, want, ids } = openFetches(1);
  expect(want(0)).toBe(true);
  clock.ms += 15;
  fetches.arrived(ids[0] ?? "");
  expect(want(1)).toBe(true);
  clock.ms += 30;
  fetches.arrived(ids[1] ?? "");
  // 22.5 ms at the mean; two that follow each other are as soon here as one, and take longer to compute.
  expect(want(2)).toBe(false);
  expect(asked).toEqual(ids.slice(0, 2));
  expect(want(2, 3)).toBe(true);
  expect(asked).toEqual(ids.slice(0, 4));
});

test("loading what was fetched counts too, and a bucket that is hardly sooner is not asked", () => {
  // Each run takes 20 ms to be computed, and was fetched in 10.
  for (const [loadMs, isAsked] of [
    [0, true],
    [6, true],
    [6.01, false],
    [30, false],
  ] as const) {
    const { clock, fetches, want, ids } = openFetches(1, loadMs);
    expect(want(0)).toBe(true);
    clock.ms += 10;
    fetches.arrived(ids[0] ?? "");
    expect([loadMs, want(1)]).toEqual([loadMs, isAsked]);
  }
});

test("nobody waits for more than twice what fetches took before", () => {
  // A run takes 10 s to be computed.
  const { clock, fetches, want, ids } = openFetches(500);
  expect(want(0)).toBe(true);
  clock.ms += 300;
  fetches.arrived(ids[0] ?? "");
  expect(want(1)).toBe(true);
  clock.ms += 600;
  expect(want(1)).toBe(true);
  clock.ms += 1;
  expect(want(1)).toBe(false);
});

test("of fetches that are under way together each waits for those before it", () => {
  const clock = { ms: 0 };
  const costs = new FetchCosts(() => clock.ms);
  expect(costs.fetchMs([1_000])).toBe(0);
  for (const id of ["a", "b", "c"]) costs.asked(id, 1_000);
  for (const id of ["a", "b", "c"]) {
    clock.ms += id === "a" ? 20 : 3;
    costs.arrived(id);
  }
  expect(costs.fetchMs([1_000])).toBe(20);
  expect(costs.fetchMs([1_000, 1_000])).toBe(23);
  costs.asked("d", 1_000);
  costs.asked("e", 1_000);
  expect(costs.fetchMs([1_000])).toBeCloseTo(20 + 3 * 3, 9);
  costs.gone("d");
  expect(costs.fetchMs([1_000])).toBeCloseTo(20 + 2 * 3, 9);
});
