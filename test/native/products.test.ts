/**
 * Products of packed matrices on every instruction set that the machine has, against plain loops in float64 over the
 * weights as they were given: random numbers with outliers, outputs poisoned before, and every tail of rows, outputs
 * and inputs.
 */
import { afterAll, describe, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { CpuKernels, type Isa, type Matrix, type ProductOptions } from "../../worker/native/cpu-kernels.ts";
import { testSeed } from "../support/seed.ts";
import { firstDifferentBits } from "./compare.ts";
import { Random } from "./random.ts";
import { halfBits } from "./world.ts";

const libraryPath = await buildCpuKernels();
const isas = ["reference", "avx2 without VNNI", "avx2", "avx512 without VNNI", "avx512", "amx"] as const;

function kernelsFor(isa: Isa, threadCount = 2): CpuKernels | undefined {
  try {
    return new CpuKernels(libraryPath, { isa, threadCount });
  } catch {
    return undefined; // This CPU lacks the instruction set, or the system refuses it: the tests below say "skip".
  }
}

const all = new Map(isas.map((isa) => [isa, kernelsFor(isa)]));
afterAll(() => {
  for (const kernels of all.values()) kernels?.close();
});

interface Case {
  readonly rows: number;
  readonly outputs: number;
  readonly inputs: number;
}

/** Tails of panels of 16 rows and outputs, of pairs and blocks of 4, of tiles of 32 and 64 inputs, groups of 256, and 4 groups. */
const cases: readonly Case[] = [
  { rows: 1, outputs: 1, inputs: 1 },
  { rows: 2, outputs: 15, inputs: 31 },
  { rows: 7, outputs: 33, inputs: 65 },
  { rows: 16, outputs: 64, inputs: 384 },
  { rows: 17, outputs: 17, inputs: 257 },
  { rows: 33, outputs: 48, inputs: 640 },
  { rows: 300, outputs: 40, inputs: 96 },
  { rows: 3, outputs: 33, inputs: 1_400 },
  { rows: 140, outputs: 170, inputs: 1_100 },
];

interface Stored {
  readonly type: "bfloat16" | "float16" | "float32";
  readonly parts: 1 | 2 | 3;
}
const stored: readonly Stored[] = [
  { type: "bfloat16", parts: 1 },
  { type: "float16", parts: 2 },
  { type: "float32", parts: 3 },
];

/** Random weights that the type holds exactly, as they are stored and as numbers. */
function weightsOf(random: Random, count: number, { type }: Stored) {
  const values = random.normals(count);
  if (type === "float32") return { data: values, values };
  if (type === "float16") {
    const data = Uint16Array.from(values, halfBits);
    return { data, values: new Float32Array(new Float16Array(data.buffer)) };
  }
  const bits = new Uint32Array(values.buffer).map((word) => word & 0xffff0000);
  return { data: Uint16Array.from(bits, (word) => word >>> 16), values: new Float32Array(bits.buffer) };
}

/** sum(x w) and sum(|x w|) of every row and output, in float64. */
function exact(x: Float32Array, weights: Float32Array, { rows, outputs, inputs }: Case) {
  const sums = new Float64Array(rows * outputs);
  const sizes = new Float64Array(rows * outputs);
  for (let row = 0; row < rows; row++) {
    for (let output = 0; output < outputs; output++) {
      for (let i = 0; i < inputs; i++) {
        const product = x[row * inputs + i] * weights[output * inputs + i];
        sums[row * outputs + output] += product;
        sizes[row * outputs + output] += Math.abs(product);
      }
    }
  }
  return { sums, sizes };
}

/** Outputs of a poisoned buffer that is longer than needed, whose end must stay as it was. */
function multiply(matrix: Matrix, x: Float32Array, rows: number, width: number, options?: ProductOptions) {
  const out = new Float32Array(rows * width + 5).fill(Number.NaN);
  matrix.multiply(x, rows, out, options);
  expect(out.subarray(rows * width).every(Number.isNaN)).toBe(true);
  return out.slice(0, rows * width);
}

/** Greatest |actual - expected| / size; infinite where a number is missing. */
function worst(actual: Float32Array, expected: ArrayLike<number>, sizes: ArrayLike<number>): number {
  return actual.reduce((greatest, value, i) => {
    const excess = Math.abs(value - expected[i]) / (sizes[i] + 1e-30);
    return excess <= greatest ? greatest : Number.isNaN(excess) ? Number.POSITIVE_INFINITY : excess;
  }, 0);
}

/** Hendrycks and Gimpel 2016, "Gaussian error linear units": the form with tanh. */
const gelu = (x: number): number => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
const gates = [
  { finish: "gate", of: (gate: number, up: number) => (gate / (1 + Math.exp(-gate))) * up },
  { finish: "gateGelu", of: (gate: number, up: number) => gelu(gate) * up },
  // As in gpt-oss, whose experts cut both and give the up one more.
  {
    finish: "gateClamped",
    of: (gate: number, up: number) => {
      const [cut, bounded] = [Math.min(gate, 7), Math.min(Math.max(up, -7), 7)];
      return (cut / (1 + Math.exp(-1.702 * cut))) * (bounded + 1);
    },
  },
] as const;

describe.each(isas)("%s", (isa) => {
  const kernels = all.get(isa);
  const testHere = test.skipIf(kernels === undefined);
  const here = (): CpuKernels => {
    if (kernels === undefined) throw new Error("skipped tests do not run");
    return kernels;
  };

  testHere.each(stored)("b16 holds $type exactly, and sums up in float32", ({ type, parts }) => {
    const random = new Random(testSeed());
    for (const each of cases) {
      const { data, values } = weightsOf(random, each.outputs * each.inputs, { type, parts });
      const matrix = here().openMatrix({ ...each, form: "b16", parts });
      matrix.fill({ data, type }, { rowCount: each.outputs, firstOutput: 0 });
      const x = random.normals(each.rows * each.inputs);
      const { sums, sizes } = exact(x, values, each);
      // A sum of n products in float32, whose rounding errors do not line up: sqrt(n) 2^-24 of the sizes, and as
      // much again for each rounding of a product. 8 bits of a number leave 2^-8 of it at most, 16 bits 2^-16; of
      // weights in several parts, a product of two second parts is left out, which is as small.
      const rounding = (Math.sqrt(each.inputs) + 4) * 2 ** -24;
      const whole = multiply(matrix, x, each.rows, each.outputs, { parts: 3 });
      expect(worst(whole, sums, sizes)).toBeLessThan(rounding);
      const two = multiply(matrix, x, each.rows, each.outputs, { parts: 2 });
      expect(worst(two, sums, sizes)).toBeLessThan(rounding + (parts === 1 ? 1 : 2) * 2 ** -16);
      const one = multiply(matrix, x, each.rows, each.outputs, { parts: 1 });
      expect(worst(one, sums, sizes)).toBeLessThan(rounding + 2 ** -8);
      matrix.close();
    }
  });

  testHere("int8 gives the bits of the plain loops", () => {
    const random = new Random(testSeed());
    const plain = all.get("reference");
    for (const each of cases) {
      const values = random.normals(each.outputs * each.inputs);
      const x = random.normals(each.rows * each.inputs);
      const answers = [here(), plain ?? here()].map((kernelsOf) => {
        const matrix = kernelsOf.openMatrix({ ...each, form: "int8" });
        matrix.fill({ data: values, type: "float32" }, { rowCount: each.outputs, firstOutput: 0 });
        const out = multiply(matrix, x, each.rows, each.outputs);
        matrix.close();
        return out;
      });
      expect(firstDifferentBits(answers[0], answers[1])).toBe(-1);
      expect(worst(answers[0], ...int8Bound(x, values, each))).toBeLessThan(1);
    }
  });

  testHere("a row's bits are the same alone and among others, on any number of threads", () => {
    const random = new Random(testSeed());
    const single = kernelsFor(isa, 1);
    for (const form of ["b16", "int8"] as const) {
      const each = { rows: 70, outputs: 200, inputs: 700 };
      const { data } = weightsOf(random, each.outputs * each.inputs, { type: "bfloat16", parts: 1 });
      const x = random.normals(each.rows * each.inputs);
      const norm = { weights: random.normals(each.inputs), epsilon: 1e-6 };
      const open = (kernelsOf: CpuKernels) => {
        const matrix = kernelsOf.openMatrix({ ...each, form });
        matrix.fill({ data, type: "bfloat16" }, { rowCount: each.outputs, firstOutput: 0 });
        return matrix;
      };
      const matrix = open(here());
      const together = multiply(matrix, x, each.rows, each.outputs, { norm });
      for (const [first, count] of [
        [0, 1],
        [5, 1],
        [3, 12],
        [16, 16],
        [1, 47],
      ] as const) {
        const some = x.slice(first * each.inputs, (first + count) * each.inputs);
        const part = multiply(matrix, some, count, each.outputs, { norm });
        const same = together.slice(first * each.outputs, (first + count) * each.outputs);
        expect(firstDifferentBits(part, same)).toBe(-1);
      }
      if (single !== undefined) {
        expect(firstDifferentBits(together, multiply(open(single), x, each.rows, each.outputs, { norm }))).toBe(-1);
      }
      matrix.close();
    }
    single?.close();
  });

  testHere("norm, factor, bias and sum", () => {
    const random = new Random(testSeed());
    const each = { rows: 19, outputs: 35, inputs: 100 };
    const { data, values } = weightsOf(random, each.outputs * each.inputs, { type: "bfloat16", parts: 1 });
    const matrix = here().openMatrix({ ...each, form: "b16" });
    // Two tensors of one input side by side, as q, k and v are.
    matrix.fill({ data, type: "bfloat16" }, { rowCount: 20, firstOutput: 0 });
    matrix.fill({ data: data.slice(20 * each.inputs), type: "bfloat16" }, { rowCount: 15, firstOutput: 20 });
    const x = random.normals(each.rows * each.inputs);
    const weights = random.normals(each.inputs);
    const normed = x.map((value, i) => {
      const row = x.subarray(i - (i % each.inputs), i - (i % each.inputs) + each.inputs);
      const squares = row.reduce((sum, other) => sum + other * other, 0);
      return (value / Math.sqrt(squares / each.inputs + 1e-3)) * weights[i % each.inputs];
    });
    const bias = random.normals(each.outputs);
    const before = random.normals(each.rows * each.outputs);
    const { sums, sizes } = exact(normed, values, each);
    const out = before.slice();
    const options = { norm: { weights, epsilon: 1e-3 }, factor: 0.25, bias, finish: "add", parts: 3 } as const;
    matrix.multiply(x, each.rows, out, options);
    const expected = sums.map((sum, i) => before[i] + 0.25 * sum + bias[i % each.outputs]);
    expect(
      worst(
        out,
        expected,
        sizes.map((size) => size + 30),
      ),
    ).toBeLessThan(1e-6);
    matrix.close();
  });

  testHere("rows that are gathered and added elsewhere have the bits of rows in their places", () => {
    const random = new Random(testSeed());
    const each = { outputs: 40, inputs: 96 };
    const { data } = weightsOf(random, each.outputs * each.inputs, { type: "bfloat16", parts: 1 });
    const matrix = here().openMatrix({ ...each, form: "b16" });
    matrix.fill({ data, type: "bfloat16" }, { rowCount: each.outputs, firstOutput: 0 });
    const x = random.normals(30 * each.inputs);
    const xRows = Int32Array.of(29, 3, 3, 0, 17);
    const outRows = Int32Array.of(0, 2, 3, 7, 9);
    const rowFactors = Float32Array.of(1, -2, 0.5, 0, 4);
    const plain = multiply(matrix, x, 30, each.outputs);
    const out = new Float32Array(10 * each.outputs).fill(3);
    matrix.multiply(x, 5, out, { finish: "add", xRows, outRows, rowFactors });
    const expected = new Float32Array(10 * each.outputs).fill(3);
    for (const [i, row] of xRows.entries()) {
      for (let output = 0; output < each.outputs; output++) {
        expected[outRows[i] * each.outputs + output] += Math.fround(plain[row * each.outputs + output] * rowFactors[i]);
      }
    }
    expect(firstDifferentBits(out, expected)).toBe(-1);
    const options = { finish: "add", xRows, outRows } as const;
    expect(() => matrix.multiply(x, 5, out.subarray(1), options)).toThrow(/out must have at least 400/);
    expect(() => matrix.multiply(x.subarray(1), 5, out, options)).toThrow(/x must have at least 2880/);
    expect(() => matrix.multiply(x, 6, out, options)).toThrow(/xRows must have at least 6/);
    expect(() => matrix.multiply(x, 5, out, { ...options, outRows: outRows.toReversed() })).toThrow(/product/);
    expect(() => matrix.multiply(x, 5, out, { ...options, xRows: xRows.map((row) => -row) })).toThrow(/product/);
    expect(() => matrix.multiply(x, 5, out, { ...options, finish: "store" })).toThrow(/product/);
    matrix.close();
  });

  testHere.each(gates)("$finish: the activation of one half times the other", ({ finish, of }) => {
    const random = new Random(testSeed());
    const each = { rows: 18, outputs: 40, inputs: 70 };
    const gates = weightsOf(random, each.outputs * each.inputs, { type: "bfloat16", parts: 1 });
    const ups = weightsOf(random, each.outputs * each.inputs, { type: "bfloat16", parts: 1 });
    const padded = 48;
    const matrix = here().openMatrix({ outputs: 2 * padded, inputs: each.inputs, form: "b16" });
    const place = { rowCount: each.outputs, everyOtherPanel: true };
    matrix.fill({ data: gates.data, type: "bfloat16" }, { ...place, firstOutput: 0 });
    matrix.fill({ data: ups.data, type: "bfloat16" }, { ...place, firstOutput: 16 });
    const x = random.normals(each.rows * each.inputs);
    // As the matrix has them: 16 of gates, then 16 of ups; zeros where there is no output.
    const bias = random
      .normals(2 * padded)
      .map((value, i) => (16 * (i >> 5) + (i & 15) < each.outputs ? 3 * value : 0));
    const out = multiply(matrix, x, each.rows, padded, { finish, parts: 3, bias });
    const [gate, up] = [exact(x, gates.values, each), exact(x, ups.values, each)];
    for (let row = 0; row < each.rows; row++) {
      for (let output = 0; output < padded; output++) {
        const i = row * each.outputs + output;
        const isThere = output < each.outputs;
        const biasAt = 32 * (output >> 4) + (output & 15);
        const expected = isThere ? of(gate.sums[i] + bias[biasAt], up.sums[i] + bias[biasAt + 16]) : 0;
        const size = isThere ? gate.sizes[i] * up.sizes[i] + 1 : 1;
        expect(Math.abs(out[row * padded + output] - expected)).toBeLessThanOrEqual(4e-6 * size);
      }
    }
    matrix.close();
  });

  testHere("cap: tanh, of the size of the factor's inverse", () => {
    const random = new Random(testSeed());
    const each = { rows: 3, outputs: 35, inputs: 70 };
    const { data, values } = weightsOf(random, each.outputs * each.inputs, { type: "bfloat16", parts: 1 });
    const matrix = here().openMatrix({ ...each, form: "b16" });
    matrix.fill({ data, type: "bfloat16" }, { rowCount: each.outputs, firstOutput: 0 });
    const x = random.normals(each.rows * each.inputs);
    const { sums, sizes } = exact(x, values, each);
    const out = multiply(matrix, x, each.rows, each.outputs, { finish: "cap", factor: 1 / 5, parts: 3 });
    const expected = sums.map((sum) => 5 * Math.tanh(sum / 5));
    expect(
      worst(
        out,
        expected,
        sizes.map((size) => size + 5),
      ),
    ).toBeLessThan(1e-6);
    expect(() => matrix.multiply(x, 1, out, { finish: "cap", factor: 0 })).toThrow(/finish/);
    matrix.close();
  });

  testHere("what is not finite stays in its row", () => {
    const random = new Random(testSeed());
    for (const form of ["b16", "int8"] as const) {
      const each = { rows: 20, outputs: 32, inputs: 300 };
      const matrix = here().openMatrix({ ...each, form });
      matrix.fill(
        { data: random.normals(each.outputs * each.inputs), type: "float32" },
        { rowCount: each.outputs, firstOutput: 0 },
      );
      const x = random.normals(each.rows * each.inputs);
      const clean = multiply(matrix, x, each.rows, each.outputs);
      x[3 * each.inputs + 7] = Number.NaN;
      x[17 * each.inputs + 299] = Number.POSITIVE_INFINITY;
      const out = multiply(matrix, x, each.rows, each.outputs);
      for (let row = 0; row < each.rows; row++) {
        const own = out.slice(row * each.outputs, (row + 1) * each.outputs);
        if (row === 3 || row === 17) expect(own.some((value) => Number.isFinite(value))).toBe(false);
        else expect(own).toEqual(clean.slice(row * each.outputs, (row + 1) * each.outputs));
      }
      matrix.close();
    }
  });

  testHere("wrong shapes are refused", () => {
    const matrix = here().openMatrix({ outputs: 33, inputs: 10, form: "b16" });
    const data = new Float32Array(330);
    const x = new Float32Array(20);
    const out = new Float32Array(66);
    expect(() => here().openMatrix({ outputs: 0, inputs: 10, form: "b16" })).toThrow(/outputs/);
    expect(() => here().openMatrix({ outputs: 8, inputs: 10, form: "int8", parts: 2 })).toThrow(/parts/);
    expect(() => matrix.fill({ data, type: "float32" }, { rowCount: 33, firstOutput: 1 })).toThrow(/do not fit/);
    expect(() => matrix.fill({ data, type: "bfloat16" }, { rowCount: 3, firstOutput: 0 })).toThrow(/array type/);
    expect(() => matrix.fill({ data, type: "float32" }, { rowCount: 34, firstOutput: 0 })).toThrow(/at least 340/);
    expect(() => matrix.multiply(x, 3, out)).toThrow(/x must have at least 30/);
    expect(() => matrix.multiply(x, 2, out.subarray(1))).toThrow(/out must have at least 66/);
    expect(() => matrix.multiply(x, 2, out, { finish: "gate", outStride: 33 })).toThrow(/finish/);
    expect(() => matrix.multiply(x, 2, out, { factor: Number.NaN })).toThrow(/product/);
    matrix.close();
    expect(() => matrix.multiply(x, 2, out)).toThrow(/closed/);
  });
});

/**
 * Sums in float64, and how far rounding both sides to 8 bits may take them: a number is off by half a step, 1/254 of
 * the greatest of its group, so a product by that much of the other side's size, and both together.
 */
function int8Bound(x: Float32Array, weights: Float32Array, each: Case): [Float64Array, Float64Array] {
  const { rows, outputs, inputs } = each;
  const tiles = Math.ceil(inputs / 64);
  const groups = Math.ceil(tiles / 4);
  const groupOf = (i: number) => {
    for (let group = 0; ; group++) if (Math.floor(i / 64) < Math.floor((tiles * (group + 1)) / groups)) return group;
  };
  const greatest = (values: Float32Array, rowCount: number) => {
    const found = new Float64Array(rowCount * groups);
    values.forEach((value, i) => {
      const at = Math.floor(i / inputs) * groups + groupOf(i % inputs);
      found[at] = Math.max(found[at], Math.abs(value));
    });
    return found;
  };
  const [ofRows, ofWeights] = [greatest(x, rows), greatest(weights, outputs)];
  const groupAt = Array.from({ length: inputs }, (_, i) => groupOf(i));
  const bounds = new Float64Array(rows * outputs);
  for (let row = 0; row < rows; row++) {
    for (let output = 0; output < outputs; output++) {
      let bound = 1e-3;
      for (let i = 0; i < inputs; i++) {
        const offX = ofRows[row * groups + groupAt[i]] / 254;
        const offW = ofWeights[output * groups + groupAt[i]] / 254;
        const [sizeX, sizeW] = [Math.abs(x[row * inputs + i]), Math.abs(weights[output * inputs + i])];
        bound += 1.01 * (offX * sizeW + offW * sizeX + offX * offW);
      }
      bounds[row * outputs + output] = bound;
    }
  }
  return [exact(x, weights, each).sums, bounds];
}
