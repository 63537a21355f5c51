/** Who runs when: budget, queue, admission, preemption. */
import { describe, expect, test } from "bun:test";
import type { Batch } from "../../worker/contract/batch.ts";
import { residentKeys } from "../support/resident-keys.ts";
import { eosTokenIds, TinyWorld } from "./harness.ts";
import { chainKeys, countUp, makeRuns, type PlanParts, type SubmitOptions, submitPlan } from "./plans.ts";
import { referenceAnswer } from "./reference.ts";

const long = { params: { maxTokens: 16, ignoreEos: true } };

function question(from: number, count: number): PlanParts {
  return { question: countUp(from, count) };
}

function rowCounts(batch: Batch): number[] {
  return Array.from(batch.pieceRows.subarray(1), (end, i) => end - batch.pieceRows[i]);
}

function endsOf(world: TinyWorld): string[] {
  return world.messages.flatMap((message) => (message.type === "finished" ? [message.requestId] : []));
}

function expectReference(world: TinyWorld, name: string, parts: PlanParts, options: SubmitOptions = long): void {
  const expected = referenceAnswer(submitPlan(name, parts, options), world.backend.shape, eosTokenIds);
  expect(world.tokensOf(name)).toEqual(expected.tokenIds);
}

describe("token budget", () => {
  test("a step is never longer; decodes come first and a long prompt fills the rest in pieces", async () => {
    const rows: number[][] = [];
    const onForward = (batch: Batch) => void rows.push(rowCounts(batch));
    const world = new TinyWorld({ shape: { blockCount: 32 }, limits: { stepTokens: 6 }, onForward });
    world.engine.submit(submitPlan("a", question(1, 4), { params: { maxTokens: 6, ignoreEos: true } }));
    await world.step();
    world.engine.submit(submitPlan("b", question(20, 14), { params: { maxTokens: 1 } }));
    await world.settle();
    expect(rows).toEqual([[4], [1, 5], [1, 5], [1, 4], [1], [1]]);
  });

  test("beside decodes a prompt gets fewer rows, alone all of them", async () => {
    const rows: number[][] = [];
    const limits = { stepTokens: 16, prefillTokensBesideDecodes: 3 };
    const world = new TinyWorld({
      shape: { blockCount: 32 },
      limits,
      onForward: (batch) => void rows.push(rowCounts(batch)),
    });
    world.engine.submit(submitPlan("a", question(1, 4), { params: { maxTokens: 3, ignoreEos: true } }));
    await world.step();
    world.engine.submit(submitPlan("b", question(20, 14), { params: { maxTokens: 1 } }));
    await world.settle();
    expect(rows).toEqual([[4], [1, 3], [1, 3], [8]]);
  });

  test("limits that cannot work together are refused", () => {
    const limits = { maxRunningRequests: 8, stepTokens: 7 };
    expect(() => new TinyWorld({ limits })).toThrow("stepTokens (7) is below maxRunningRequests (8)");
    const none = { prefillTokensBesideDecodes: 0 };
    expect(() => new TinyWorld({ limits: none })).toThrow("prefillTokensBesideDecodes is 0, not 1 or more");
  });
});

