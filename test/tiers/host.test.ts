/** Blocks in the host's memory: what comes back, what never does, and the invariants after every step. */
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import type { WorkerTier } from "../../worker/contract/tiers.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { eosTokenIds, TinyWorld } from "../engine/harness.ts";
import { countUp, submitPlan } from "../engine/plans.ts";
import { referenceAnswer } from "../engine/reference.ts";
import { Random } from "../native/random.ts";
import { effort } from "../support/effort.ts";
import { FakeBackend, fakeShape } from "../support/fake-backend.ts";
import { FakeDevice } from "../support/fake-device.ts";
import { testSeed } from "../support/seed.ts";
import { until } from "../support/until.ts";
import { DiskFolder, modelDigest, shape, writeSpans } from "./disk-world.ts";

setDefaultTimeout(600_000);

/** 28 blocks together. */
const spans = [countUp(0, 33), countUp(13, 9), countUp(26, 40), countUp(39, 22)];

function openWorld(blockCount: number, hostSlots: number, pipelined = false): TinyWorld {
  const options = { ...shape, blockCount };
  const backend = pipelined
    ? new FakeDevice({ shape: options, hostSlots })
    : new FakeBackend(options, undefined, { hostSlots });
  return new TinyWorld({ backend, modelDigest });
}

const answerOf = (message: Parameters<typeof referenceAnswer>[0]) =>
  referenceAnswer(message, { ...fakeShape, ...shape }, eosTokenIds).tokenIds;

function hostOf({ engine }: TinyWorld) {
  const { host } = engine.tiers;
  if (host === undefined) throw new Error("the world has no host memory");
  return host;
}

/** Computes and waits until the host has it. */
async function ask(world: TinyWorld, message: Parameters<typeof referenceAnswer>[0]): Promise<void> {
  world.engine.submit(message);
  await world.settle();
  await hostOf(world).settled();
}

/** Fills the pool with other text, so that nothing of before is left on the device. */
async function crowdOut(world: TinyWorld): Promise<void> {
  const tokens = world.backend.shape.blockCount * world.backend.shape.blockTokens - 8;
  world.engine.submit(
    submitPlan("crowd", { question: countUp(60, tokens) }, { params: { maxTokens: 1 }, reuse: false }),
  );
  await world.settle();
}

const keysOf = (message: Parameters<typeof referenceAnswer>[0]): BlockKey[] =>
  message.plan.runs.flatMap(({ kind, blockKeys }) => (kind === "span" ? blockKeys : []));

/** What the KV events say is resident in a tier. */
function residentKeys(world: TinyWorld, tier: WorkerTier): Set<BlockKey> {
  const keys = new Set<BlockKey>();
  for (const event of world.kvEvents.filter((of) => (of.tier ?? "device") === tier)) {
    for (const key of event.blockKeys) {
      if (event.type === "removed" ? !keys.delete(key) : keys.has(key)) throw new Error(`${event.type} twice`);
      if (event.type === "stored") keys.add(key);
    }
  }
  return keys;
}

function expectQuiet(world: TinyWorld): void {
  const { cache, pool, loads } = hostOf(world);
  expect(loads.isBusy).toBe(false);
  expect(pool.availableCount).toBe(pool.blockCount);
  for (const [tier, held] of [["device", world.engine.cache] as const, ["host", cache] as const]) {
    expect([...residentKeys(world, tier)].toSorted()).toEqual([...held.resident()].map(([key]) => key).toSorted());
  }
}

describe("spans that left the device", () => {
  test("come back from the host, at another place, and are not computed again", async () => {
    const world = openWorld(40, 64);
    await ask(world, submitPlan("prepare", { spans }, { params: { maxTokens: 0 } }));
    await crowdOut(world);
    const rows = world.backend.rowCount;
    const message = submitPlan("a", { spans: spans.toReversed(), question: countUp(80, 5) });
    await ask(world, message);
    expect(world.tokensOf("a")).toEqual(answerOf(message));
    // Five tokens of the question and three of the answer (the last one is drawn only).
    expect(world.backend.rowCount - rows).toBe(8);
    expect(world.finishedOf("a").spans?.map(({ source }) => source)).toEqual(["host", "host", "host", "host"]);
    // Copies end in any order; a block that came before the one it continues would be dropped, and copied again.
    expect(hostOf(world).loads.counts.outcomes.dropped).toBe(0);
    await until(() => hostOf(world).pool.availableCount === 64, "nothing is under way", 20_000, 1);
    expectQuiet(world);
  });

  test("are nobody else's", async () => {
    const world = openWorld(40, 64);
    await ask(world, submitPlan("prepare", { spans }, { params: { maxTokens: 0 } }));
    await crowdOut(world);
    const message = submitPlan("a", { spans, question: countUp(80, 5), salt: "b3RoZXI=" as never });
    await ask(world, message);
    expect(world.tokensOf("a")).toEqual(answerOf(message));
    expect(world.finishedOf("a").usage.cachedTokens).toBe(0);
  });

  test("are shared by requests that ask at once, and one of those may leave", async () => {
    const world = openWorld(60, 64, true);
    await ask(world, submitPlan("prepare", { spans }, { params: { maxTokens: 0 } }));
    await crowdOut(world);
    const messages = ["a", "b", "c"].map((id, index) => submitPlan(id, { spans, question: countUp(80 + index, 5) }));
    for (const message of messages) world.engine.submit(message);
    await world.step();
    world.engine.abort("a");
    await world.settle();
    for (const message of messages.slice(1)) {
      expect(world.tokensOf(message.requestId)).toEqual(answerOf(message));
    }
    // Two blocks of the pool were left to the spans. Nothing came twice.
    expect(hostOf(world).loads.counts.bytes).toBe(26 * world.backend.mover.format.bytes);
  });
});

