/** Loads in the engine: who waits, what is computed, whose blocks are taken; with the invariants after every step. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { renameSync } from "node:fs";
import { join } from "node:path";
import type { KvObject } from "../../worker/contract/kv-object.ts";
import { eosTokenIds, TinyWorld } from "../engine/harness.ts";
import { countUp, submitPlan } from "../engine/plans.ts";
import { referenceAnswer } from "../engine/reference.ts";
import { Random } from "../native/random.ts";
import { effort } from "../support/effort.ts";
import { fakeShape } from "../support/fake-backend.ts";
import { testSeed } from "../support/seed.ts";
import { until } from "../support/until.ts";
import { DiskFolder, modelDigest, openWorld, shape, writeSpans } from "./disk-world.ts";

setDefaultTimeout(600_000);

const spans = Array.from({ length: 6 }, (_, index) => countUp(13 * index, 9 + 7 * index));
/** 35 blocks: two objects. */
const long = countUp(50, 138);
let folder: DiskFolder;
let objects: KvObject[];
beforeAll(async () => {
  folder = new DiskFolder();
  objects = await writeSpans(folder.path, [...spans, long]);
});
afterAll(() => folder[Symbol.dispose]());

function worldWithFiles(blockCount?: number, warm = false): TinyWorld {
  const world = openWorld(blockCount);
  world.engine.tiers.disk?.receive({ type: "catalog", folder: folder.path, objects, warm });
  return world;
}

const answerOf = (message: Parameters<typeof referenceAnswer>[0]) =>
  referenceAnswer(message, { ...fakeShape, ...shape }, eosTokenIds).tokenIds;

const sum = (counts: readonly number[]): number => counts.reduce((total, count) => total + count, 0);

