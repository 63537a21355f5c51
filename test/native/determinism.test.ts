/**
 * The promise of kernels/abi.h: a row's bits do not depend on the batch it is in, on the number of threads, or on
 * how its run was cut into steps. Compared bit for bit.
 */
import { afterAll, describe, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { CpuKernels, type Isa, type KvPoolOptions, type KvType } from "../../worker/native/cpu-kernels.ts";
import { testSeed } from "../support/seed.ts";
import { firstDifferentBits } from "./compare.ts";
import { attentionIsas, ownHeads } from "./instruction-set.ts";
import { Random } from "./random.ts";
import {
  batchOf,
  elementsOf,
  openWorld,
  type Piece,
  randomOptions,
  randomWorld,
  storedAs,
  type World,
} from "./world.ts";

const libraryPath = await buildCpuKernels();

function kernelsFor(isa: Isa, threadCount: number): CpuKernels | undefined {
  try {
    return new CpuKernels(libraryPath, { isa, threadCount });
  } catch {
    return undefined; // This CPU lacks the instruction set: the tests below say "skip".
  }
}

/** The rows of piece `index` of the world, as a world of their own; `rows` of them from `firstRow` on. */
function sliceOf(world: World, index: number, firstRow: number, rows: number): World {
  const piece = world.pieces[index];
  if (piece === undefined) throw new RangeError(`no piece ${index}`);
  const rowsAfter = piece.rowCount - firstRow - rows;
  const part: Piece = {
    ...piece,
    firstPosition: piece.firstPosition + firstRow,
    rowCount: rows,
    own: { ...piece.own, tokenCount: piece.own.tokenCount - rowsAfter },
  };
  const start = (world.batch.pieceRows[index] ?? 0) + firstRow;
  const width = world.qkv.length / world.batch.positions.length;
  const qkv = world.qkv.slice(start * width, (start + rows) * width);
  return { ...world, pieces: [part], batch: batchOf([part], world.options.blockTokens), qkv };
}

/** Runs the worlds as successive steps over one pool; answers their outputs one after the other. */
function runSteps(kernels: CpuKernels, first: World, worlds: readonly World[]): Float32Array {
  const pool = openWorld(kernels, first);
  const width = pool.outWidth;
  const outs = worlds.map((world) => {
    const out = new Float32Array(world.batch.positions.length * width).fill(Number.NaN);
    pool.beginStep(world.batch);
    // A layer before this one, with other q, k and v: nothing of it may be left over.
    pool.attention(
      0,
      world.qkv.map((x) => -x),
      out,
      world.norms,
    );
    pool.attention(0, world.qkv, out.fill(Number.NaN), world.norms);
    return [...out];
  });
  pool.close();
  return Float32Array.from(outs.flat());
}

const kvTypes = ["float32", "float16", "mx8"] as const;

describe.each(attentionIsas)("%s", (isa) => {
  const one = kernelsFor(isa, 1);
  const two = kernelsFor(isa, 2);
  const three = kernelsFor(isa, 3);
  const testHere = test.skipIf(one === undefined);
  afterAll(() => {
    for (const kernels of [one, two, three]) kernels?.close();
  });
  const runOn = (kernels: CpuKernels | undefined, world: World, steps: readonly World[]) => {
    if (kernels === undefined) throw new Error("skipped tests do not run");
    return runSteps(kernels, world, steps);
  };
  const worldFor = (random: Random, fixed: Partial<KvPoolOptions> = {}) => {
    const limits = { pieces: 6, rows: 60, tokens: 400, segments: 4 };
    return randomWorld(random, randomOptions(random, { ...ownHeads(isa, random), ...fixed }, limits), limits);
  };

  testHere("alone or in a batch, on one thread or several", () => {
    for (let round = 0; round < 6; round++) {
      const world = worldFor(new Random(testSeed()));
      const together = runOn(two, world, [world]);
      const alone = world.pieces.map((piece, index) => sliceOf(world, index, 0, piece.rowCount));
      expect(firstDifferentBits(together, runOn(one, world, alone))).toBe(-1);
      expect(firstDifferentBits(together, runOn(three, world, [world]))).toBe(-1);
    }
  });

  testHere("in one step or row by row, or cut anywhere", () => {
    for (const blockTokens of [4, 16, 16]) {
      const random = new Random(testSeed());
      const heads = { kvHeads: 2, queryHeads: 2 * random.pick([1, 3, 4]), ...ownHeads(isa, random) };
      const world = worldFor(random, { blockTokens, ...heads, headDim: 32 });
      const cuts = world.pieces.flatMap((piece, index) => {
        const cut = random.integer(0, piece.rowCount);
        return [[index, 0, cut] as const, [index, cut, piece.rowCount - cut] as const].filter(([, , rows]) => rows > 0);
      });
      const rows = world.pieces.flatMap((piece, index) =>
        Array.from({ length: piece.rowCount }, (_, row) => sliceOf(world, index, row, 1)),
      );
      const whole = runOn(two, world, [world]);
      const inTwo = runOn(
        two,
        world,
        cuts.map(([index, row, count]) => sliceOf(world, index, row, count)),
      );
      expect(firstDifferentBits(whole, inTwo)).toBe(-1);
      expect(firstDifferentBits(whole, runOn(two, world, rows))).toBe(-1);
    }
  });

  testHere("packed with rows that see the same blocks at other offsets", () => {
    for (const [kvType, group] of [...kvTypes.map((type) => [type, 3] as const), ["float16", 8] as const]) {
      const world = crowdedWorld(new Random(testSeed()), kvType, group);
      const alone = world.pieces.map((_, index) => sliceOf(world, index, 0, 1));
      const serial = runOn(one, world, alone);
      expect(firstDifferentBits(serial, runOn(one, world, [world]))).toBe(-1);
      expect(firstDifferentBits(serial, runOn(three, world, [world]))).toBe(-1);
      const unpacked = { ...world, options: { ...world.options, packing: false } };
      expect(firstDifferentBits(serial, runOn(three, unpacked, [unpacked]))).toBe(-1);
    }
  });

  testHere.skipIf(isa !== "amx")("generated rows of few heads have the bits of AVX-512, whoever is beside them", () => {
    const vectors = new CpuKernels(libraryPath, { isa: "avx512", threadCount: 1 });
    const world = crowdedWorld(new Random(testSeed()), "float16", 3);
    const width = 6 * 64;
    const [tiles, plain] = [runOn(three, world, [world]), runOn(vectors, world, [world])];
    vectors.close();
    world.pieces.forEach(({ isGenerated }, row) => {
      const [a, b] = [tiles, plain].map((out) => out.slice(row * width, (row + 1) * width));
      expect(firstDifferentBits(a, b) === -1).toBe(isGenerated === true);
    });
  });

  testHere("a long context split over threads, step after step", () => {
    for (const [kvType, group] of [...kvTypes.map((type) => [type, 3] as const), ["float16", 8] as const]) {
      const world = longWorld(new Random(testSeed()), kvType, group);
      const serial = runOn(one, world, [world]);
      for (let repeat = 0; repeat < 5; repeat++) {
        expect(firstDifferentBits(serial, runOn(three, world, [world]))).toBe(-1);
      }
    }
  });

  testHere("stored K and V do not depend on the batch either", () => {
    const world = worldFor(new Random(testSeed()), { kvType: "float16" });
    const stored = [one, three].map((kernels) => {
      if (kernels === undefined) throw new Error("skipped tests do not run");
      const pool = openWorld(kernels, world);
      pool.writeKv(0, world.qkv, world.norms?.k);
      const bytes = Bun.hash(elementsOf(pool));
      pool.close();
      return bytes;
    });
    expect(stored[0]).toBe(stored[1]);
  });
});

/** 20 rows over the same spans, each with offsets of its own; every third is of a prompt; one sees a span twice. */
function crowdedWorld(random: Random, kvType: KvType, group: number): World {
  const spans = [600, 5, 130].map((tokenCount, index) => ({
    blockIds: Array.from({ length: Math.ceil(tokenCount / 16) }, (_, i) => index * 40 + i),
    firstToken: 0,
    tokenCount,
  }));
  // Same first block and length as the first span, other blocks after that: not the same tokens.
  const alike = { ...spans[0], blockIds: [0, ...Array.from({ length: 37 }, (_, i) => 90 + i)] } as (typeof spans)[0];
  // Chains that part behind 320 tokens, one of them longer.
  const parting = [38, 30].map((blocks, n) => {
    const own = Array.from({ length: blocks - 20 }, (_, i) => 41 + 18 * n + i);
    return { ...spans[0], blockIds: [...Array(20).keys(), ...own], tokenCount: blocks * 16 - 5 } as (typeof spans)[0];
  });
  spans.push(alike, ...parting);
  const pieces = Array.from({ length: 20 }, (_, index): Piece => {
    const order = index === 7 ? [...spans, ...spans] : random.shuffle([...spans]);
    return {
      firstPosition: 2000 + index,
      rowCount: 1,
      isGenerated: index % 3 !== 0,
      seen: order.map((span) => ({ ...span, offset: random.integer(0, 1000) })),
      own: { blockIds: [130 + index], firstToken: 0, tokenCount: random.integer(1, 16), offset: 0 },
    };
  });
  const queryHeads = 2 * group;
  const fixed = { headDim: 64, kvHeads: 2, queryHeads, blockTokens: 16, blockCount: 150, layerCount: 1, kvType };
  const values = random.normals(150 * 2 * 16 * 64 * 2);
  const kv = storedAs(fixed, values);
  const options = randomOptions(random, fixed);
  const qkv = random.normals(20 * (queryHeads + 4) * 64);
  return { options, pieces, batch: batchOf(pieces, 16), kv, qkv, norms: undefined };
}

/** One row at the end of 16,000 tokens: enough to be split over threads. */
function longWorld(random: Random, kvType: KvType, group: number): World {
  const queryHeads = group;
  const fixed = { headDim: 64, kvHeads: 1, queryHeads, blockTokens: 16, blockCount: 1000, layerCount: 1, kvType };
  const options = randomOptions(random, fixed);
  const blockIds = Array.from({ length: 1000 }, (_, index) => 999 - index);
  const own = { blockIds, firstToken: 3, tokenCount: 15_990, offset: 0 };
  const pieces = [{ firstPosition: 20_000, rowCount: 1, seen: [], own }];
  const values = random.normals(1000 * 16 * 64 * 2);
  const kv = storedAs(fixed, values);
  return { options, pieces, batch: batchOf(pieces, 16), kv, qkv: random.normals((group + 2) * 64), norms: undefined };
}
