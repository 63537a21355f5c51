/**
 * Gates of many rows. Without a bias they may be made while AMX multiplies the next rows; with one they never are, so a bias
 * of zero must give the same bits.
 */
import { describe, expect } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import type { Matrix } from "../../worker/native/cpu-kernels.ts";
import { testSeed } from "../support/seed.ts";
import { firstDifferentBits } from "./compare.ts";
import { kernelsOf } from "./instruction-set.ts";
import { Random } from "./random.ts";

const libraryPath = await buildCpuKernels();
const shape = { outputs: 192, inputs: 200 };

/** Of a poisoned buffer whose end must stay as it was. */
function gatesOf(matrix: Matrix, x: Float32Array, rows: number, parts: 1 | 3, bias?: Float32Array): Float32Array {
  const count = rows * (shape.outputs / 2);
  const out = new Float32Array(count + 5).fill(Number.NaN);
  matrix.multiply(x, rows, out, { finish: "gate", parts, bias });
  expect(out.subarray(count).every(Number.isNaN)).toBe(true);
  return out.slice(0, count);
}

describe.each(["avx2", "avx512", "amx"] as const)("%s", (isa) => {
  const { testHere, here } = kernelsOf(libraryPath, isa, 2);

  for (const [form, parts] of [
    ["b16", 1],
    ["b16", 3],
    ["int8", 1],
  ] as const) {
    testHere(`gates in ${form}, rows in ${parts} parts, have the bits of those with a bias of zero`, () => {
      const random = new Random(testSeed());
      const matrix = here().openMatrix({ ...shape, form });
      const data = random.normals(shape.outputs * shape.inputs);
      matrix.fill({ data, type: "float32" }, { rowCount: shape.outputs, firstOutput: 0 });
      for (const rows of [70, 300]) {
        const x = random.normals(rows * shape.inputs);
        const expected = gatesOf(matrix, x, rows, parts, new Float32Array(shape.outputs));
        expect(expected.some((value) => Math.abs(value) > 1)).toBe(true);
        expect(firstDifferentBits(gatesOf(matrix, x, rows, parts), expected)).toBe(-1);
      }
      matrix.close();
    });
  }
});
