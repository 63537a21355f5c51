/** Layers that slide: against the slow twin, the same bits in every batch, and what is refused. */
import { afterAll, describe, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { CpuKernels, type Isa, type KvPoolOptions } from "../../worker/native/cpu-kernels.ts";
import { testSeed } from "../support/seed.ts";
import { firstDifferentBits, greatestDifference, keyBound, toFloats } from "./compare.ts";
import { attentionIsas, excessOf, kernelsOf, ownHeads, runLayer } from "./instruction-set.ts";
import { Random } from "./random.ts";
import { batchOf, elementsOf, openWorld, type Piece, randomOptions, randomWorld, type World } from "./world.ts";

const libraryPath = await buildCpuKernels();
const oracle = new CpuKernels(libraryPath, { isa: "reference", threadCount: 1 });
afterAll(() => oracle.close());

/** Layer 0 sees all, layer 1 slides and is rotated by frequencies of its own. */
function slidingOptions(random: Random, tokens: number, heads: Partial<KvPoolOptions> = {}): KvPoolOptions {
  const options = randomOptions(random, { layerCount: 2, ...heads });
  const { rope } = options;
  const sliding = { inverseFrequencies: rope.inverseFrequencies.map((x) => x / 3), attentionFactor: 1 };
  return {
    ...options,
    rope: { ...rope, attentionFactor: 1, layers: [true, true], sliding },
    window: { tokens, layers: [false, true] },
  };
}

/** The rows of one piece as a world of their own. */
function pieceOf(world: World, index: number): World {
  const piece: Piece = world.pieces[index];
  const width = world.qkv.length / world.batch.positions.length;
  const start = world.batch.pieceRows[index];
  const qkv = world.qkv.slice(start * width, (start + piece.rowCount) * width);
  return { ...world, pieces: [piece], batch: batchOf([piece], world.options.blockTokens), qkv };
}

/** Rounds of one test: random steps, whose window is about as long as their segments. */
function forWorlds(isa: Isa, rounds: number, body: (world: World) => void): void {
  for (let round = 0; round < rounds; round++) {
    const random = new Random(testSeed() + round);
    const world = randomWorld(
      random,
      slidingOptions(random, random.pick([1, 2, 16, 17, 40, 80]), ownHeads(isa, random)),
    );
    try {
      body(world);
    } catch (error) {
      throw new Error(`SPANGATE_TEST_SEED=${testSeed() + round}`, { cause: error });
    }
  }
}

describe.each(attentionIsas)("%s", (isa: Isa) => {
  const { testHere, here } = kernelsOf(libraryPath, isa, 2);

  testHere("random steps agree with the oracle", () => {
    let cut = 0;
    forWorlds(isa, isa === "amx" ? 12 : 20, (world) => {
      const { out, elements } = runLayer(here(), world);
      expect(excessOf(oracle, here(), world, out, elements)).toBeLessThanOrEqual(1);
      const { window: _, ...seesAll } = world.options;
      if (firstDifferentBits(runLayer(here(), { ...world, options: seesAll }).out, out) >= 0) cut += 1;
    });
    // In most steps the window hides something, else they would show nothing.
    expect(cut).toBeGreaterThan(isa === "amx" ? 6 : 10);
  });

  testHere("a row's bits are the same alone, in a batch, and without packing", () => {
    forWorlds(isa, 12, (world) => {
      const together = runLayer(here(), world).out;
      const unpacked = runLayer(here(), { ...world, options: { ...world.options, packing: false } }).out;
      expect(firstDifferentBits(unpacked, together)).toBe(-1);
      const alone = world.pieces.flatMap((_, index) => [...runLayer(here(), pieceOf(world, index)).out]);
      expect(firstDifferentBits(Float32Array.from(alone), together)).toBe(-1);
    });
  });
});

test("copied tokens are rotated by the frequencies of their layer", () => {
  const kernels = new CpuKernels(libraryPath, { threadCount: 2 });
  for (let round = 0; round < 4; round++) {
    const random = new Random(testSeed() + round);
    const world = randomWorld(random, { ...slidingOptions(random, 16), kvType: "float32" });
    const { slots } = world.batch;
    const copies = { sourceSlots: slots, targetSlots: slots, deltas: slots.map((_, i) => 40 - i) };
    const [actual, expected] = [kernels, oracle].map((each) => {
      const pool = openWorld(each, world);
      for (const layer of [0, 1]) pool.writeKv(layer, world.qkv, world.norms?.k);
      pool.copyTokens(copies);
      const elements = toFloats(elementsOf(pool)).slice();
      pool.close();
      return elements;
    });
    expect(greatestDifference(actual, expected)).toBeLessThanOrEqual(2 * keyBound(world, expected));
  }
  kernels.close();
});

test("a pool whose layers slide wants to know where segments stand", () => {
  const random = new Random(testSeed());
  const world = randomWorld(random, slidingOptions(random, 16));
  const pool = openWorld(oracle, world);
  const { segmentPositions, ...without } = world.batch;
  expect(() => pool.beginStep(without)).toThrow(/segments have no positions/);
  const negative = segmentPositions?.map(() => -1);
  expect(() => pool.beginStep({ ...without, ...(negative && { segmentPositions: negative }) })).toThrow(/position/);
  pool.close();
  const options = slidingOptions(random, 16);
  expect(() => oracle.openPool({ ...options, window: { tokens: 0, layers: [false, true] } })).toThrow(/out of range/);
  expect(() => oracle.openPool({ ...options, window: { tokens: 4, layers: [true] } })).toThrow(/window.layers/);
});
