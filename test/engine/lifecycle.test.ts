/** Ends other than an answer: aborts, evictions, failures, drain; and the loop that sleeps when idle. */
import { describe, expect, test } from "bun:test";
import type { Batch } from "../../worker/contract/batch.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { FakeBackend } from "../support/fake-backend.ts";
import { residentKeys } from "../support/resident-keys.ts";
import { eosTokenIds, TinyWorld } from "./harness.ts";
import { blendRuns, countUp, makeRuns, type PlanParts, submitPlan, submitRuns } from "./plans.ts";
import { referenceAnswer } from "./reference.ts";

const parts: PlanParts = { system: countUp(1, 5), spans: [countUp(20, 6)], question: countUp(60, 9) };
const long = { params: { maxTokens: 8, ignoreEos: true } };

/** Fails every step that holds this token. */
function failOn(tokenId: number): (batch: Batch) => void {
  return (batch) => {
    if (batch.tokenIds.includes(tokenId)) throw new Error("out of memory");
  };
}

describe("abort", () => {
  for (let steps = 0; steps < 9; steps++) {
    test(`after ${steps} steps frees everything at once and ends once`, async () => {
      const world = new TinyWorld({ limits: { stepTokens: 5 } });
      world.engine.submit(submitPlan("r", parts, long));
      for (let i = 0; i < steps; i++) await world.step();
      world.engine.abort("r");
      world.engine.abort("r");
      world.engine.checkInvariants();
      expect(world.engine.stats()).toMatchObject({ usedBlocks: 0, runningRequests: 0, waitingRequests: 0 });
      const messageCount = world.messages.length;
      expect(await world.step()).toBe(false);
      expect(world.messages).toHaveLength(messageCount);
      expect(world.finishedOf("r").reason).toBe("abort");
      const expected = referenceAnswer(submitPlan("r", parts, long), world.backend.shape, eosTokenIds).tokenIds;
      expect(world.tokensOf("r")).toEqual(expected.slice(0, world.tokensOf("r").length));
    });
  }

  test("in the queue, preempted, and of an id nobody knows", async () => {
    const world = new TinyWorld();
    for (const [name, from] of Object.entries({ a: 1, b: 20, c: 40 })) {
      world.engine.submit(submitPlan(name, { question: countUp(from, 12) }, { params: { maxTokens: 16 } }));
    }
    world.engine.abort("nobody");
    world.engine.abort("c");
    expect(world.finishedOf("c").timings).toEqual({ queueMs: 0, prefillMs: 0, ttftMs: 0 });
    while (world.engine.stats().preemptions === 0) await world.step();
    world.engine.abort("b");
    await world.settle();
    expect(world.finishedOf("b").usage.completionTokens).toBeGreaterThan(0);
  });

  test("while its step computes: nothing of that step is sampled, stored or leaked", async () => {
    const world = new TinyWorld({ onForward: () => world.engine.abort("r") });
    world.engine.submit(submitPlan("r", { question: countUp(1, 6) }));
    await world.step();
    expect(world.messages.map((message) => message.type)).toEqual(["finished"]);
    expect(world.engine.stats().freeBlocks).toBe(8);
  });
});

describe("evict", () => {
  test("blocks in use are forgotten at once, not looked up again, and freed when released", async () => {
    const world = new TinyWorld();
    world.engine.submit(submitPlan("r", parts, long));
    for (let i = 0; i < 3; i++) await world.step();
    world.engine.evict(residentKeys(world.engine));
    expect(residentKeys(world.engine)).toEqual([]);
    expect(world.engine.stats().usedBlocks).toBeGreaterThan(0);
    await world.settle();
    expect(world.tokensOf("r")).toHaveLength(8);
    expect(world.engine.stats()).toMatchObject({ usedBlocks: 0, cachedBlocks: 0, freeBlocks: 8 });
  });

  for (const moment of ["waits", "is half computed", "is being computed"]) {
    test(`what was evicted does not come back from a request that ${moment}`, async () => {
      const keys = makeRuns(parts, true)[1].blockKeys;
      const evict = (): void => world.engine.evict(keys);
      const onForward = moment === "is being computed" ? evict : undefined;
      const world: TinyWorld = new TinyWorld({ limits: { stepTokens: 9 }, onForward });
      world.engine.submit(submitPlan("r", parts, long));
      if (moment === "is half computed") await world.step();
      if (moment !== "is being computed") evict();
      await world.settle();
      expect(world.finishedOf("r").reason).toBe("length");
      expect(residentKeys(world.engine).filter((key) => keys.includes(key))).toEqual([]);
      expect(residentKeys(world.engine)).not.toEqual([]);
    });
  }
});

