/** Attention and KV writes of each instruction set against the slow twin, on random steps. */
import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { type AttentionBatch, CpuKernels, type Isa, type KvPoolOptions } from "../../worker/native/cpu-kernels.ts";
import { effort } from "../support/effort.ts";
import { testSeed } from "../support/seed.ts";
import { greatestDifference, keyBound, toFloats } from "./compare.ts";
import { attentionIsas, excessOf, kernelsOf, ownHeads, runLayer } from "./instruction-set.ts";
import { Random } from "./random.ts";
import { elementsOf, openWorld, randomOptions, randomWorld, type World } from "./world.ts";

/** The slow twin is slow, and the machine may be busy. */
setDefaultTimeout(60_000);

const libraryPath = await buildCpuKernels();
const oracle = new CpuKernels(libraryPath, { isa: "reference", threadCount: 1 });
const best = new CpuKernels(libraryPath, { threadCount: 2 });
afterAll(() => {
  oracle.close();
  best.close();
});

function expectAgreement(kernels: CpuKernels, world: World): void {
  const actual = runLayer(kernels, world);
  const expected = toFloats(runLayer(oracle, world).elements);
  const elements = toFloats(actual.elements);
  expect(greatestDifference(elements, expected)).toBeLessThanOrEqual(keyBound(world, expected));
  expect(excessOf(oracle, kernels, world, actual.out, actual.elements)).toBeLessThanOrEqual(1);
}

describe.each(attentionIsas)("%s", (isa: Isa) => {
  const { testHere, here } = kernelsOf(libraryPath, isa, 2);

  testHere("random steps agree with the oracle", () => {
    const seed = testSeed();
    const rounds = isa === "amx" ? effort(8, 24) : effort(20, 60); // Many heads take the oracle long.
    for (let round = 0; round < rounds; round++) {
      const random = new Random(seed + round);
      const world = randomWorld(random, randomOptions(random, ownHeads(isa, random)));
      try {
        expectAgreement(here(), world);
      } catch (error) {
        throw new Error(`SPANGATE_TEST_SEED=${seed + round} ${JSON.stringify(world.options)}`, { cause: error });
      }
    }
  });

  testHere.each([
    [64, 1],
    [80, 2],
    [96, 4],
    [128, 8],
  ])("head size %i, %i query heads a KV head (by AMX 7 more), runs of several chunks", (headDim, heads) => {
    const group = isa === "amx" ? heads + 7 : heads;
    const random = new Random(testSeed());
    for (const kvType of ["float32", "float16"] as const) {
      const limits = { pieces: 2, rows: 40, tokens: 400, segments: 2 };
      const fixed = { headDim, kvHeads: 2, queryHeads: 2 * group, blockTokens: 16, kvType };
      const world = randomWorld(random, randomOptions(random, fixed, limits), limits);
      expectAgreement(here(), world);
    }
  });

  testHere("what float16 cannot hold is stored as its greatest number, NaN as NaN", () => {
    const random = new Random(testSeed());
    for (const blockTokens of [4, 16]) {
      const fixed = {
        kvType: "float16",
        blockTokens,
        headDim: 24,
        rope: { inverseFrequencies: new Float32Array(0) },
      } as const;
      const world = { ...randomWorld(random, randomOptions(random, fixed)), norms: undefined };
      world.qkv.forEach((_, i) => {
        world.qkv[i] = random.pick([1e6, -1e6, 65_504, -65_519, 7, Number.NaN]);
      });
      const [actual, expected] = [here(), oracle].map((each) => {
        const pool = openWorld(each, world);
        pool.writeKv(1, world.qkv);
        const elements = toFloats(elementsOf(pool).slice());
        pool.close();
        return elements;
      });
      expect(expected?.includes(65_504)).toBe(true);
      if (actual === undefined || expected === undefined) throw new Error("two results expected");
      expect(greatestDifference(actual, expected)).toBe(0);
    }
  });
});

describe("the comparison can fail", () => {
  const seed = testSeed();
  const worldWithCompany = (): World => {
    for (let round = 0; ; round++) {
      const world = worldFor(new Random(seed + round));
      if (world !== undefined) return world;
    }
  };
  const worldFor = (random: Random): World | undefined => {
    const rope = { inverseFrequencies: Float32Array.from({ length: 32 }, (_, i) => 10_000 ** (-i / 32)) };
    const options = randomOptions(random, { headDim: 64, kvType: "float32", rope, blockTokens: 16 });
    const world = randomWorld(random, options);
    // A mutant can only show where some piece sees a segment other than its own.
    return world.pieces.some((piece) => piece.seen.some((segment) => segment.tokenCount > 1)) ? world : undefined;
  };
  const mutants: [name: string, change: (world: World) => { batch?: AttentionBatch; options?: KvPoolOptions }][] = [
    [
      "rotation off",
      ({ options }) => ({ options: { ...options, rope: { inverseFrequencies: new Float32Array(32) } } }),
    ],
    ["rotation off in this layer", ({ options }) => ropeChanged(options, { layers: [true, false] })],
    ["cos and sin of another factor", ({ options }) => ropeChanged(options, { attentionFactor: 1.01 })],
    ["offsets ignored", ({ batch }) => ({ batch: { ...batch, segmentOffsets: batch.segmentOffsets.map(() => 0) } })],
    [
      "offset off by one",
      ({ batch }) => ({ batch: { ...batch, segmentOffsets: batch.segmentOffsets.map((offset) => offset + 1) } }),
    ],
    ["one token fewer", ({ batch }) => ({ batch: { ...batch, segmentTokenCounts: fewerSeen(batch) } })],
    ["interleaved pairs", ({ options }) => ({ options: { ...options, rope: { ...options.rope, interleaved: true } } })],
    ["scale", ({ options }) => ({ options: { ...options, softmaxScale: 0.12 } })],
  ];

  test.each(mutants)("mutant: %s", (_name, change) => {
    const world = worldWithCompany();
    const mutated = runLayer(best, { ...world, ...change(world) });
    const right = runLayer(best, world);
    expect(excessOf(oracle, best, world, right.out, right.elements)).toBeLessThanOrEqual(1);
    expect(excessOf(oracle, best, world, mutated.out, right.elements)).toBeGreaterThan(1);
  });
});

function ropeChanged(options: KvPoolOptions, change: Partial<KvPoolOptions["rope"]>): { options: KvPoolOptions } {
  return { options: { ...options, rope: { ...options.rope, ...change } } };
}

/** One token fewer in each segment that is seen whole. */
function fewerSeen(batch: AttentionBatch): Int32Array {
  const counts = batch.segmentTokenCounts.slice();
  const own = new Set(Array.from(batch.pieceSegments.subarray(1), (end) => end - 1));
  for (let s = 0; s < counts.length; s++) if (!own.has(s)) counts[s] = Math.max(0, (counts[s] ?? 0) - 1);
  return counts;
}
