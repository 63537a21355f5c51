/** Bad plans, bad sizes and use after close: refused with a reason before any work, never a crash. */
import { afterAll, describe, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { type AttentionBatch, CpuKernels, KernelError, type KvPoolOptions } from "../../worker/native/cpu-kernels.ts";
import { testSeed } from "../support/seed.ts";
import { Random } from "./random.ts";
import { batchOf, elementsOf, randomOptions, randomWorld } from "./world.ts";

const libraryPath = await buildCpuKernels();
const kernels = new CpuKernels(libraryPath, { threadCount: 2 });
afterAll(() => kernels.close());

const options: KvPoolOptions = {
  layerCount: 2,
  blockCount: 8,
  blockTokens: 4,
  queryHeads: 4,
  kvHeads: 2,
  headDim: 16,
  kvType: "float32",
  rope: { inverseFrequencies: new Float32Array(8) },
  maxPositions: 64,
};
const pool = kernels.openPool(options);
/** Two pieces: three rows that see a span of five tokens, one row alone. */
const good = batchOf(
  [
    {
      firstPosition: 10,
      rowCount: 3,
      seen: [{ blockIds: [6, 2], firstToken: 1, tokenCount: 5, offset: 4 }],
      own: { blockIds: [0, 1], firstToken: 0, tokenCount: 6, offset: 0 },
    },
    { firstPosition: 0, rowCount: 1, seen: [], own: { blockIds: [3], firstToken: 2, tokenCount: 1, offset: 0 } },
  ],
  4,
);
const copies = (sources: number[], targets: number[], deltas: number[]) => ({
  sourceSlots: Int32Array.from(sources),
  targetSlots: Int32Array.from(targets),
  deltas: Int32Array.from(deltas),
});
const changed = (array: Int32Array, index: number, value: number) => array.with(index, value) as Int32Array;

describe("beginStep", () => {
  test("takes the good plan", () => {
    pool.beginStep(good);
  });

  const cases: [reason: string, batch: Partial<AttentionBatch>, message: RegExp][] = [
    ["a block id beyond the pool", { blockIds: changed(good.blockIds, 0, 8) }, /block id/],
    ["a negative block id", { blockIds: changed(good.blockIds, 1, -1) }, /block id/],
    ["too few blocks", { blockIds: good.blockIds.slice(0, -1) }, /segment/],
    ["a segment start beyond the ids", { segmentBlockStarts: changed(good.segmentBlockStarts, 0, 99) }, /segment/],
    [
      "a segment start that overflows",
      { segmentBlockStarts: changed(good.segmentBlockStarts, 0, 2 ** 31 - 1) },
      /segment/,
    ],
    ["a negative token count", { segmentTokenCounts: changed(good.segmentTokenCounts, 0, -1) }, /segment/],
    ["a huge token count", { segmentTokenCounts: changed(good.segmentTokenCounts, 0, 2 ** 31 - 1) }, /segment/],
    ["a first token outside its block", { segmentFirstTokens: changed(good.segmentFirstTokens, 0, 4) }, /segment/],
    ["an own run shorter than its rows", { segmentTokenCounts: changed(good.segmentTokenCounts, 1, 2) }, /segment/],
    ["an offset beyond the context", { segmentOffsets: changed(good.segmentOffsets, 0, 64) }, /maxPositions/],
    ["a position beyond the context", { positions: changed(good.positions, 0, 64) }, /maxPositions/],
    ["a negative position", { positions: changed(good.positions, 0, -1) }, /maxPositions/],
    ["a slot that is not the own run's", { slots: changed(good.slots, 3, 15) }, /slots/],
    ["a slot beyond the pool", { slots: changed(good.slots, 3, 1000) }, /slots/],
    ["piece rows that fall", { pieceRows: Int32Array.of(0, 5, 4) }, /pieceRows/],
    ["an empty piece", { pieceRows: Int32Array.of(0, 0, 4) }, /pieceRows/],
    ["a piece without segments", { pieceSegments: Int32Array.of(0, 3, 3) }, /pieceSegments/],
    ["piece segments that end early", { pieceSegments: Int32Array.of(0, 1, 2) }, /pieceSegments/],
    ["fewer slots than rows", { slots: good.slots.slice(1) }, /slots must have 4 elements/],
    ["fewer offsets than segments", { segmentOffsets: good.segmentOffsets.slice(1) }, /must have 2 elements/],
    ["more pieces said to be generated", { pieceGenerated: Int32Array.of(0, 1, 0) }, /pieceGenerated must have 2/],
    ["no rows", { positions: new Int32Array(0), slots: new Int32Array(0) }, /positions/],
    ["no blocks", { blockIds: new Int32Array(0) }, /blockIds/],
  ];
  test.each(cases)("refuses %s", (_reason, change, message) => {
    expect(() => pool.beginStep({ ...good, ...change })).toThrow(message);
    // The step before is gone too: attention must not run on half a plan.
    expect(() => pool.attention(0, new Float32Array(4 * pool.qkvWidth), new Float32Array(256))).toThrow(/no step/);
  });

  test("refuses two rows with one slot", () => {
    const twice = { blockIds: [5], firstToken: 0, tokenCount: 1, offset: 0 };
    const piece = { firstPosition: 0, rowCount: 1, seen: [], own: twice };
    expect(() => pool.beginStep(batchOf([piece, piece], 4))).toThrow(/written twice/);
    pool.beginStep(batchOf([piece], 4));
    pool.beginStep(batchOf([piece], 4)); // Another step may write it again.
  });

  test("survives arrays of random numbers", () => {
    const random = new Random(testSeed());
    const world = randomWorld(random, randomOptions(random, { headDim: 16 }));
    const wild = kernels.openPool(world.options);
    elementsOf(wild).fill(0);
    const names = Object.keys(world.batch) as Exclude<keyof AttentionBatch, "choices">[];
    const out = new Float32Array(world.batch.positions.length * wild.outWidth);
    let refused = 0;
    for (let round = 0; round < 3000; round++) {
      const name = random.pick(names);
      const array = (world.batch[name] ?? Int32Array.of(0)).slice();
      const value = random.pick([random.integer(-2, 70), random.integer(-(2 ** 31), 2 ** 31 - 1)]);
      array[random.integer(0, array.length - 1)] = value;
      try {
        wild.beginStep({ ...world.batch, [name]: array });
        if (round % 20 === 0) wild.attention(0, world.qkv, out);
      } catch (error) {
        expect(error).toBeInstanceOf(KernelError);
        refused++;
      }
    }
    expect(refused).toBeGreaterThan(1000);
    wild.close();
  });
});

describe("sizes", () => {
  const row = new Float32Array(4 * pool.qkvWidth);
  const out = new Float32Array(4 * pool.outWidth);
  test.each([
    ["a layer beyond the pool", () => pool.attention(2, row, out), /layer/],
    ["a layer that is no number", () => pool.attention(Number.NaN, row, out), /layer/],
    ["a short qkv", () => pool.attention(0, row.subarray(1), out), /qkv/],
    ["a short out", () => pool.attention(0, row, out.subarray(1)), /out/],
    ["a short norm", () => pool.attention(0, row, out, { q: row, k: row.subarray(0, 15) }), /norms.k/],
    ["a copy to a slot beyond the pool", () => pool.copyTokens(copies([0], [32], [0])), /slots/],
    ["a copy from a slot before the pool", () => pool.copyTokens(copies([-1], [3], [0])), /slots/],
    ["two copies to one slot", () => pool.copyTokens(copies([0, 1], [3, 3], [0, 0])), /written twice/],
    [
      "a copy from a slot that is copied to",
      () => pool.copyTokens(copies([0, 3], [3, 4], [0, 0])),
      /copied from and to/,
    ],
    ["a copy moved beyond the context", () => pool.copyTokens(copies([0], [3], [-64])), /maxPositions/],
    ["copies of different lengths", () => pool.copyTokens(copies([0, 1], [3, 4], [0])), /deltas must have 2/],
    ["deviations in a layer beyond the pool", () => pool.deviations(2, row, out), /layer/],
    ["a short list of deviations", () => pool.deviations(0, row, new Float32Array(3)), /out/],
  ] as const)("refuses %s", (_reason, call, message) => {
    pool.beginStep(good);
    expect(call).toThrow(message);
  });

  test.each([
    ["blockTokens that is no power of two", { blockTokens: 12 }],
    ["headDim that is no multiple of 8", { headDim: 20 }],
    ["headDim above 256", { headDim: 264 }],
    ["query heads that the KV heads do not divide", { queryHeads: 5 }],
    ["no layers", { layerCount: 0 }],
    ["rotation of more than the head", { rope: { inverseFrequencies: new Float32Array(9) } }],
    ["a frequency that is no number", { rope: { inverseFrequencies: new Float32Array(8).fill(Number.NaN) } }],
    ["a scale of 0", { softmaxScale: 0 }],
    [
      "2^24 blocks of 2^10 layers",
      { layerCount: 1024, blockCount: 2 ** 24, headDim: 256, kvHeads: 1024, queryHeads: 1024 },
    ],
  ] as const)("openPool refuses %s", (_reason, change) => {
    expect(() => kernels.openPool({ ...options, ...change } as KvPoolOptions)).toThrow(/configuration/);
  });

  test("openPool refuses a list of rotated layers of another length", () => {
    const rope = { ...options.rope, layers: [true] };
    expect(() => kernels.openPool({ ...options, layerCount: 2, rope })).toThrow(/rope.layers must have 2 elements/);
  });

  test("openPool refuses a size that is no integer", () => {
    expect(() => kernels.openPool({ ...options, blockCount: 1.5 })).toThrow(/blockCount must be an integer/);
  });

  test("threadCount has bounds", () => {
    expect(() => new CpuKernels(libraryPath, { threadCount: 0 })).toThrow(/threadCount/);
    expect(() => new CpuKernels(libraryPath, { threadCount: 257 })).toThrow(/threadCount/);
  });
});

describe("a sequence", () => {
  const own = kernels.openPool(options);
  const matrix = kernels.openMatrix({ outputs: 64, inputs: 64, form: "b16" });
  const product = { kind: "product", matrix, x: "attention", out: "residual", options: {} } as const;
  const attention = { kind: "attention", layer: 1, norms: undefined } as const;
  const sequence = own.openSequence([attention, product]);
  const rows = (width: number) => new Float32Array(4 * width);
  const unused = new Float32Array(1);
  const buffers = {
    ...{ residual: rows(64), qkv: rows(own.qkvWidth), attention: rows(own.outWidth) },
    ...{ branch: unused, gated: unused, logits: unused },
  };

  test("runs for the rows of a step", () => {
    expect(() => sequence.run(0, 2, 4, buffers)).toThrow(/no step has begun/);
    own.beginStep(good);
    sequence.run(0, 2, 4, buffers);
    expect(() => sequence.run(0, 2, 3, buffers)).toThrow(/row count/);
    expect(() => sequence.run(0, 3, 4, buffers)).toThrow(/end must be an integer from 0 to 2/);
    expect(() => sequence.run(2, 1, 4, buffers)).toThrow(/end must be an integer from 2/);
    expect(() => sequence.run(0, 2, 4, { ...buffers, residual: rows(63) })).toThrow(/residual must have at least 256/);
    // Operations that are left out use nothing.
    sequence.run(0, 1, 4, { ...buffers, residual: unused });
  });

  const other = new CpuKernels(libraryPath, { threadCount: 1 });
  afterAll(() => other.close());
  const foreign = other.openMatrix({ outputs: 64, inputs: 64, form: "b16" });
  test.each([
    ["attention of a layer beyond the pool", { ...attention, layer: 2 }, /layer must be/],
    ["a short norm of heads", { ...attention, norms: { q: unused, k: unused } }, /norm must have at least 16/],
    ["a product onto its own rows", { ...product, out: "attention" }, /a product's rows/],
    ["rows shorter than the matrix takes", { ...product, options: { xStride: 63 } }, /a product's rows/],
    ["a short bias", { ...product, options: { bias: unused } }, /bias must have at least 64/],
    ["a matrix of another context", { ...product, matrix: foreign }, /a product's rows/],
    [
      "a norm beyond its row",
      {
        kind: "norm",
        x: "qkv",
        out: "qkv",
        offset: 100,
        options: { norm: { weights: rows(10), epsilon: 0 }, finish: "store", xStride: 128, outStride: 128 },
      },
      /offset must be an integer from 0 to 88/,
    ],
  ] as const)("refuses %s", (_reason, operation, message) => {
    expect(() => own.openSequence([operation])).toThrow(message);
  });

  test("ends with its pool", () => {
    own.close();
    expect(() => sequence.run(0, 2, 4, buffers)).toThrow("the sequence is closed");
    sequence.close();
    matrix.close();
  });
});

test("nothing works after close, and closing twice is fine", () => {
  const own = new CpuKernels(libraryPath, { threadCount: 2 });
  const first = own.openPool(options);
  const second = own.openPool(options);
  first.close();
  first.close();
  expect(() => first.beginStep(good)).toThrow(/closed/);
  own.close();
  own.close();
  expect(() => second.beginStep(good)).toThrow(/closed/);
  expect(() => second.memory()).toThrow(/closed/);
  expect(() => own.openPool(options)).toThrow(/closed/);
  const table = { data: new Float32Array(1), type: "float32", rowCount: 1, width: 1 } as const;
  expect(() => own.embedRows(table, Int32Array.of(0), new Float32Array(1))).toThrow(/closed/);
});

test("pages that were never written take no memory", () => {
  const large = kernels.openPool({ ...options, blockTokens: 16, blockCount: 100_000, headDim: 64 });
  expect(large.kvBytes).toBe(2 * 100_000 * 2 * 2 * 64 * 16 * 4);
  expect(large.kvBytesPerBlock * 100_000).toBe(large.kvBytes);
  expect(large.residentBytes()).toBeLessThan(2 ** 20);
  new Float32Array(large.memory(), 0, 2 ** 20).fill(1);
  expect(large.residentBytes()).toBeGreaterThanOrEqual(4 * 2 ** 20);
  expect(large.residentBytes()).toBeLessThan(16 * 2 ** 20);
  large.close();
});