describe("requests over spans in files", () => {
  test("compute their own text alone, and share what is loaded", async () => {
    const world = worldWithFiles();
    const messages = ["a", "b", "c"].map((id, index) =>
      submitPlan(id, { spans: [long, ...spans], question: countUp(80 + index, 5) }),
    );
    for (const message of messages) world.engine.submit(message);
    await world.settle();
    for (const message of messages) expect(world.tokensOf(message.requestId)).toEqual(answerOf(message));
    // Five tokens of a question and three of an answer each are computed (the last one is drawn only).
    expect(world.backend.rowCount).toBe(3 * 8);
    const loaded = world.messages.flatMap((one) => (one.type === "loaded" ? one.objectIds : []));
    expect(loaded.toSorted()).toEqual(objects.map(({ id }) => id).toSorted());
    const found = world.finishedOf("a").usage.cachedTokens;
    const { lackedTokens, broughtTokens, tiers } = world.engine.stats();
    // Who is admitted later lacks less; only the questions are not brought.
    expect(lackedTokens - broughtTokens).toBe(3 * 5);
    expect(broughtTokens).toBeGreaterThanOrEqual(found);
    const outcomes = { loaded: objects.length, late: 0, failed: 0, dropped: 0 };
    expect(tiers).toMatchObject([{ tier: "disk", loads: outcomes, writtenBytes: 0 }]);
    expect(tiers[0]?.readBytes).toBeGreaterThan(found);
    expect(found).toBe(sum([long, ...spans].map(({ length }) => length)));
  });

  test("that were named are read before anybody asks, and not read again", async () => {
    const world = worldWithFiles();
    const [named, gone] = [objects[5], objects[4]];
    world.engine.tiers.disk?.receive({ type: "forget", objectIds: [gone?.id ?? ""] });
    world.engine.tiers.disk?.receive({
      type: "prefetch",
      objectIds: [gone?.id ?? "", "0".repeat(32), named?.id ?? ""],
    });
    await until(() => world.messages.some(({ type }) => type === "loaded"), "it is read");
    const message = submitPlan("a", { spans: [spans[5] ?? long], question: countUp(80, 5) });
    world.engine.submit(message);
    await world.settle();
    expect([world.tokensOf("a"), world.backend.rowCount]).toEqual([answerOf(message), 8]);
    expect(world.messages.filter(({ type }) => type === "loaded")).toHaveLength(1);
  });

  test("are said to be of the disk until they are evicted", async () => {
    const world = worldWithFiles();
    const sources = async (id: string, tokens: readonly Int32Array[]) => {
      world.engine.submit(submitPlan(id, { spans: tokens, question: countUp(80, 5) }));
      await world.settle();
      return world.finishedOf(id).spans.map(({ source }) => source);
    };
    const fresh = countUp(7, 20);
    expect(await sources("a", [spans[0], fresh])).toEqual(["disk", "computed"]);
    expect(await sources("b", [spans[0], fresh])).toEqual(["disk", "device"]);
    world.engine.tiers.disk?.receive({ type: "forget", objectIds: objects.map(({ id }) => id) });
    world.engine.evict(objects.map(({ lastKey }) => lastKey));
    world.engine.evict([objects[0]?.rootKey ?? ("" as never)]);
    expect(await sources("c", [spans[0]])).toEqual(["computed"]);
    expect(await sources("d", [spans[0]])).toEqual(["device"]);
  });

  test("find nothing of another salt", async () => {
    const world = worldWithFiles();
    const message = submitPlan("a", { spans: [long], question: countUp(80, 5), salt: "b3RoZXI=" as never });
    world.engine.submit(message);
    await world.settle();
    expect(world.tokensOf("a")).toEqual(answerOf(message));
    expect(world.finishedOf("a").usage.cachedTokens).toBe(0);
    expect(world.messages.some(({ type }) => type === "loaded")).toBe(false);
  });

  test("are computed when the object is forgotten meanwhile, and nothing of it comes back", async () => {
    const world = worldWithFiles();
    const message = submitPlan("a", { spans: [long], question: countUp(80, 5) });
    world.engine.submit(message);
    const step = world.step();
    const mine = objects.filter(({ rootKey, position, tokenCount }) => rootKey !== "" && position + tokenCount > 44);
    world.engine.tiers.disk?.receive({ type: "forget", objectIds: mine.map(({ id }) => id) });
    world.engine.evict([objects[0]?.rootKey ?? ("" as never)]);
    await step;
    await world.settle();
    expect(world.tokensOf("a")).toEqual(answerOf(message));
    await Bun.sleep(20);
    expect([...world.engine.cache.resident()].length).toBe(0);
    expect(world.engine.tiers.disk?.loads.isBusy).toBe(false);
  });

  test("go on when the client leaves while they wait", async () => {
    const world = worldWithFiles();
    world.engine.submit(submitPlan("a", { spans: [long], question: countUp(80, 5) }));
    const step = world.step();
    world.engine.abort("a");
    await step;
    const message = submitPlan("b", { spans: [long], question: countUp(80, 5) });
    world.engine.submit(message);
    await world.settle();
    expect(world.tokensOf("b")).toEqual(answerOf(message));
  });
});