describe("a part of a run that the host has", () => {
  /** @param tokenMs what steps have shown that a token takes. @returns rows that are computed */
  async function rowsWhere(tokenMs: number): Promise<number> {
    const world = openWorld(40, 64);
    await ask(world, submitPlan("prepare", { spans }, { params: { maxTokens: 0 } }));
    await crowdOut(world);
    // The first copies show what a block takes: the clock stands still until a step is over.
    await ask(world, submitPlan("first", { spans: spans.slice(0, 1), question: countUp(70, 5) }));
    await crowdOut(world);
    world.engine.tiers.noteStep(1_000, 1_000 * tokenMs);
    const message = submitPlan("a", { spans, question: countUp(80, 5) }, { params: { maxTokens: 1 } });
    const rows = world.backend.rowCount;
    await ask(world, message);
    expect(world.tokensOf("a")).toEqual(answerOf(message));
    expectQuiet(world);
    return world.backend.rowCount - rows;
  }

  test("comes up where computing takes longer, and is computed where copying does", async () => {
    expect(await rowsWhere(1_000)).toBe(5);
    // Two blocks are still on the device.
    expect(await rowsWhere(1e-9)).toBe(5 + 104 - 8);
  });

  /** @returns blocks that come up for a question, where a token is computed in half of the time that it takes to come up */
  async function loadsWhere(isBesideStream: boolean): Promise<number> {
    const world = openWorld(80, 64);
    const { loads } = hostOf(world);
    await ask(world, submitPlan("prepare", { spans }, { params: { maxTokens: 0 } }));
    await crowdOut(world);
    await ask(world, submitPlan("first", { spans: spans.slice(0, 1), question: countUp(70, 5) }));
    await crowdOut(world);
    world.engine.tiers.noteStep(64, 64);
    const { loadCost = Number.NaN } = loads.loadCost;
    world.engine.tiers.noteStep(1e12, (1e12 * loadCost * loads.tokenCost.each) / 2);
    if (isBesideStream) {
      world.engine.submit(submitPlan("stream", { question: countUp(75, 5) }, { params: { maxTokens: 60 } }));
      await world.step();
      await world.step();
    }
    const before = loads.counts.bytes;
    const message = submitPlan("a", { spans, question: countUp(80, 5) }, { params: { maxTokens: 1 } });
    await ask(world, message);
    expect(world.tokensOf("a")).toEqual(answerOf(message));
    expectQuiet(world);
    return (loads.counts.bytes - before) / world.backend.mover.format.bytes;
  }

  test("comes up beside another request's tokens where it would be computed somewhat sooner: those wait for what is computed", async () => {
    expect(await loadsWhere(true)).toBeGreaterThan(await loadsWhere(false));
  });
});

/**
 * More blocks than have places in the line of copies.
 * @param timesAsFast as it is computed a token comes up
 * @param isBesideStream beside the tokens of another request
 * @returns rows that are computed for a question over all of them
 */
async function rowsOfManySpans(timesAsFast: number, isBesideStream: boolean): Promise<number> {
  const many = Array.from({ length: 12 }, (_, index) => countUp(7 * index, 128));
  const world = openWorld(420, 900);
  const { loads } = hostOf(world);
  await ask(world, submitPlan("prepare", { spans: many }, { params: { maxTokens: 0 } }));
  await crowdOut(world);
  await ask(world, submitPlan("first", { spans: many.slice(0, 1), question: countUp(70, 5) }));
  await crowdOut(world);
  world.engine.tiers.noteStep(64, 64);
  const { loadCost = Number.NaN } = loads.loadCost;
  world.engine.tiers.noteStep(1e12, 1e12 * loadCost * loads.tokenCost.each * timesAsFast);
  // Its prompt fills one block, and so does what it answers.
  if (isBesideStream) {
    world.engine.submit(submitPlan("stream", { question: countUp(75, 3) }, { params: { maxTokens: 60 } }));
    await world.step();
  }
  const [rows, answered] = [world.backend.rowCount, world.tokensOf("stream").length];
  const message = submitPlan("a", { spans: many, question: countUp(80, 5) }, { params: { maxTokens: 1 } });
  await ask(world, message);
  expect(world.tokensOf("a")).toEqual(answerOf(message));
  expectQuiet(world);
  return world.backend.rowCount - rows - (world.tokensOf("stream").length - answered);
}

