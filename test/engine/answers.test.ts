/** Every way to the same answer: cold, cached, chunked, batched, without reuse, reordered. */
import { describe, expect, test } from "bun:test";
import { eosTokenIds, TinyWorld } from "./harness.ts";
import { countUp, type PlanParts, submitPlan } from "./plans.ts";
import { referenceAnswer } from "./reference.ts";

const parts: PlanParts = {
  system: countUp(1, 5),
  spans: [countUp(20, 6), countUp(40, 4)],
  question: countUp(60, 3),
};

describe("answers", () => {
  test("cold, then cached: the same tokens, and only the open run is computed", async () => {
    const world = new TinyWorld();
    world.engine.submit(submitPlan("cold", parts));
    await world.settle();
    world.engine.submit(submitPlan("warm", parts));
    await world.settle();
    const expected = referenceAnswer(submitPlan("x", parts), world.backend.shape, eosTokenIds);
    expect(world.tokensOf("cold")).toEqual(expected.tokenIds);
    expect(world.tokensOf("warm")).toEqual(expected.tokenIds);
    expect(world.finishedOf("cold").usage).toEqual({
      promptTokens: 18,
      completionTokens: 4,
      cachedTokens: 0,
      cacheWriteTokens: 18,
    });
    expect(world.finishedOf("warm").usage.cachedTokens).toBe(15);
    expect(world.finishedOf("warm").spans).toEqual([
      { id: "span-0", tokens: 6, source: "device" },
      { id: "span-1", tokens: 4, source: "device" },
    ]);
  });
});
