/** Runs whose KV is mostly copied: what is copied, chosen and computed again, and what may come in between. */
import { describe, expect, test } from "bun:test";
import { rootKey } from "../../worker/contract/block-key.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { FakeBackend } from "../support/fake-backend.ts";
import { fc } from "../support/fast-check.ts";
import { residentKeys } from "../support/resident-keys.ts";
import { eosTokenIds, TinyWorld } from "./harness.ts";
import { type BlendPart, blendRuns, countUp, makeRuns, submitPlan, submitRuns } from "./plans.ts";
import { referenceAnswer } from "./reference.ts";

const shape = { blockCount: 64 };
const system: BlendPart = { plain: countUp(1, 5) };
const documents: BlendPart[] = [{ copied: countUp(20, 10) }, { copied: countUp(40, 7) }];
const glue: BlendPart = { plain: countUp(80, 2) };
const parts = [system, documents[0], glue, documents[1]];
const question = countUp(60, 3);
const options = { params: { maxTokens: 5, ignoreEos: true } };
const blended = (name: string, recomputeRatio: number, texts: readonly BlendPart[] = parts) =>
  submitRuns(name, blendRuns(texts, { recomputeRatio, question }), options);

function expectReference(world: TinyWorld, name: string, message: ReturnType<typeof blended>): void {
  const expected = referenceAnswer(message, world.backend.shape, eosTokenIds);
  expect(world.tokensOf(name)).toEqual(expected.tokenIds);
}