describe("what is loaded without being asked for", () => {
  test("fills three quarters of the pool at most, and only empty blocks", async () => {
    const total = sum([...spans, long].map(({ length }) => Math.ceil(length / 4)));
    const world = worldWithFiles(total, true);
    const used = () => world.engine.stats().cachedBlocks;
    await until(() => used() >= Math.floor((total * 3) / 4), "the pool is warm");
    await Bun.sleep(30);
    expect(used()).toBe(Math.ceil((total * 3) / 4));
    expect(world.engine.stats().evictedBlocks).toBe(0);
    world.engine.checkInvariants();
    const small = worldWithFiles(1_000, true);
    await until(() => small.engine.stats().cachedBlocks === total, "all is loaded");
    const message = submitPlan("a", { spans, question: countUp(80, 5) });
    small.engine.submit(message);
    await small.settle();
    expect(small.backend.rowCount).toBe(8);
    expect(small.tokensOf("a")).toEqual(answerOf(message));
  });

  test("is not held against a file when the pool had no room for all of it", async () => {
    const world = worldWithFiles(44, true);
    const loads = () => world.engine.stats().cachedBlocks;
    await until(() => loads() >= 33, "three quarters are in use");
    await Bun.sleep(20);
    // The last text was begun only; who asks for it finds it whole.
    const last = spans.slice(-1);
    const message = submitPlan("a", { spans: last, question: countUp(80, 5) });
    world.engine.submit(message);
    await world.settle();
    expect(world.finishedOf("a").usage.cachedTokens).toBe(sum(last.map(({ length }) => length)));
    expect(world.tokensOf("a")).toEqual(answerOf(message));
  });

  test("is no part of a chain whose beginning is not there", async () => {
    const parts = objects.slice(-2);
    expect(parts.map(({ position }) => position)).toEqual([0, 128]);
    const world = openWorld();
    const receive = (warm: readonly KvObject[]) =>
      world.engine.tiers.disk?.receive({ type: "catalog", folder: folder.path, objects: warm, warm: true });
    receive(parts.slice(1));
    await until(() => world.messages.some(({ type }) => type === "warm"), "what can be loaded is loaded");
    expect([...world.engine.cache.resident()]).toEqual([]);
    // With its beginning it is.
    receive(parts);
    await until(() => world.engine.stats().cachedBlocks === 35, "all of it is loaded");
  });

  test("is written to no pool that moves K", () => {
    const world = new TinyWorld({ shape, modelDigest, positions: "relocate" });
    expect(world.engine.tiers.disk).toBeUndefined();
  });
});

test("after eight failures nothing is read for a while, and everything is answered", async () => {
  using other = new DiskFolder();
  const world = openWorld();
  const many = Array.from({ length: 10 }, (_, index) => countUp(7 * index, 4 + index));
  const written = await writeSpans(other.path, many);
  for (const { id } of written) renameSync(join(other.path, id), join(other.path, `${id}.gone`));
  world.engine.tiers.disk?.receive({ type: "catalog", folder: other.path, objects: written, warm: false });
  for (const [index, span] of many.entries()) {
    const message = submitPlan(`q${index}`, { spans: [span], question: countUp(80, 5) });
    world.engine.submit(message);
    await world.settle();
    expect(world.tokensOf(`q${index}`)).toEqual(answerOf(message));
  }
  expect(world.messages.filter(({ type }) => type === "load failed").length).toBe(8);
});

test("crowded pools: random requests, aborts and evictions beside loads give the answers of the reference", async () => {
  const random = new Random(testSeed());
  const below = (end: number): number => random.integer(0, end - 1);
  for (let round = 0; round < effort(60, 2_000); round++) {
    const world = worldWithFiles(84 + below(40), below(2) === 0);
    const aborted = new Set<string>();
    const messages = Array.from({ length: 2 + below(6) }, (_, index) => {
      const chosen = spans.filter(() => below(2) === 0);
      const all = below(3) === 0 ? [...chosen, long] : chosen;
      return submitPlan(`q${index}`, { spans: all, question: countUp(below(90), 1 + below(9)) });
    });
    for (const [index, message] of messages.entries()) {
      world.engine.submit(message);
      for (let steps = below(3); steps > 0; steps--) await world.step();
      if (below(6) === 0) {
        world.engine.abort(`q${index}`);
        aborted.add(`q${index}`);
      }
      if (below(5) === 0) {
        const { id, lastKey } = objects[below(objects.length)] as KvObject;
        if (below(2) === 0) world.engine.tiers.disk?.receive({ type: "forget", objectIds: [id] });
        world.engine.evict([lastKey]);
      }
    }
    await world.settle();
    for (const message of messages) {
      if (aborted.has(message.requestId)) continue;
      const found = [round, message.requestId, world.tokensOf(message.requestId)];
      expect(found).toEqual([round, message.requestId, answerOf(message)]);
    }
    await until(() => world.engine.tiers.disk?.loads.isBusy === false, "no load is left", 20_000, 1);
    world.engine.checkInvariants();
  }
});
