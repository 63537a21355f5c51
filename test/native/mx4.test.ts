/** Matrices in MXFP4: the bits of the same weights in bfloat16, on every instruction set, and what is refused. */
import { afterAll, describe, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { type CpuKernels, openCpuKernels, type ProductOptions } from "../../worker/native/cpu-kernels.ts";
import { testSeed } from "../support/seed.ts";
import { firstDifferentBits } from "./compare.ts";
import { kernelsOf } from "./instruction-set.ts";
import { Random } from "./random.ts";

const libraryPath = await buildCpuKernels();
const isas = ["reference", "avx2", "avx512 without VNNI", "avx512", "amx"] as const;

/** OCP Microscaling Formats 1.0, table 5: sign, 2 bits of exponent, 1 of mantissa. */
const numbers = [0, 0.5, 1, 1.5, 2, 3, 4, 6];
const weightOf = (bits: number, scale: number) => (bits & 8 ? -1 : 1) * numbers[bits & 7] * 2 ** (scale - 127);

/** Random blocks of `rows` rows, and the weights that they hold. */
function randomBlocks(random: Random, rows: number, inputs: number, scaleOf = () => random.integer(117, 130)) {
  const scales = Uint8Array.from({ length: (rows * inputs) / 32 }, scaleOf);
  const blocks = Uint8Array.from({ length: (rows * inputs) / 2 }, () => random.integer(0, 255));
  const values = Float32Array.from({ length: rows * inputs }, (_, i) => {
    const byte = blocks[i >> 1];
    return weightOf(i % 2 === 0 ? byte & 15 : byte >> 4, scales[Math.floor(i / 32)]);
  });
  return { blocks, scales, values };
}

function product(kernels: CpuKernels, form: "mx4" | "b16", shape: Shape, random: Random, options?: ProductOptions) {
  const { rows, outputs, inputs } = shape;
  const { blocks, scales, values } = randomBlocks(random, outputs, inputs);
  const x = random.normals(rows * inputs);
  const matrix = kernels.openMatrix({ outputs, inputs, form });
  const place = { rowCount: outputs, firstOutput: 0 };
  if (form === "mx4") matrix.fillBlocks({ blocks, scales, rowStep: 1 }, place);
  else matrix.fill({ data: values, type: "float32" }, place);
  const out = new Float32Array(rows * outputs).fill(Number.NaN);
  matrix.multiply(x, rows, out, options);
  const bytes = matrix.bytes;
  matrix.close();
  return { out, bytes };
}

interface Shape {
  readonly rows: number;
  readonly outputs: number;
  readonly inputs: number;
}

describe.each(isas)("%s", (isa) => {
  const { testHere, here } = kernelsOf(libraryPath, isa, 2);

  testHere.each([
    { rows: 1, outputs: 1, inputs: 32 },
    { rows: 3, outputs: 50, inputs: 96 },
    { rows: 1, outputs: 300, inputs: 1_024 },
    { rows: 40, outputs: 70, inputs: 160 },
    { rows: 300, outputs: 100, inputs: 64 },
  ])("$rows rows, $outputs outputs, $inputs inputs have the bits of bfloat16", (shape) => {
    const seed = testSeed();
    const [narrow, wide] = (["mx4", "b16"] as const).map((form) => product(here(), form, shape, new Random(seed)));
    expect(narrow.out.some((value) => value !== 0)).toBe(true);
    expect(firstDifferentBits(narrow.out, wide.out)).toBe(-1);
    // 4 bits and a 32nd of 8, in whole pairs of 16 outputs.
    expect(narrow.bytes).toBe((Math.ceil(shape.outputs / 32) * 32 * shape.inputs * 17) / 32);
  });

  testHere("all scales, and numbers too small for bfloat16 as zeros", () => {
    const inputs = 32 * 228;
    let at = 0;
    const { blocks, scales, values } = randomBlocks(new Random(testSeed()), 1, inputs, () => at++);
    const matrix = here().openMatrix({ outputs: 1, inputs, form: "mx4" });
    matrix.fillBlocks({ blocks, scales, rowStep: 1 }, { rowCount: 1, firstOutput: 0 });
    // One input at a time, by rows that name it.
    for (const group of [0, 1, 2, 3, 100, 127, 200, 227]) {
      const x = new Float32Array(inputs);
      x[32 * group + 5] = 1;
      const out = new Float32Array(1);
      matrix.multiply(x, 1, out, { parts: 3 });
      expect(out[0]).toBe(group < 2 ? 0 : values[32 * group + 5] + 0);
    }
    matrix.close();
  });
});

const kernels = await openCpuKernels({ threadCount: 2 });
afterAll(() => kernels.close());

test("every other row, gates and ups side by side, and other forms are refused", () => {
  const random = new Random(testSeed());
  const { blocks, scales, values } = randomBlocks(random, 40, 64);
  const matrix = kernels.openMatrix({ outputs: 64, inputs: 64, form: "mx4" });
  for (const half of [0, 1]) {
    const from = { blocks: blocks.subarray(half * 32), scales: scales.subarray(half * 2), rowStep: 2 } as const;
    matrix.fillBlocks(from, { rowCount: 20, firstOutput: 16 * half, everyOtherPanel: true });
  }
  const x = random.normals(64);
  const out = new Float32Array(64);
  matrix.multiply(x, 1, out, { parts: 3 });
  for (let row = 0; row < 40; row++) {
    const [index, half] = [row >> 1, row % 2];
    const expected = x.reduce((sum, value, i) => sum + value * values[row * 64 + i], 0);
    expect(out[32 * (index >> 4) + 16 * half + (index % 16)]).toBeCloseTo(expected, 3);
  }
  const place = { rowCount: 20, firstOutput: 0 };
  const fill = (change: object) => () => matrix.fillBlocks({ blocks, scales, rowStep: 1, ...change }, place);
  expect(fill({ scales: scales.map((scale, i) => (i === 7 ? 228 : scale)) })).toThrow(/out of range/);
  expect(fill({ scales: scales.subarray(41) })).toThrow(/scales must have at least 40/);
  expect(fill({ blocks: blocks.subarray(641) })).toThrow(/blocks must have at least 640/);
  expect(() => matrix.fill({ data: values, type: "float32" }, place)).toThrow(/out of range/);
  expect(() => kernels.openMatrix({ outputs: 64, inputs: 48, form: "mx4" })).toThrow(/out of range/);
  expect(() => kernels.openMatrix({ outputs: 64, inputs: 64, form: "mx4", parts: 2 })).toThrow(/out of range/);
  const other = kernels.openMatrix({ outputs: 64, inputs: 64, form: "b16" });
  expect(() => other.fillBlocks({ blocks, scales, rowStep: 1 }, place)).toThrow(/out of range/);
  for (const each of [matrix, other]) each.close();
});