describe("failures", () => {
  test("a failed step fails what runs; the engine goes on with what waits, its cache intact", async () => {
    const world = new TinyWorld({ onForward: failOn(60), limits: { maxRunningRequests: 2 } });
    world.engine.submit(submitPlan("prepare", { spans: [countUp(20, 6)] }, { params: { maxTokens: 0 } }));
    await world.settle();
    const kept = residentKeys(world.engine);
    for (const name of ["a", "b", "c"]) {
      const from = name === "c" ? 70 : 60;
      world.engine.submit(submitPlan(name, { spans: [countUp(20, 6)], question: countUp(from, 4) }));
    }
    await world.step();
    for (const name of ["a", "b"]) {
      expect(world.failedOf(name)).toMatchObject({ code: "internal", message: "a step failed: out of memory" });
    }
    expect(residentKeys(world.engine)).toEqual(kept);
    await world.settle();
    expect(world.finishedOf("c")).toMatchObject({ reason: "length", usage: { cachedTokens: 6 } });
  });

  test("logits of the wrong size fail the step", async () => {
    class Short extends FakeBackend {
      override async forward(batch: Batch): Promise<Float32Array> {
        return (await super.forward(batch)).subarray(1);
      }
    }
    const world = new TinyWorld({ backend: new Short() });
    world.engine.submit(submitPlan("r", parts));
    await world.settle();
    expect(world.failedOf("r")?.message).toBe("a step failed: 96 logits came back, not 97");
  });

  test("deviations of the wrong number fail the step", async () => {
    class Short extends FakeBackend {
      override async deviations(batch: Batch): Promise<Float32Array> {
        return (await super.deviations(batch)).subarray(1);
      }
    }
    const world = new TinyWorld({ backend: new Short() });
    const runs = blendRuns([{ copied: countUp(1, 6) }], { recomputeRatio: 0.5 });
    world.engine.submit(submitRuns("r", runs, { params: { maxTokens: 0 } }));
    await world.settle();
    expect(world.failedOf("r")?.message).toBe("a step failed: 5 deviations came back, not 6");
  });

  test("a row that is not finite fails its own request, and what that request read is forgotten", async () => {
    class Broken extends FakeBackend {
      override async forward(batch: Batch): Promise<Float32Array> {
        const logits = await super.forward(batch);
        batch.logitRows.forEach((row, at) => {
          if (batch.tokenIds[row] === 66) logits[at * this.shape.vocabSize + 5] = Number.NaN;
        });
        return logits;
      }
    }
    const world = new TinyWorld({ backend: new Broken() });
    world.engine.submit(submitPlan("good", { spans: [countUp(20, 6)], question: countUp(1, 4) }));
    world.engine.submit(submitPlan("bad", { spans: [countUp(30, 6)], question: countUp(62, 5) }));
    await world.settle();
    expect(world.failedOf("bad")).toMatchObject({
      code: "internal",
      message: "sampling failed: logit of token 5 is NaN",
    });
    expect(world.finishedOf("good").reason).toBe("length");
    const goodKeys = makeRuns({ spans: [countUp(20, 6)], question: countUp(1, 4) }, true).flatMap(
      (run) => run.blockKeys,
    );
    expect(residentKeys(world.engine).filter((key) => !goodKeys.includes(key))).toEqual([]);
  });
});

describe("drain", () => {
  test("what was accepted ends, nothing new is taken, then it resolves", async () => {
    const world = new TinyWorld({ limits: { maxRunningRequests: 1 } });
    world.engine.submit(submitPlan("a", parts));
    world.engine.submit(submitPlan("b", parts));
    let drained = false;
    const draining = world.engine.drain().then(() => {
      drained = true;
    });
    world.engine.submit(submitPlan("late", parts));
    expect(world.failedOf("late")).toMatchObject({ code: "overloaded", message: "the worker is shutting down" });
    await world.step();
    expect(drained).toBe(false);
    await world.settle();
    await draining;
    expect([world.finishedOf("a").reason, world.finishedOf("b").reason]).toEqual(["length", "length"]);
  });

  test("an idle engine is drained at once", async () => {
    await new TinyWorld().engine.drain();
  });
});

describe("run", () => {
  test("sleeps when idle, wakes for a request, lets messages in between steps, and stops", async () => {
    let steps = 0;
    const backend = new FakeBackend({}, () => {
      steps += 1;
    });
    const ends: string[] = [];
    const firstEnd = Promise.withResolvers<void>();
    const engine = new Engine({
      backend,
      eosTokenIds,
      clock: () => 0,
      emit: (message) => {
        if (message.type !== "finished") return;
        ends.push(`${message.requestId} ${message.reason}`);
        firstEnd.resolve();
      },
    });
    const running = engine.run();
    await new Promise((resolve) => setImmediate(resolve));
    expect(steps).toBe(0);
    engine.submit(submitPlan("endless", { question: countUp(1, 2) }, { params: { maxTokens: 200, ignoreEos: true } }));
    setImmediate(() => engine.abort("endless"));
    await firstEnd.promise;
    expect(ends).toEqual(["endless abort"]);
    expect(steps).toBeLessThan(10);
    engine.submit(submitPlan("next", { question: countUp(1, 2) }));
    await engine.drain();
    engine.stop();
    await running;
    expect(ends).toEqual(["endless abort", "next length"]);
  });

  test("a request that comes just when the loop goes to sleep wakes it", async () => {
    for (let ticks = 0; ticks < 8; ticks++) {
      const { engine } = new TinyWorld();
      const running = engine.run();
      for (let i = 0; i < ticks; i++) await Promise.resolve();
      engine.submit(submitPlan("r", { question: countUp(1, 2) }));
      await engine.drain();
      engine.stop();
      await running;
    }
  });
});