describe("blended runs", () => {
  for (const [ratio, recomputedTokens] of [
    [0, 0],
    [0.15, 3],
    [0.5, 9],
    [1, 17],
  ] as const) {
    test(`at ratio ${ratio} the answer is the one by definition; only chosen rows are computed; then all is found`, async () => {
      const world = new TinyWorld({ shape });
      for (const name of ["cold", "warm"]) {
        world.engine.submit(blended(name, ratio));
        await world.settle();
        expectReference(world, name, blended(name, ratio));
      }
      expect(world.finishedOf("cold").blend).toEqual({ copiedTokens: 17, recomputedTokens });
      expect(world.finishedOf("cold").usage).toMatchObject({ cachedTokens: 0, cacheWriteTokens: 17 + 24 + 3 });
      expect(world.finishedOf("warm").blend).toEqual({ copiedTokens: 0, recomputedTokens: 0 });
      expect(world.finishedOf("warm").usage).toMatchObject({ cachedTokens: 17 + 24 });
      expect(world.backend.rowCount).toBe(17 + 7 + recomputedTokens + 2 * (3 + 4));
    });
  }

  test("with every token computed again it is the plain prompt", async () => {
    const world = new TinyWorld({ shape });
    const tokenIds = parts.flatMap((part) => [...("copied" in part ? part.copied : part.plain)]);
    world.engine.submit(blended("blended", 1));
    world.engine.submit(submitPlan("plain", { system: Int32Array.from(tokenIds), question }, options));
    world.engine.submit(blended("copied", 0));
    await world.settle();
    expect(world.tokensOf("blended")).toEqual(world.tokensOf("plain"));
    expect(world.tokensOf("copied")).not.toEqual(world.tokensOf("plain"));
  });

  test("any texts, in steps of any size, blended from parts of runs that see others", async () => {
    const length = fc.integer({ min: 1, max: 14 });
    const text = fc.tuple(fc.boolean(), fc.integer({ min: 1, max: 90 }), length);
    await fc.assert(
      fc.asyncProperty(
        fc.array(text, { minLength: 1, maxLength: 5 }),
        fc.constantFrom(0, 0.15, 0.4, 0.9, 1),
        fc.integer({ min: 4, max: 40 }),
        async (texts, ratio, stepTokens) => {
          const drawn = texts.map(([isCopied, from, count]): BlendPart => {
            const tokenIds = countUp(from, count);
            return isCopied ? { copied: tokenIds } : { plain: tokenIds };
          });
          const runs = blendRuns(drawn, { recomputeRatio: ratio, question });
          const at = runs.length - 2;
          // Each copy begins behind the first token of its run; the first source stands behind a preamble.
          const preamble = makeRuns({ system: countUp(3, 6) }, false);
          const shifted = runs.map((run, index) => ({
            ...run,
            position: index === 0 && at > 0 ? 6 : run.position,
            sees:
              index === 0 && at > 0
                ? [{ run: 0, firstToken: 0, tokenCount: 6, offset: 0 }]
                : run.sees.map((segment) => ({ ...segment, run: segment.run + 1 })),
            ...(run.blend && {
              blend: {
                recomputeRatio: ratio,
                copies: run.blend.copies.map((copy) => {
                  const skipped = copy.tokenCount > 1 ? 1 : 0;
                  const { firstToken, tokenCount, at: to } = copy;
                  return {
                    run: copy.run + 1,
                    firstToken: firstToken + skipped,
                    tokenCount: tokenCount - skipped,
                    at: to + skipped,
                  };
                }),
              },
            }),
          }));
          const message = submitRuns("r", [...preamble, ...shifted], { ...options, reuse: false });
          const world = new TinyWorld({ shape: { blockCount: 96 }, limits: { stepTokens } });
          world.engine.submit(message);
          await world.settle();
          expectReference(world, "r", message);
        },
      ),
      { numRuns: 150 },
    );
  });

  test("a beginning that is found is neither copied nor computed; only the rest is chosen from", async () => {
    const world = new TinyWorld({ shape });
    world.engine.submit(blended("first", 0.5));
    await world.settle();
    const rows = world.backend.rowCount;
    const other: BlendPart = { copied: countUp(60, 8) };
    world.engine.submit(blended("second", 0.5, [system, documents[0], glue, other]));
    await world.settle();
    // 5 + 10 + 2 tokens are alike, which fill four blocks; one token of the glue is behind them.
    expect(world.finishedOf("second").usage.cachedTokens).toBe(10 + 16);
    expect(world.finishedOf("second").blend).toEqual({ copiedTokens: 8, recomputedTokens: 4 });
    expect(world.backend.rowCount - rows).toBe(8 + 1 + 4 + 3 + 4);
    // What was found is shared: it is as it was.
    world.engine.submit(blended("again", 0.5));
    await world.settle();
    expect(world.finishedOf("again").usage.cachedTokens).toBe(17 + 24);
    expectReference(world, "again", blended("again", 0.5));
  });

  test("is never found as exact, nor the exact one as blended", async () => {
    const world = new TinyWorld({ shape });
    const tokenIds = parts.flatMap((part) => [...("copied" in part ? part.copied : part.plain)]);
    const exact = { system: Int32Array.from(tokenIds), question };
    world.engine.submit(blended("blended", 0.5));
    await world.settle();
    world.engine.submit(submitPlan("exact", exact, options));
    await world.settle();
    expect(world.finishedOf("exact").usage.cachedTokens).toBe(0);
    world.engine.submit(blended("other ratio", 0.25));
    await world.settle();
    expect(world.finishedOf("other ratio").usage.cachedTokens).toBe(17);
  });

  test("spans that the blended run sees are seen by its probes and its rows", async () => {
    const [source, run, last] = blendRuns([documents[0], glue], { recomputeRatio: 0.4, question });
    const [seenSpan] = makeRuns({ system: countUp(3, 19) }, false);
    // The span is complete some steps after the source.
    const sees = [{ run: 1, firstToken: 0, tokenCount: 19, offset: 0 }];
    const behind = [
      { ...run, position: 19, sees },
      { ...last, position: 31, sees: [...sees, ...last.sees.map((segment) => ({ ...segment, run: 2 }))] },
    ];
    const world = new TinyWorld({ shape, limits: { stepTokens: 5 } });
    const message = submitRuns("r", [source, seenSpan, ...behind], options);
    world.engine.submit(message);
    await world.settle();
    expectReference(world, "r", message);
  });
});

