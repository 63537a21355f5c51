/** Requests in progress share what they compute. */
import { describe, expect, test } from "bun:test";
import { residentKeys } from "../support/resident-keys.ts";
import { eosTokenIds, TinyWorld } from "./harness.ts";
import { countUp, makeRuns, type PlanParts, submitPlan, submitRuns } from "./plans.ts";
import { referenceAnswer } from "./reference.ts";

const span = countUp(20, 12);
const first: PlanParts = { spans: [span], question: countUp(60, 2) };
const second: PlanParts = { spans: [countUp(40, 3), span], question: countUp(70, 2) };
const shape = { blockCount: 16 };
const once = { params: { maxTokens: 1 } };

function expectReference(world: TinyWorld, name: string, parts: PlanParts): void {
  const expected = referenceAnswer(submitPlan(name, parts, once), world.backend.shape, eosTokenIds);
  expect(world.tokensOf(name)).toEqual(expected.tokenIds);
}

describe("sharing in flight", () => {
  test("a span that two requests miss at once is computed once", async () => {
    const world = new TinyWorld({ shape });
    world.engine.submit(submitPlan("a", first, once));
    world.engine.submit(submitPlan("b", second, once));
    await world.settle();
    for (const [name, parts] of Object.entries({ a: first, b: second })) expectReference(world, name, parts);
    expect(world.backend.rowCount).toBe(12 + 2 + 3 + 2);
    expect(world.finishedOf("a").usage).toMatchObject({ cachedTokens: 0, cacheWriteTokens: 12 });
    expect(world.finishedOf("b").usage).toMatchObject({ cachedTokens: 12, cacheWriteTokens: 3 });
    expect(world.finishedOf("b").spans.map((report) => report.source)).toEqual(["computed", "device"]);
  });

  test("when the one that computes it aborts, the other goes on from what is there", async () => {
    const world = new TinyWorld({ shape, limits: { stepTokens: 8 } });
    world.engine.submit(submitPlan("a", first, once));
    world.engine.submit(submitPlan("b", second, once));
    await world.step();
    world.engine.abort("a");
    await world.settle();
    expectReference(world, "b", second);
    expect(world.backend.rowCount).toBe(12 + 3 + 2);
    expect(world.finishedOf("b").usage.cachedTokens).toBe(8);
  });

  test("an abort while its step computes leaves nothing half-written to be found", async () => {
    const world = new TinyWorld({ shape, onForward: () => world.engine.abort("a") });
    world.engine.submit(submitPlan("a", first, once));
    world.engine.submit(submitPlan("b", second, once));
    await world.settle();
    expect(world.finishedOf("a")).toMatchObject({ reason: "abort", usage: { cacheWriteTokens: 0 } });
    expectReference(world, "b", second);
  });

  test("a closed run waits for a span that another request computes in this step", async () => {
    const world = new TinyWorld({ shape, limits: { stepTokens: 64 } });
    const parts: PlanParts = { spans: [span], question: countUp(60, 8) };
    world.engine.submit(submitPlan("a", { spans: [span] }, { params: { maxTokens: 0 } }));
    world.engine.submit(submitPlan("b", parts, { params: { maxTokens: 0 } }));
    await world.settle();
    const longer: PlanParts = { spans: [span], question: countUp(60, 10) };
    world.engine.submit(submitPlan("c", longer, once));
    await world.settle();
    expect(world.finishedOf("c").usage.cachedTokens).toBe(12 + 8);
    expectReference(world, "c", longer);
  });

  test("choices of one prompt compute it once, the last block apart", async () => {
    const world = new TinyWorld({ shape, limits: { stepTokens: 64 } });
    for (const name of ["0", "1", "2"]) {
      world.engine.submit(submitPlan(name, { question: countUp(1, 10) }, { ...once, sampling: { temperature: 1 } }));
    }
    await world.settle();
    expect(world.backend.rowCount).toBe(10 + 2 + 2);
  });

  test("a span that stands twice in a prompt is computed once", async () => {
    const world = new TinyWorld();
    const twice: PlanParts = { spans: [span.subarray(0, 5), span.subarray(0, 5)], question: countUp(60, 2) };
    world.engine.submit(submitPlan("r", twice, once));
    await world.settle();
    expectReference(world, "r", twice);
    expect(world.backend.rowCount).toBe(5 + 2);
  });

  test("many short spans of several requests are computed in one step", async () => {
    const world = new TinyWorld({ shape, limits: { stepTokens: 64 } });
    const spans = [0, 1, 2, 3].map((i) => countUp(10 * i, 3));
    world.engine.submit(submitPlan("a", { spans }, { params: { maxTokens: 0 } }));
    world.engine.submit(submitPlan("b", { spans: [countUp(50, 3), countUp(60, 3)] }, { params: { maxTokens: 0 } }));
    await world.step();
    expect(world.finishedOf("a").reason).toBe("prepared");
    expect(world.finishedOf("b").reason).toBe("prepared");
    expect(world.backend.stepCount).toBe(1);
  });

  test("what would be chained from a block that is gone is not kept", async () => {
    const world = new TinyWorld();
    const question = countUp(1, 5);
    const generate = (maxTokens: number) => ({ params: { maxTokens, ignoreEos: true } });
    world.engine.submit(submitPlan("a", { question }, generate(4)));
    world.engine.submit(submitPlan("b", { question }, generate(12)));
    for (let i = 0; i < 5; i++) await world.step();
    expect(world.finishedOf("a").reason).toBe("length");
    // The second block was computed twice and is found under a's; b's own is not.
    const chain = residentKeys(world.engine);
    expect(chain).toHaveLength(2);
    world.engine.submit(submitPlan("fill", { spans: [countUp(20, 20)] }, { params: { maxTokens: 0 } }));
    await world.step();
    await world.step();
    expect(residentKeys(world.engine)).not.toContain(chain[1]);
    await world.settle();
    const stored = world.kvEvents.flatMap((event) => (event.type === "stored" ? event.previousKeys : []));
    expect(stored).not.toContain(chain[1]);
    expect(world.tokensOf("b")).toHaveLength(12);
  });

  test("a forced collision is computed anew, answered rightly and not kept", async () => {
    const world = new TinyWorld({ shape });
    const runs = makeRuns({ question: countUp(1, 9) }, true);
    const collided = runs.map((run) => ({ ...run, tokenIds: countUp(2, 9) }));
    const options = { params: { maxTokens: 6, ignoreEos: true } };
    world.engine.submit(submitRuns("a", runs, options));
    await world.settle();
    const keys = residentKeys(world.engine);
    world.engine.submit(submitRuns("b", collided, options));
    await world.settle();
    const expected = referenceAnswer(submitRuns("b", collided, options), world.backend.shape, eosTokenIds);
    expect(world.tokensOf("b")).toEqual(expected.tokenIds);
    expect(world.finishedOf("b").usage).toMatchObject({ cachedTokens: 0, cacheWriteTokens: 0 });
    expect(residentKeys(world.engine)).toEqual(keys);
  });

  test("behind a collided block nothing is looked up, even where the tokens agree again", async () => {
    const world = new TinyWorld({ shape, limits: { stepTokens: 4 } });
    const runs = makeRuns({ question: countUp(1, 9) }, true);
    const tokenIds = Int32Array.from([96, ...countUp(2, 8)]);
    const collided = submitRuns(
      "b",
      runs.map((run) => ({ ...run, tokenIds })),
    );
    world.engine.submit(submitRuns("a", runs));
    await world.settle();
    world.engine.submit(collided);
    await world.settle();
    expect(world.tokensOf("b")).toEqual(referenceAnswer(collided, world.backend.shape, eosTokenIds).tokenIds);
    expect(world.finishedOf("b").usage.cachedTokens).toBe(0);
  });
});