describe("runs that find the line of copies full", () => {
  test("wait for it where all of them come up sooner than they are computed", async () => {
    expect(await rowsOfManySpans(2, false)).toBe(5);
    expect(await rowsOfManySpans(2, true)).toBe(5);
  });

  test("are computed where computing is sooner", async () => {
    expect(await rowsOfManySpans(0.01, true)).toBeGreaterThan(1_400);
  });
});

test("what is prepared lies in the host's memory too, also when it is found on the device alone", async () => {
  const world = openWorld(60, 12);
  const message = submitPlan("prepare", { spans: spans.slice(0, 1) }, { params: { maxTokens: 0 } });
  await ask(world, message);
  // Other spans take its slots; on the device all have room.
  await ask(world, submitPlan("others", { spans: spans.slice(2) }, { params: { maxTokens: 0 } }));
  const [key] = keysOf(message).slice(-1);
  const isBelow = (): boolean => hostOf(world).cache.has(key as BlockKey);
  expect([world.engine.cache.has(key as BlockKey), isBelow()]).toEqual([true, false]);
  // A question does not push out what others keep there.
  await ask(
    world,
    submitPlan("a", { spans: spans.slice(0, 1), question: countUp(80, 2) }, { params: { maxTokens: 1 } }),
  );
  expect(isBelow()).toBe(false);
  await ask(world, { ...message, requestId: "again" });
  expect(isBelow()).toBe(true);
});

test("a chain leaves the host's memory from its tail, whether it was copied there or used last", async () => {
  const world = openWorld(40, 20);
  const prepare = (id: string, from: number) =>
    submitPlan(id, { spans: [countUp(from, 32)] }, { params: { maxTokens: 0 } });
  const [first, second, third] = [prepare("first", 0), prepare("second", 40), prepare("third", 80)];
  const left = (message: typeof first): number[] =>
    keysOf(message).flatMap((key, index) => (hostOf(world).cache.has(key) ? [index] : []));
  await ask(world, first);
  await ask(world, second);
  await crowdOut(world);
  // It comes up from the host, which uses it there.
  await ask(
    world,
    submitPlan("a", { spans: [countUp(0, 32)], question: countUp(70, 3) }, { params: { maxTokens: 1 } }),
  );
  await ask(world, third);
  // Eight blocks each, and 20 slots: the second one has lost its last four.
  expect([first, second, third].map(left)).toEqual([
    [0, 1, 2, 3, 4, 5, 6, 7],
    [0, 1, 2, 3],
    [0, 1, 2, 3, 4, 5, 6, 7],
  ]);
});

test("a pin in the host's memory leaves the device's pool alone", async () => {
  const world = openWorld(40, 16);
  const message = submitPlan("prepare", { spans: spans.slice(0, 1) }, { params: { maxTokens: 0 } });
  world.engine.pin(keysOf(message), true, "host");
  await ask(world, message);
  for (const [index, other] of [spans[2], spans[3], countUp(50, 40)].entries()) {
    await ask(world, submitPlan(`o${index}`, { spans: [other ?? []] }, { params: { maxTokens: 0 } }));
  }
  await crowdOut(world);
  const found = [hostOf(world).cache, world.engine.cache].map((cache) =>
    keysOf(message).filter((key) => cache.has(key)),
  );
  expect(found.map(({ length }) => length)).toEqual([9, 0]);
});