describe("order of prompts", () => {
  const limits = { stepTokens: 8 };
  const one = { params: { maxTokens: 1 } };
  const shape = { blockCount: 32 };

  test("a short prompt does not wait for a long one that came before, the long one keeps half of each step", async () => {
    const rows: number[][] = [];
    const world = new TinyWorld({ shape, limits, onForward: (batch) => void rows.push(rowCounts(batch)) });
    world.engine.submit(submitPlan("long", question(1, 40), one));
    await world.step();
    for (const name of ["b", "c"]) {
      world.engine.submit(submitPlan(name, name === "b" ? question(50, 6) : question(60, 3), one));
    }
    await world.settle();
    expect(endsOf(world)).toEqual(["c", "b", "long"]);
    expect(rows).toEqual([[8], [4, 3, 1], [4, 4], [7, 1], [8], [8], [1]]);
    for (const [name, parts] of Object.entries({ long: question(1, 40), b: question(50, 6), c: question(60, 3) })) {
      expectReference(world, name, parts, one);
    }
  });

  test("what a step leaves over goes to the prompt that came first", async () => {
    const rows: number[][] = [];
    const world = new TinyWorld({ shape, limits, onForward: (batch) => void rows.push(rowCounts(batch)) });
    world.engine.submit(submitPlan("long", question(1, 20), one));
    world.engine.submit(submitPlan("b", question(50, 2), one));
    await world.step();
    expect(rows).toEqual([[6, 2]]);
  });

  test("short prompts that keep coming do not starve a long one", async () => {
    const world = new TinyWorld({ shape, limits });
    world.engine.submit(submitPlan("long", question(1, 40), one));
    for (let i = 0; i < 10; i++) {
      world.engine.submit(submitPlan(`short-${i}`, { question: countUp(7 * i, 8), spans: [] }, one));
      await world.step();
    }
    expect(endsOf(world)).toContain("long");
  });

  test("spans and the question after them are computed in one step when it holds them", async () => {
    const rows: number[][] = [];
    const world = new TinyWorld({ shape, onForward: (batch) => void rows.push(rowCounts(batch)) });
    const parts = { system: countUp(1, 2), spans: [countUp(20, 5), countUp(30, 3)], question: countUp(60, 9) };
    world.engine.submit(submitPlan("a", parts, one));
    await world.settle();
    expect(rows).toEqual([[2, 5, 3, 6], [3]]);
    expectReference(world, "a", parts, one);
  });
});

describe("admission", () => {
  test("first come, first served, as many as may run", async () => {
    const world = new TinyWorld({ limits: { maxRunningRequests: 2 } });
    for (const name of ["a", "b", "c"]) world.engine.submit(submitPlan(name, question(1, 2)));
    await world.step();
    expect(world.engine.stats()).toMatchObject({ runningRequests: 2, waitingRequests: 1 });
    await world.settle();
    expect(endsOf(world)).toEqual(["a", "b", "c"]);
  });

  test("a prompt waits until the pool can hold it beside what was promised to others", async () => {
    const world = new TinyWorld({ limits: { stepTokens: 4 } });
    world.engine.submit(submitPlan("a", question(1, 20)));
    world.engine.submit(submitPlan("b", question(30, 16)));
    await world.step();
    expect(world.engine.stats()).toMatchObject({ runningRequests: 1, waitingRequests: 1, usedBlocks: 1 });
    await world.settle();
    expect(world.engine.stats().preemptions).toBe(0);
    expect(world.finishedOf("b").timings.queueMs).toBeGreaterThan(world.finishedOf("a").timings.queueMs);
  });

  test("hits count as held: a prompt that is resident is admitted where a new one would wait", async () => {
    const world = new TinyWorld();
    const prepared: PlanParts = { spans: [countUp(1, 20)] };
    world.engine.submit(submitPlan("prepare", prepared, { params: { maxTokens: 0 } }));
    await world.settle();
    for (const name of ["a", "b", "c"]) {
      world.engine.submit(submitPlan(name, { ...prepared, question: countUp(60, 2) }, { params: { maxTokens: 2 } }));
    }
    await world.step();
    expect(world.engine.stats()).toMatchObject({ runningRequests: 3, usedBlocks: 8 });
    await world.settle();
  });

  test("more than the pool is refused with its sizes, more than the queue as overloaded", async () => {
    const world = new TinyWorld({ limits: { maxWaitingRequests: 1 } });
    world.engine.submit(submitPlan("big", question(1, 33)));
    expect(world.failedOf("big")).toMatchObject({
      code: "prompt_too_long",
      message: "the prompt's 33 tokens take 9 blocks of 4, the KV pool has 8",
    });
    world.engine.submit(submitPlan("a", question(1, 2)));
    world.engine.submit(submitPlan("b", question(1, 2)));
    expect(world.failedOf("b")).toMatchObject({ code: "overloaded" });
    await world.settle();
    expect(world.finishedOf("a").reason).toBe("length");
  });
});

