/**
 * KV in mx8. What the kernels write is what the twin rounds, and what they compute from it is what they compute over a
 * float32 pool that holds the rounded values: both bit for bit, on every instruction set and every way through attention.
 */
import { afterAll, describe, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { mx8Group } from "../../worker/contract/units.ts";
import { CpuKernels, type Isa, type KvPool, type KvPoolOptions } from "../../worker/native/cpu-kernels.ts";
import { testSeed } from "../support/seed.ts";
import { firstDifferentBits } from "./compare.ts";
import { attentionIsas, kernelsOf, ownHeads } from "./instruction-set.ts";
import { decodeGroup, decodePool, encodeGroup } from "./mx8-twin.ts";
import { Random } from "./random.ts";
import { batchOf, openWorld, type Piece, randomOptions, randomWorld, storedAs, type World } from "./world.ts";

const libraryPath = await buildCpuKernels();
const best = new CpuKernels(libraryPath, { threadCount: 1 });
afterAll(() => best.close());

const noRope = { inverseFrequencies: new Float32Array(0) };
const bytesOf = (pool: KvPool): Uint8Array => new Uint8Array(pool.memory()).slice();

/** Values that lie at, just below and just above where rounding changes, of all sizes. */
function hardGroups(random: Random): Float32Array[] {
  const float32 = (bits: number) => new Float32Array(Uint32Array.of(bits).buffer)[0];
  const groups = Array.from({ length: 300 }, () => {
    const size = 2 ** random.integer(-149, 127);
    const draw = () => random.pick([1, -1]) * random.pick([random.next() * 2, random.integer(0, 256) / 128, 0]) * size;
    return Float32Array.from({ length: mx8Group }, draw);
  });
  const halfSteps = [127, 127.25, 127.5, 127.75, 0.5, 1.5, 2.5, -0.5, -1.5, -127.5, -127.99, 126.5, 0, -0, 63.5, 64];
  for (const size of [2 ** -133, 2 ** -126, 2 ** -20, 1, 2 ** 120]) {
    groups.push(Float32Array.from({ length: mx8Group }, (_, i) => halfSteps[i % 16] * size));
  }
  for (const odd of [Number.NaN, Infinity, -Infinity, float32(0x7f7fffff), float32(1), float32(0x00800000), 0]) {
    groups.push(Float32Array.from({ length: mx8Group }, (_, i) => (i === 7 ? odd : i % 3)));
    groups.push(new Float32Array(mx8Group).fill(odd));
  }
  return groups;
}

describe("rounding", () => {
  test("moves no value by more than 1/128 of the largest of its 32", () => {
    const random = new Random(testSeed());
    let furthest = 0;
    for (const values of hardGroups(random)) {
      if (!values.every(Number.isFinite)) continue;
      const largest = Math.max(...values.map(Math.abs));
      const bound = Math.max(largest / 128, 2 ** -127);
      const rounded = decodeGroup(encodeGroup(values));
      values.forEach((value, i) => {
        furthest = Math.max(furthest, Math.abs(value - rounded[i]) / bound);
      });
      // What is rounded once stays as it is.
      expect(decodeGroup(encodeGroup(rounded)).map((value) => value + 0)).toEqual(rounded.map((value) => value + 0));
    }
    expect(furthest).toBeLessThanOrEqual(1);
    expect(furthest).toBeGreaterThan(0.9);
  });

  test("a pool holds 1.94 times the tokens that it holds in float16", () => {
    const shape = { layerCount: 2, blockCount: 3, blockTokens: 16, queryHeads: 4, kvHeads: 2, headDim: 64 };
    const [half, mx8] = (["float16", "mx8"] as const).map((kvType) => {
      const pool = best.openPool({ ...shape, kvType, rope: noRope, maxPositions: 64 });
      const { kvBytesPerBlock } = pool;
      pool.close();
      return kvBytesPerBlock;
    });
    expect(half / mx8).toBe(64 / 33);
  });

  test("heads that are no whole groups, moves and comparisons are refused", () => {
    const shape = { layerCount: 2, blockCount: 3, blockTokens: 16, queryHeads: 4, kvHeads: 2 } as const;
    const open = (headDim: number) =>
      best.openPool({ ...shape, headDim, kvType: "mx8", rope: noRope, maxPositions: 64 });
    for (const headDim of [8, 80, 120]) expect(() => open(headDim)).toThrow("a head size that is a multiple of 32");
    const pool = open(64);
    const slots = Int32Array.of(1);
    expect(() => pool.copyTokens({ sourceSlots: slots, targetSlots: slots, deltas: slots })).toThrow("KV in mx8 stays");
    const own = { blockIds: [0], firstToken: 0, tokenCount: 1, offset: 0 };
    pool.beginStep(batchOf([{ firstPosition: 0, rowCount: 1, seen: [], own }], 16));
    const row = new Float32Array(pool.qkvWidth);
    expect(() => pool.deviations(1, row, new Float32Array(1))).toThrow("KV in mx8 stays");
    pool.close();
  });
});

describe.each([...attentionIsas, "reference"] as const)("%s", (isa: Isa) => {
  const { testHere, here } = kernelsOf(libraryPath, isa, isa === "reference" ? 1 : 2);

  testHere("writes what the twin rounds", () => {
    const random = new Random(testSeed());
    for (const [blockTokens, headDim] of [
      [16, 64],
      [4, 32],
      [32, 96],
    ] as const) {
      const groups = random.shuffle(hardGroups(random));
      const rowGroups = (2 * headDim) / mx8Group;
      const rowCount = Math.floor(groups.length / rowGroups);
      const blockCount = Math.ceil(rowCount / blockTokens);
      const options: KvPoolOptions = {
        ...{ layerCount: 1, blockCount, blockTokens, queryHeads: 1, kvHeads: 1, headDim },
        ...{ kvType: "mx8", rope: noRope, maxPositions: 1000 },
      };
      const pool = here().openPool(options);
      const blockIds = Array.from({ length: blockCount }, (_, blockId) => blockId);
      const own = { blockIds, firstToken: 0, tokenCount: rowCount, offset: 0 };
      pool.beginStep(batchOf([{ firstPosition: 0, rowCount, seen: [], own }], blockTokens));
      const qkv = new Float32Array(rowCount * pool.qkvWidth);
      const half = headDim * blockTokens;
      const expected = new Float32Array(blockCount * 2 * half);
      for (let row = 0; row < rowCount; row++) {
        const kv = Float32Array.from(
          groups.slice(row * rowGroups, (row + 1) * rowGroups).flatMap((group) => [...group]),
        );
        qkv.set(kv, row * pool.qkvWidth + headDim);
        const [at, token] = [Math.floor(row / blockTokens) * 2 * half, row % blockTokens];
        for (let d = 0; d < headDim; d++) {
          expected[at + d * blockTokens + token] = kv[d];
          expected[at + half + token * headDim + d] = kv[headDim + d];
        }
      }
      pool.writeKv(0, qkv);
      const written = bytesOf(pool);
      pool.close();
      const unwritten = blockCount * blockTokens - rowCount;
      const all = storedAs(options, expected) as Uint8Array;
      // Slots that no row has stay zeros; the twin gives their groups the least scale.
      const different = all.findIndex((byte, at) => byte !== written[at] && !(unwritten > 0 && byte === 7));
      expect(different).toBe(-1);
      expect(written.some((byte) => byte === 255)).toBe(true);
    }
  });

  testHere("attends to the rounded values", () => {
    const seed = testSeed();
    const rounds = isa === "reference" ? 3 : 8;
    for (let round = 0; round < rounds; round++) {
      const random = new Random(seed + round);
      const limits = { pieces: 3, rows: 40, tokens: round % 4 === 3 ? 600 : 70, segments: 2 };
      const fixed = { ...ownHeads(isa, random), kvType: "mx8", headDim: random.pick([32, 64, 96, 128]) } as const;
      const world =
        isa === "reference"
          ? smallWorld(random, fixed)
          : randomWorld(random, randomOptions(random, fixed, limits), limits);
      expect({ round, at: attendedApart(here(), world) }).toEqual({ round, at: -1 });
    }
  });

  testHere.skipIf(isa === "reference")("attends to rows that are packed, staged and split over threads", () => {
    for (const group of [1, 3, 8]) {
      expect({ group, at: attendedApart(here(), crowd(new Random(testSeed()), group)) }).toEqual({ group, at: -1 });
    }
  });
});

function smallWorld(random: Random, fixed: Partial<KvPoolOptions>): World {
  const limits = { pieces: 2, rows: 6, tokens: 30, segments: 2 };
  return randomWorld(random, randomOptions(random, fixed, limits), limits);
}

/** Decoding rows over the same spans at offsets of their own, and prompts of several rows beside them. */
function crowd(random: Random, group: number): World {
  const spans = [600, 5, 130].map((tokenCount, index) => ({
    blockIds: Array.from({ length: Math.ceil(tokenCount / 16) }, (_, i) => index * 40 + i),
    firstToken: 0,
    tokenCount,
  }));
  const pieces = Array.from({ length: 14 }, (_, index): Piece => {
    const rowCount = index < 12 ? 1 : 30;
    return {
      firstPosition: 2000 + index,
      rowCount,
      seen: random.shuffle([...spans]).map((span) => ({ ...span, offset: random.integer(0, 1000) })),
      own: { blockIds: [90 + 2 * index, 91 + 2 * index], firstToken: 0, tokenCount: rowCount, offset: 0 },
    };
  });
  const shape = { headDim: 64, kvHeads: 1, queryHeads: group, blockTokens: 16, blockCount: 130, layerCount: 2 };
  const options = randomOptions(random, { ...shape, kvType: "mx8" });
  const kv = storedAs(options, random.normals(2 * 130 * 16 * 64 * 2));
  const batch = batchOf(pieces, 16);
  return {
    options,
    pieces,
    batch,
    kv,
    qkv: random.normals(batch.positions.length * (group + 2) * 64),
    norms: undefined,
  };
}

/** Where the step's output differs from that over the same values in float32; -1: nowhere. */
function attendedApart(kernels: CpuKernels, world: World): number {
  const pool = openWorld(kernels, world);
  const out = new Float32Array(world.batch.positions.length * pool.outWidth).fill(Number.NaN);
  pool.attention(1, world.qkv, out, world.norms);
  const kv = decodePool(bytesOf(pool), world.options);
  pool.close();
  const wide = openWorld(kernels, { ...world, options: { ...world.options, kvType: "float32" }, kv });
  const expected = new Float32Array(out.length);
  wide.attend(1, world.qkv, expected, world.norms?.q);
  wide.close();
  expect(expected.every(Number.isFinite)).toBe(true);
  return firstDifferentBits(out, expected);
}