describe("eviction", () => {
  const message = submitPlan("prepare", { spans }, { params: { maxTokens: 0 } });

  test("reaches what is in the host's memory, which is overwritten", async () => {
    const world = openWorld(40, 64);
    await ask(world, message);
    await crowdOut(world);
    world.engine.evict(keysOf(message));
    const { slots } = world.backend.hostBlocks ?? { slots: [] };
    await until(() => hostOf(world).pool.availableCount === 64, "all slots are free", 20_000, 1);
    const left = slots.filter((slot) => slot.some((byte) => byte !== 0 && byte !== 0xee));
    expect([left.length, hostOf(world).cache.resident().next().done]).toEqual([0, true]);
    expectQuiet(world);
  });

  test("by a corpus's root key reaches all its spans, and one span what was computed from it", async () => {
    const world = openWorld(60, 64);
    await ask(world, submitPlan("a", { spans, question: countUp(80, 21) }));
    const before = [...hostOf(world).cache.resident()].length;
    expect(before).toBeGreaterThan(28);
    world.engine.evict([message.plan.runs[1]?.blockKeys.at(-1) as BlockKey]);
    // The question saw the span, so nothing of it is left; the other blocks of the span itself are.
    expect([...hostOf(world).cache.resident()].length).toBe(27);
    world.engine.evict([message.plan.runs[0]?.rootKey as BlockKey]);
    expect([...hostOf(world).cache.resident()].length).toBe(0);
  });

  test("reaches what is on its way down", async () => {
    const world = openWorld(40, 64);
    world.engine.submit(message);
    await until(
      async () => {
        await world.step();
        return (world.backend.hostBlocks as { underWay?: { store: number } }).underWay?.store !== 0;
      },
      "a copy is under way",
      20_000,
      0,
    );
    world.engine.evict([message.plan.runs[0]?.rootKey as BlockKey]);
    await world.settle();
    await until(() => hostOf(world).pool.availableCount === 64, "all slots are free", 20_000, 1);
    expect([...hostOf(world).cache.resident()]).toEqual([]);
    expectQuiet(world);
  });

  test("reaches what is on its way up, which is computed then and not kept", async () => {
    const world = openWorld(40, 64);
    await ask(world, message);
    await crowdOut(world);
    const again = submitPlan("a", { spans, question: countUp(80, 5) });
    world.engine.submit(again);
    await world.step();
    expect(hostOf(world).loads.isBusy).toBe(true);
    world.engine.evict([message.plan.runs[0]?.rootKey as BlockKey]);
    expect(hostOf(world).loads.isBusy).toBe(false);
    await world.settle();
    expect(world.tokensOf("a")).toEqual(answerOf(again));
    await until(() => hostOf(world).pool.availableCount === 64, "all slots are free", 20_000, 1);
    expectQuiet(world);
  });
});

test("files are read into the host's memory and written from it", async () => {
  using folder = new DiskFolder();
  const objects = await writeSpans(folder.path, spans, openWorld(40, 64));
  const world = openWorld(40, 64);
  world.engine.tiers.disk?.receive({ type: "catalog", folder: folder.path, objects, warm: true });
  await until(() => [...hostOf(world).cache.resident()].length === 28, "all is in the host's memory");
  expect([...world.engine.cache.resident()]).toEqual([]);
  const message = submitPlan("a", { spans, question: countUp(80, 5) });
  await ask(world, message);
  expect(world.tokensOf("a")).toEqual(answerOf(message));
  expect(world.backend.rowCount).toBe(8);
  const cold = openWorld(40, 64);
  cold.engine.tiers.disk?.receive({ type: "catalog", folder: folder.path, objects, warm: false });
  await ask(cold, message);
  expect(cold.tokensOf("a")).toEqual(answerOf(message));
  expect(cold.backend.rowCount).toBe(8);
  expect(cold.messages.flatMap((one) => (one.type === "loaded" ? one.objectIds : [])).length).toBe(objects.length);
});

test("crowded pools: random requests, aborts and evictions beside copies give the answers of the reference", async () => {
  const random = new Random(testSeed());
  const below = (end: number): number => random.integer(0, end - 1);
  for (let round = 0; round < effort(80, 3_000); round++) {
    const world = openWorld(36 + below(30), 8 + below(60), below(2) === 0);
    const aborted = new Set<string>();
    const messages = Array.from({ length: 3 + below(8) }, (_, index) => {
      const chosen = spans.filter(() => below(2) === 0);
      const parts = { system: countUp(below(3), below(9)), spans: chosen, question: countUp(below(90), 1 + below(9)) };
      return submitPlan(`q${index}`, parts);
    });
    for (const [index, message] of messages.entries()) {
      world.engine.submit(message);
      for (let steps = below(12); steps > 0; steps--) await world.step();
      if (below(6) === 0) {
        world.engine.abort(`q${index}`);
        aborted.add(`q${index}`);
      }
      if (below(5) === 0) {
        const keys = keysOf(message);
        world.engine.evict(below(2) === 0 ? keys : [message.plan.runs[0]?.rootKey as BlockKey]);
      }
      if (below(4) === 0) await world.settle();
    }
    await world.settle();
    for (const message of messages) {
      if (aborted.has(message.requestId)) continue;
      const found = [round, message.requestId, world.tokensOf(message.requestId)];
      expect(found).toEqual([round, message.requestId, answerOf(message)]);
    }
    expect((world.backend as { faults?: readonly string[] }).faults ?? []).toEqual([]);
    const { pool } = hostOf(world);
    await until(() => pool.availableCount === pool.blockCount, "nothing is under way", 20_000, 1);
    expectQuiet(world);
    world.engine.checkInvariants();
  }
});
