/** Sinks of heads and caps of scores: against the slow twin and a sum by hand, the same bits in every batch, refusals. */
import { afterAll, describe, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { CpuKernels, type Isa, type KvPoolOptions } from "../../worker/native/cpu-kernels.ts";
import { testSeed } from "../support/seed.ts";
import { firstDifferentBits } from "./compare.ts";
import { attentionIsas, excessOf, kernelsOf, ownHeads, runLayer } from "./instruction-set.ts";
import { Random } from "./random.ts";
import { batchOf, randomOptions, randomWorld, type World } from "./world.ts";

const libraryPath = await buildCpuKernels();
const oracle = new CpuKernels(libraryPath, { isa: "reference", threadCount: 1 });
afterAll(() => oracle.close());

/** Some heads have sinks that take nearly all, some hardly anything. */
function withSinks(random: Random, options: KvPoolOptions): KvPoolOptions {
  const sinks = random.normals(options.layerCount * options.queryHeads).map((x) => 4 * x);
  return { ...options, sinks, scoreCap: random.pick([0, 1, 5]) };
}

function forWorlds(isa: Isa, rounds: number, body: (world: World) => void): void {
  for (let round = 0; round < rounds; round++) {
    const random = new Random(testSeed() + round);
    try {
      body(randomWorld(random, withSinks(random, randomOptions(random, ownHeads(isa, random)))));
    } catch (error) {
      throw new Error(`SPANGATE_TEST_SEED=${testSeed() + round}`, { cause: error });
    }
  }
}

describe.each(attentionIsas)("%s", (isa: Isa) => {
  const { testHere, here } = kernelsOf(libraryPath, isa, 2);

  testHere("random steps agree with the oracle, which sees a difference without either", () => {
    forWorlds(isa, 5, (world) => {
      const { out, elements } = runLayer(here(), world);
      expect(excessOf(oracle, here(), world, out, elements)).toBeLessThanOrEqual(1);
      const { sinks, scoreCap } = world.options;
      const withoutSinks = { ...world, options: { ...world.options, sinks: sinks?.map((x) => x + 1) } };
      expect(excessOf(oracle, here(), withoutSinks, out, elements)).toBeGreaterThan(1);
      const uncapped = { ...world, options: { ...world.options, scoreCap: 0 } };
      if (scoreCap === 1) expect(excessOf(oracle, here(), uncapped, out, elements)).toBeGreaterThan(1);
    });
  });

  testHere("a row's bits are the same alone, in a batch, and without packing", () => {
    forWorlds(isa, 4, (world) => {
      const together = runLayer(here(), world).out;
      const unpacked = runLayer(here(), { ...world, options: { ...world.options, packing: false } }).out;
      expect(firstDifferentBits(unpacked, together)).toBe(-1);
      const width = world.qkv.length / world.batch.positions.length;
      const alone = world.pieces.flatMap((piece, index) => {
        const [start, end] = world.batch.pieceRows.subarray(index, index + 2);
        const qkv = world.qkv.slice(start * width, end * width);
        const batch = batchOf([piece], world.options.blockTokens);
        return [...runLayer(here(), { ...world, pieces: [piece], batch, qkv }).out];
      });
      expect(firstDifferentBits(Float32Array.from(alone), together)).toBe(-1);
    });
  });
});

/** A pool of one head of 8 dimensions, and the row of one token that sees itself alone. */
const alone = {
  layerCount: 1,
  blockCount: 1,
  blockTokens: 16,
  queryHeads: 1,
  kvHeads: 1,
  headDim: 8,
  kvType: "float32",
  rope: { inverseFrequencies: new Float32Array(0) },
  maxPositions: 16,
} as const satisfies KvPoolOptions;

test.each(["reference", "auto"] as const)(
  "%s: a token's share beside a sink is what a softmax of both gives",
  (isa) => {
    const kernels = new CpuKernels(libraryPath, { isa, threadCount: 1 });
    const pool = kernels.openPool({ ...alone, softmaxScale: 1, scoreCap: 2, sinks: Float32Array.of(0.5) });
    const own = { blockIds: [0], firstToken: 0, tokenCount: 1, offset: 0 };
    pool.beginStep(batchOf([{ firstPosition: 0, rowCount: 1, seen: [], own }], 16));
    const qkv = new Float32Array(24);
    qkv.set([3, 1], 0);
    qkv.set([1, -2], 8);
    qkv.set([1, 10], 16);
    const out = new Float32Array(8);
    pool.attention(0, qkv, out);
    // The score 3 - 2 is 2 tanh(1 / 2) with a cap of 2.
    const [score, sink] = [Math.exp(2 * Math.tanh(0.5)), Math.exp(0.5)];
    expect(out[0]).toBeCloseTo(score / (score + sink), 5);
    expect(out[1]).toBeCloseTo((10 * score) / (score + sink), 4);
    pool.close();
    kernels.close();
  },
);

test("what is no sink or cap is refused", () => {
  const open = (options: Partial<KvPoolOptions>) => () => oracle.openPool({ ...alone, ...options });
  expect(open({ sinks: new Float32Array(2) })).toThrow(/sinks must have 1 elements/);
  for (const sink of [Number.NaN, Number.NEGATIVE_INFINITY]) {
    expect(open({ sinks: Float32Array.of(sink) })).toThrow(/out of range/);
  }
  for (const scoreCap of [-1, Number.NaN, Number.POSITIVE_INFINITY]) expect(open({ scoreCap })).toThrow(/out of range/);
});