describe("in between", () => {
  const slow = { stepTokens: 6, maxRunningRequests: 4 };

  test("requests over one blended chain blend it once", async () => {
    const world = new TinyWorld({ shape, limits: slow });
    for (const name of ["a", "b", "c"]) world.engine.submit(blended(name, 0.5));
    await world.settle();
    expect(world.backend.rowCount).toBe(17 + 7 + 9 + 3 * (3 + 4));
    for (const name of ["a", "b", "c"]) expectReference(world, name, blended(name, 0.5));
    expect(world.finishedOf("b").blend).toEqual({ copiedTokens: 0, recomputedTokens: 0 });
  });

  for (let steps = 1; steps < 14; steps++) {
    test(`an abort after ${steps} steps frees all at once; who waited for it takes over`, async () => {
      const world = new TinyWorld({ shape, limits: slow });
      world.engine.submit(blended("a", 0.5));
      world.engine.submit(blended("b", 0.5));
      for (let i = 0; i < steps; i++) await world.step();
      world.engine.abort("a");
      world.engine.checkInvariants();
      await world.settle();
      expect(world.finishedOf("a").reason).toBe("abort");
      expectReference(world, "b", blended("b", 0.5));
      expect(world.engine.stats().usedBlocks).toBe(0);
    });

    test(`what is evicted after ${steps} steps does not come back`, async () => {
      const world = new TinyWorld({ shape, limits: slow });
      const message = blended("r", 0.5);
      const keys = message.plan.runs.flatMap((run) => [...run.blockKeys]);
      world.engine.submit(message);
      for (let i = 0; i < steps; i++) await world.step();
      world.engine.evict(keys);
      await world.settle();
      expectReference(world, "r", message);
      expect(residentKeys(world.engine).filter((key) => keys.includes(key))).toEqual([]);
    });
  }

  test("an abort while the copies and probes are made, and a failure there", async () => {
    for (const failing of [false, true]) {
      const world: TinyWorld = new TinyWorld({
        backend: new (class extends FakeBackend {
          override async copyTokens(copies: Parameters<FakeBackend["copyTokens"]>[0]): Promise<void> {
            await super.copyTokens(copies);
            if (failing) throw new Error("no copy");
            world.engine.abort("r");
          }
        })(shape),
      });
      world.engine.submit(blended("r", 0.5));
      await world.settle();
      if (failing) expect(world.failedOf("r")?.message).toBe("a step failed: no copy");
      else expect(world.finishedOf("r").reason).toBe("abort");
      expect(world.engine.stats()).toMatchObject({ usedBlocks: 0, cachedBlocks: 5 });
    }
  });

  test("preempted while it blends it starts over, and is reported once", async () => {
    let begun = 0;
    const backend = new (class extends FakeBackend {
      override copyTokens(copies: Parameters<FakeBackend["copyTokens"]>[0]): Promise<void> {
        begun += 1;
        return super.copyTokens(copies);
      }
    })({ blockCount: 18 });
    const world = new TinyWorld({ backend, limits: { ...slow, prefillTokensBesideDecodes: 2 } });
    const long = { params: { maxTokens: 60, ignoreEos: true } };
    world.engine.submit(submitPlan("a", { question: countUp(1, 4) }, long));
    world.engine.submit(blended("b", 0.5));
    await world.settle();
    expect(begun).toBe(2);
    expectReference(world, "b", blended("b", 0.5));
    expect(world.finishedOf("b").blend).toEqual({ copiedTokens: 17, recomputedTokens: 9 });
  });

  test("blended again after a preemption, from more than was missing at first, it reports the first time", async () => {
    const world = new TinyWorld({ shape: { blockCount: 28 }, limits: { maxRunningRequests: 2 } });
    world.engine.submit(blended("before", 0.5));
    await world.settle();
    const message = blended("b", 0.5, [system, documents[0], glue, { copied: countUp(60, 8) }]);
    const long = { params: { maxTokens: 60, ignoreEos: true } };
    world.engine.submit(submitPlan("a", { question: countUp(1, 4) }, long));
    world.engine.submit({ ...message, params: { ...message.params, maxTokens: 40 } });
    while (world.engine.stats().preemptions === 0) await world.step();
    world.engine.evict(message.plan.runs.flatMap((run) => [...run.blockKeys]));
    await world.settle();
    expect(world.finishedOf("b").blend).toEqual({ copiedTokens: 8, recomputedTokens: 4 });
  });

  test("rows that the oldest does not need are another prompt's", async () => {
    const world = new TinyWorld({ shape, limits: { stepTokens: 16 } });
    const params = { maxTokens: 0 };
    world.engine.submit(submitRuns("a", blendRuns([{ copied: countUp(1, 6) }], { recomputeRatio: 1 }), { params }));
    world.engine.submit(submitPlan("b", { system: countUp(20, 100) }, { params }));
    await world.settle();
    expect(world.engine.stats()).toMatchObject({ computedTokens: 6 + 6 + 100, steps: 112 / 16 });
  });
});

test("keys of a blended chain name the share that is computed again", () => {
  const salt = "c2FsdA==" as CacheSalt;
  const kinds = ["main", "span", "blend 0", "blend 0.15", "blend 1"] as const;
  expect(new Set(kinds.map((kind) => rootKey("fake", salt, kind))).size).toBe(kinds.length);
});
