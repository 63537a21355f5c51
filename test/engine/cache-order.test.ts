/** What stays and what goes, in which order, in a pool of 8 blocks of 4 tokens. */
import { describe, expect, test } from "bun:test";
import type { BlockKey } from "../../worker/contract/units.ts";
import { residentKeys } from "../support/resident-keys.ts";
import { TinyWorld } from "./harness.ts";
import { countUp, makeRuns, type PlanParts, submitPlan } from "./plans.ts";

const prepare = { params: { maxTokens: 0 } };

/** A text of `blockCount` blocks, the last one partly filled. */
function text(from: number, blockCount: number): PlanParts {
  return { spans: [countUp(from, 4 * blockCount - 1)] };
}

function keysOf(parts: PlanParts): BlockKey[] {
  return makeRuns(parts, false).flatMap((run) => [...run.blockKeys]);
}

async function prepareAll(world: TinyWorld, ...texts: PlanParts[]): Promise<void> {
  for (const parts of texts) {
    world.engine.submit(submitPlan(`r${world.messages.length}`, parts, prepare));
    await world.settle();
  }
}

function removedKeys(world: TinyWorld): BlockKey[] {
  return world.kvEvents.flatMap((event) => (event.type === "removed" ? event.blockKeys : []));
}

describe("order of eviction", () => {
  const [a, b, c] = [text(1, 3), text(20, 4), text(40, 5)];
  const [a0, a1, a2] = keysOf(a);
  const [b0, b1, b2, b3] = keysOf(b);

  test("stored as computed; the oldest text goes first, each from its tail, only as far as needed", async () => {
    const world = new TinyWorld({ limits: { stepTokens: 32 } });
    await prepareAll(world, a, b, c);
    expect(world.kvEvents).toMatchObject([
      { sequence: 1, type: "stored", blockKeys: [a0, a1, a2] },
      { sequence: 2, type: "stored", blockKeys: [b0, b1, b2, b3] },
      { sequence: 3, type: "removed", blockKeys: [a2, a1, a0, b3] },
      { sequence: 4, type: "stored", blockKeys: keysOf(c) },
    ]);
    const chained = world.kvEvents[1];
    expect(chained?.type === "stored" && chained.previousKeys.slice(1)).toEqual([b0, b1, b2]);
    expect(chained?.type === "stored" && chained.tokenCounts).toEqual([4, 4, 4, 3]);
    expect(world.engine.stats()).toMatchObject({ evictedBlocks: 4, cachedBlocks: 8, usedBlocks: 0, freeBlocks: 0 });
  });

  test("of several texts released together the last goes first", async () => {
    const world = new TinyWorld();
    const spans = [countUp(1, 8), countUp(20, 3), countUp(30, 8)];
    await prepareAll(world, { spans }, b, text(60, 3));
    const [s0, s1, t0, u0, u1] = keysOf({ spans });
    expect(removedKeys(world)).toEqual([u1, u0, t0, s1]);
    expect(residentKeys(world.engine)).toContain(s0);
  });

  test("a text used again is the youngest", async () => {
    const world = new TinyWorld();
    await prepareAll(world, a, b, a, c);
    expect(removedKeys(world)).toEqual([b3, b2, b1, b0]);
  });

  test("what is left of a text is its beginning, and only the rest is computed again", async () => {
    const world = new TinyWorld();
    await prepareAll(world, a, b, c);
    const rowsBefore = world.backend.rowCount;
    await prepareAll(world, b);
    expect(world.backend.rowCount - rowsBefore).toBe(3);
  });

  test("blocks without content are used before any cached one", async () => {
    const world = new TinyWorld();
    await prepareAll(world, a);
    world.engine.submit(submitPlan("private", b, { ...prepare, reuse: false }));
    await world.settle();
    await prepareAll(world, text(60, 5));
    expect(removedKeys(world)).toEqual([]);
  });

  test("evict frees at once; the freed memory is used before older cached blocks", async () => {
    const world = new TinyWorld();
    await prepareAll(world, a, b);
    world.engine.evict(keysOf(b));
    expect(removedKeys(world)).toEqual([b0, b1, b2, b3]);
    await prepareAll(world, c);
    expect(removedKeys(world)).toHaveLength(4);
    expect(residentKeys(world.engine).sort()).toEqual([...keysOf(a), ...keysOf(c)].sort());
  });
});

describe("hits", () => {
  test("two orders of the same spans hit wholly, partly filled last blocks too", async () => {
    const world = new TinyWorld();
    const spans = [countUp(1, 6), countUp(20, 3), countUp(40, 5)];
    await prepareAll(world, { spans });
    const question = countUp(60, 2);
    world.engine.submit(submitPlan("other order", { spans: spans.toReversed(), question }));
    await world.settle();
    const { usage, spans: reports } = world.finishedOf("other order");
    expect(usage).toMatchObject({ promptTokens: 16, cachedTokens: 14 });
    expect(reports.map((report) => report.source)).toEqual(["device", "device", "device"]);
  });

  test("of an open run that is wholly resident the last block is computed again", async () => {
    const world = new TinyWorld();
    const question = countUp(1, 8);
    world.engine.submit(submitPlan("first", { question }, { params: { maxTokens: 1 } }));
    await world.settle();
    world.engine.submit(submitPlan("second", { question }, { params: { maxTokens: 1 } }));
    await world.settle();
    expect(world.finishedOf("second").usage).toMatchObject({ cachedTokens: 4, cacheWriteTokens: 0 });
    expect(world.tokensOf("second")).toEqual(world.tokensOf("first"));
  });

  test("a closed run that is wholly resident costs no step", async () => {
    const world = new TinyWorld();
    await prepareAll(world, text(1, 3));
    const steps = world.backend.stepCount;
    await prepareAll(world, text(1, 3));
    expect(world.backend.stepCount).toBe(steps);
  });

  test("generated tokens are kept as their blocks fill, chained from the prompt's last key", async () => {
    const world = new TinyWorld();
    const params = { maxTokens: 6, ignoreEos: true };
    world.engine.submit(submitPlan("turn 1", { question: countUp(1, 5) }, { params }));
    await world.settle();
    const dialogue = Int32Array.from([...countUp(1, 5), ...world.tokensOf("turn 1")]);
    world.engine.submit(submitPlan("turn 2", { question: dialogue }));
    await world.settle();
    // 11 tokens; the last generated one was never computed, so two blocks of 4 are resident.
    expect(world.finishedOf("turn 2").usage).toMatchObject({ promptTokens: 11, cachedTokens: 8 });
  });

  test("another salt hits nothing", async () => {
    const world = new TinyWorld();
    await prepareAll(world, text(1, 3));
    const salt = "b3RoZXI=" as NonNullable<PlanParts["salt"]>;
    world.engine.submit(submitPlan("stranger", { ...text(1, 3), salt }, prepare));
    await world.settle();
    expect(world.finishedOf("stranger").usage.cachedTokens).toBe(0);
  });
});
