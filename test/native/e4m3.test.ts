/** Matrices in e4m3: the bits of the same weights in bfloat16 parts, on every instruction set, and what is refused. */
import { afterAll, describe, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { type CpuKernels, openCpuKernels, type ProductOptions } from "../../worker/native/cpu-kernels.ts";
import { fromE4m3 } from "../model/quantised-folder.ts";
import { testSeed } from "../support/seed.ts";
import { firstDifferentBits } from "./compare.ts";
import { kernelsOf } from "./instruction-set.ts";
import { Random } from "./random.ts";

const libraryPath = await buildCpuKernels();
const isas = ["reference", "avx2", "avx512 without VNNI", "avx512", "amx"] as const;

interface Shape {
  readonly rows: number;
  readonly outputs: number;
  readonly inputs: number;
  readonly scaleInputs: number;
  readonly parts: 1 | 2;
}

/** Random rows, with numbers of every size among them, and the weights that they hold. */
function randomRows(random: Random, { outputs, inputs, scaleInputs, parts }: Omit<Shape, "rows">) {
  const perRow = Math.ceil(inputs / scaleInputs);
  const scaleOf = () => (parts === 1 ? 2 ** -random.integer(5, 12) : 0.001 + 0.02 * random.next());
  const scales = Float32Array.from({ length: outputs * perRow }, scaleOf);
  const numbers = Uint8Array.from(
    { length: outputs * inputs },
    () => random.integer(0, 126) + 128 * random.integer(0, 1),
  );
  const values = Float32Array.from(numbers, (number, i) => {
    const [row, column] = [Math.floor(i / inputs), i % inputs];
    return fromE4m3(number) * scales[row * perRow + Math.floor(column / scaleInputs)];
  });
  return { numbers, scales, scaleInputs, values };
}

function product(kernels: CpuKernels, form: "e4m3" | "b16", shape: Shape, random: Random, options?: ProductOptions) {
  const { rows, outputs, inputs, parts } = shape;
  const stored = randomRows(random, shape);
  const x = random.normals(rows * inputs);
  const matrix = kernels.openMatrix({ outputs, inputs, form, parts });
  const place = { rowCount: outputs, firstOutput: 0 };
  if (form === "e4m3") matrix.fillE4m3(stored, place);
  else matrix.fill({ data: stored.values, type: "float32" }, place);
  const out = new Float32Array(rows * outputs).fill(Number.NaN);
  matrix.multiply(x, rows, out, options);
  const bytes = matrix.bytes;
  matrix.close();
  return { out, bytes };
}

describe.each(isas)("%s", (isa) => {
  const { testHere, here } = kernelsOf(libraryPath, isa, 2);

  testHere.each<Shape>([
    { rows: 1, outputs: 1, inputs: 32, scaleInputs: 32, parts: 2 },
    { rows: 3, outputs: 50, inputs: 100, scaleInputs: 64, parts: 2 },
    { rows: 1, outputs: 300, inputs: 1_024, scaleInputs: 128, parts: 2 },
    { rows: 1, outputs: 300, inputs: 1_024, scaleInputs: 1_024, parts: 1 },
    { rows: 40, outputs: 70, inputs: 160, scaleInputs: 128, parts: 2 },
    { rows: 300, outputs: 100, inputs: 64, scaleInputs: 64, parts: 1 },
  ])("%j has the bits of bfloat16", (shape) => {
    const seed = testSeed();
    const [narrow, wide] = (["e4m3", "b16"] as const).map((form) => product(here(), form, shape, new Random(seed)));
    expect(narrow.out.some((value) => value !== 0)).toBe(true);
    expect(firstDifferentBits(narrow.out, wide.out)).toBe(-1);
    // 8 bits and a 32nd of 32, in whole pairs of 16 outputs and tiles of 32 inputs.
    const [pairs, tiles] = [Math.ceil(shape.outputs / 32), Math.ceil(shape.inputs / 32)];
    expect(narrow.bytes).toBe(pairs * 32 * tiles * 36);
  });

  testHere("every number, alone", () => {
    const inputs = 256;
    const matrix = here().openMatrix({ outputs: 1, inputs, form: "e4m3", parts: 2 });
    const numbers = Uint8Array.from({ length: inputs }, (_, i) => ((i & 0x7f) === 0x7f ? 0 : i));
    matrix.fillE4m3({ numbers, scales: Float32Array.of(2), scaleInputs: 256 }, { rowCount: 1, firstOutput: 0 });
    for (let i = 0; i < inputs; i += 3) {
      const x = new Float32Array(inputs);
      x[i] = 1;
      const out = new Float32Array(1);
      matrix.multiply(x, 1, out, { parts: 3 });
      expect(out[0]).toBe(2 * fromE4m3(numbers[i]) + 0);
    }
    matrix.close();
  });
});

const kernels = await openCpuKernels({ threadCount: 2 });
afterAll(() => kernels.close());

test("a number that is none makes its output none; gates and ups side by side; other forms are refused", () => {
  const random = new Random(testSeed());
  const inputs = 64;
  const stored = randomRows(random, { outputs: 20, inputs, scaleInputs: 32, parts: 2 });
  stored.numbers[7 * inputs + 40] = 0xff;
  const matrix = kernels.openMatrix({ outputs: 64, inputs, form: "e4m3", parts: 2 });
  const place = { rowCount: 20, firstOutput: 16, everyOtherPanel: true };
  matrix.fillE4m3(stored, place);
  const x = random.normals(inputs);
  const out = new Float32Array(64);
  matrix.multiply(x, 1, out, { parts: 3 });
  for (let row = 0; row < 20; row++) {
    const expected = x.reduce((sum, value, i) => sum + value * stored.values[row * inputs + i], 0);
    const got = out[32 * (row >> 4) + 16 + (row % 16)];
    if (row === 7) expect(got).toBeNaN();
    else expect(got).toBeCloseTo(expected, 2);
  }
  const fill = (change: object) => () => matrix.fillE4m3({ ...stored, ...change }, { rowCount: 20, firstOutput: 0 });
  expect(fill({ scaleInputs: 48 })).toThrow(/out of range/);
  expect(fill({ scales: stored.scales.with(3, 2 ** 101) })).toThrow(/out of range/);
  expect(fill({ scales: stored.scales.with(3, Number.NaN) })).toThrow(/out of range/);
  expect(fill({ scaleInputs: 16 })).toThrow(/scaleInputs/);
  expect(fill({ scales: stored.scales.subarray(1) })).toThrow(/scales must have at least 40/);
  expect(fill({ numbers: stored.numbers.subarray(1) })).toThrow(/numbers must have at least 1280/);
  expect(() => matrix.fill({ data: stored.values, type: "float32" }, place)).toThrow(/out of range/);
  expect(() => kernels.openMatrix({ outputs: 64, inputs, form: "e4m3", parts: 3 })).toThrow(/out of range/);
  const other = kernels.openMatrix({ outputs: 64, inputs, form: "b16" });
  expect(() => other.fillE4m3(stored, place)).toThrow(/out of range/);
  for (const each of [matrix, other]) each.close();
});