describe("preemption", () => {
  test("the request admitted last gives way, goes on later, and streams nothing twice", async () => {
    const world = new TinyWorld();
    const prompts = { a: question(1, 8), b: question(20, 8) };
    const all = { params: { maxTokens: 24, ignoreEos: true } };
    for (const [name, parts] of Object.entries(prompts)) world.engine.submit(submitPlan(name, parts, all));
    await world.settle();
    expect(world.engine.stats().preemptions).toBeGreaterThan(0);
    expect(endsOf(world)).toEqual(["a", "b"]);
    for (const [name, parts] of Object.entries(prompts)) {
      expectReference(world, name, parts, all);
      const usage = { promptTokens: 8, completionTokens: 24, cachedTokens: 0, cacheWriteTokens: 8 };
      expect(world.finishedOf(name).usage).toEqual(usage);
    }
    expect(world.engine.stats().computedTokens).toBeGreaterThan(2 * (8 + 23));
    // a filled the pool, so b was computed anew; it ends alone and all its full blocks are kept.
    const root = makeRuns(prompts.b, true)[0].rootKey;
    const chain = chainKeys(root, Int32Array.from([...countUp(20, 8), ...world.tokensOf("b")]));
    expect(residentKeys(world.engine)).toEqual(expect.arrayContaining(chain.slice(0, 7)));
  });

  test("a preempted request is admitted again before those that only waited", async () => {
    const world = new TinyWorld();
    for (const [name, parts] of Object.entries({ a: question(1, 12), b: question(20, 12), c: question(40, 20) })) {
      world.engine.submit(submitPlan(name, parts, { params: { maxTokens: 12, ignoreEos: true } }));
    }
    await world.settle();
    expect(world.engine.stats().preemptions).toBeGreaterThan(0);
    expect(endsOf(world)).toEqual(["a", "b", "c"]);
  });

  test("the same seed draws the same tokens, preempted or not", async () => {
    const sampling = { temperature: 1.3, seed: 11 };
    const alone = new TinyWorld();
    alone.engine.submit(submitPlan("b", question(20, 8), { ...long, sampling }));
    await alone.settle();
    const world = new TinyWorld();
    world.engine.submit(submitPlan("a", question(1, 8), { ...long, sampling }));
    world.engine.submit(submitPlan("b", question(20, 8), { ...long, sampling }));
    await world.settle();
    expect(world.engine.stats().preemptions).toBeGreaterThan(0);
    expect(world.tokensOf("b")).toEqual(alone.tokensOf("b"));
  });

  test("a request that fills the whole pool alone ends with its length", async () => {
    const world = new TinyWorld();
    world.engine.submit(submitPlan("a", question(1, 28), { params: { maxTokens: 100, ignoreEos: true } }));
    await world.settle();
    // 32 slots: 28 of the prompt, 4 generated, and one sampled from the last without a slot of its own.
    expect(world.finishedOf("a")).toMatchObject({ reason: "length", usage: { completionTokens: 5 } });
    expect(world.engine.stats()).toMatchObject({ usedBlocks: 0, runningRequests: 0, waitingRequests: 0 });
  });
});

test("stages are timed by the clock that was given", async () => {
  const world = new TinyWorld({ limits: { maxRunningRequests: 1, stepTokens: 4 } });
  world.engine.submit(submitPlan("a", question(1, 8), { params: { maxTokens: 2, ignoreEos: true } }));
  world.engine.submit(submitPlan("b", question(20, 8), { params: { maxTokens: 0 } }));
  await world.settle();
  // A step a millisecond: two of prefill (the second samples), one of decode; then b is admitted.
  expect(world.finishedOf("a").timings).toEqual({ queueMs: 1, prefillMs: 1, ttftMs: 2 });
  expect(world.finishedOf("b").timings).toEqual({ queueMs: 4, prefillMs: 1, ttftMs: 0 });
});
