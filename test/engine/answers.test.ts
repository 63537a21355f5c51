/** Every way to the same answer: cold, cached, in pieces, beside others, without reuse, preempted. */
import { describe, expect, test } from "bun:test";
import { randomRuns } from "../sim/plans.ts";
import { Choices } from "../sim/random.ts";
import { fc } from "../support/fast-check.ts";
import { residentKeys } from "../support/resident-keys.ts";
import { eosTokenIds, TinyWorld } from "./harness.ts";
import { countUp, type PlanParts, type SubmitOptions, submitPlan, submitRuns } from "./plans.ts";
import { referenceAnswer } from "./reference.ts";

const parts: PlanParts = {
  system: countUp(1, 5),
  spans: [countUp(20, 6), countUp(40, 4)],
  question: countUp(60, 3),
};

function expectReference(world: TinyWorld, name: string, of: PlanParts, options?: SubmitOptions): void {
  const expected = referenceAnswer(submitPlan(name, of, options), world.backend.shape, eosTokenIds);
  expect({ tokenIds: world.tokensOf(name), reason: world.finishedOf(name).reason }).toEqual(expected);
}

describe("answers", () => {
  test("cold, then cached: the same tokens, and only the open run is computed", async () => {
    const world = new TinyWorld();
    for (const name of ["cold", "warm"]) {
      world.engine.submit(submitPlan(name, parts));
      await world.settle();
      expectReference(world, name, parts);
    }
    const cold = { promptTokens: 18, completionTokens: 4, cachedTokens: 0, cacheWriteTokens: 18 };
    expect(world.finishedOf("cold").usage).toEqual(cold);
    expect(world.finishedOf("warm").usage).toEqual({ ...cold, cachedTokens: 15, cacheWriteTokens: 0 });
    const spans = [
      { id: "span-0", tokens: 6 },
      { id: "span-1", tokens: 4 },
    ];
    const computed = spans.map((span) => {
      return { ...span, source: "computed" as const, cachedTokens: 0, cacheWriteTokens: span.tokens };
    });
    expect(world.finishedOf("cold").spans).toEqual(computed);
    const found = spans.map((span) => {
      return { ...span, source: "device" as const, cachedTokens: span.tokens, cacheWriteTokens: 0 };
    });
    expect(world.finishedOf("warm").spans).toEqual(found);
    expect(world.finishedOf("warm").foundTokens).toBeUndefined();
  });

  test("who asks is told what was found of each run", async () => {
    const world = new TinyWorld();
    for (const name of ["cold", "warm"]) {
      world.engine.submit({ ...submitPlan(name, parts), tellFound: true });
      await world.settle();
    }
    const { runs } = submitPlan("again", parts).plan;
    expect(world.finishedOf("cold").foundTokens).toEqual(runs.map(() => 0));
    const warm = world.finishedOf("warm").foundTokens ?? [];
    expect(warm.reduce((sum, tokens) => sum + tokens, 0)).toBe(15);
    for (const [index, run] of runs.slice(0, -1).entries()) expect(warm[index]).toBe(run.tokenIds.length);
  });

  test("without reuse nothing is found and nothing is kept", async () => {
    const world = new TinyWorld({ shape: { blockCount: 16 } });
    let kept: string[] = [];
    for (const reuse of [true, false]) {
      kept = residentKeys(world.engine);
      world.engine.submit(submitPlan(`${reuse}`, parts, { reuse }));
      await world.settle();
      expectReference(world, `${reuse}`, parts);
    }
    expect(world.finishedOf("false").usage).toMatchObject({ promptTokens: 18, cachedTokens: 0, cacheWriteTokens: 0 });
    expect(world.backend.rowCount).toBe(2 * (18 + 3));
    expect(kept).toHaveLength(6);
    expect(residentKeys(world.engine) as string[]).toEqual(kept);
  });

  test("the stop token ends the answer, is counted and not emitted", async () => {
    const options = { params: { maxTokens: 16 } };
    const free = referenceAnswer(submitPlan("x", parts, options), new TinyWorld().backend.shape, []);
    const stop = free.tokenIds[3];
    const world = new TinyWorld();
    world.engine.submit(submitPlan("stopped", parts, { params: { maxTokens: 16, stopTokenIds: [stop] } }));
    await world.settle();
    expect(world.finishedOf("stopped")).toMatchObject({ reason: "stop", usage: { completionTokens: 4 } });
    expect(world.tokensOf("stopped")).toEqual(free.tokenIds.slice(0, 3));
  });

  test("minTokens bans stop tokens until then", async () => {
    const free = referenceAnswer(submitPlan("x", parts), new TinyWorld().backend.shape, []);
    const world = new TinyWorld();
    const params = { maxTokens: 4, minTokens: 3, stopTokenIds: [free.tokenIds[0], free.tokenIds[1]] };
    world.engine.submit(submitPlan("r", parts, { params }));
    await world.settle();
    expect(world.tokensOf("r").length).toBeGreaterThanOrEqual(3);
    for (const banned of params.stopTokenIds) expect(world.tokensOf("r")).not.toContain(banned);
  });

  test("the end of the context ends the answer", async () => {
    const world = new TinyWorld({ shape: { contextTokens: 20 } });
    world.engine.submit(submitPlan("r", parts, { params: { maxTokens: 9, ignoreEos: true } }));
    await world.settle();
    expect(world.finishedOf("r")).toMatchObject({ reason: "length", usage: { completionTokens: 2 } });
  });

  test("log-probabilities come with each token", async () => {
    const world = new TinyWorld();
    world.engine.submit(submitPlan("r", parts, { sampling: { topLogprobs: 2 } }));
    await world.settle();
    const logprobs = world.messages.flatMap((m) => (m.type === "tokens" ? (m.logprobs ?? []) : []));
    expect(logprobs.map((entry) => entry.tokenId)).toEqual(world.tokensOf("r"));
    for (const { top, tokenId, logprob } of logprobs) expect(top[0]).toEqual([tokenId, logprob]);
  });

  test("any plan, in steps of any size, cold or cached, gives the answer by definition", async () => {
    const options = { params: { maxTokens: 5, ignoreEos: true } };
    await fc.assert(
      fc.asyncProperty(fc.integer(), fc.integer({ min: 4, max: 40 }), async (seed, stepTokens) => {
        const message = submitRuns("r", randomRuns(new Choices(seed), true), options);
        const world = new TinyWorld({ shape: { blockCount: 32 }, limits: { stepTokens } });
        const expected = referenceAnswer(message, world.backend.shape, eosTokenIds).tokenIds;
        for (const requestId of ["cold", "warm"]) {
          world.engine.submit({ ...message, requestId });
          await world.settle();
          expect(world.tokensOf(requestId)).toEqual(expected);
        }
        const cold = world.finishedOf("cold").usage;
        const warm = world.finishedOf("warm").usage;
        // Each prompt token was found or computed, each generated one but the last computed.
        const computed = 2 * cold.promptTokens - cold.cachedTokens - warm.cachedTokens + 2 * 4;
        expect(world.backend.rowCount).toBe(computed);
        expect(world.engine.stats()).toMatchObject({
          computedTokens: computed,
          generatedTokens: 10,
          queriedTokens: 2 * cold.promptTokens,
          hitTokens: cold.cachedTokens + warm.cachedTokens,
        });
      }),
      { numRuns: 200 },
    );
  });
});
