/** Rows of an embedding and norms of rows, of every instruction set. */
import { describe, expect } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { argmax } from "../../worker/sample/logprobs.ts";
import { testSeed } from "../support/seed.ts";
import { kernelsOf } from "./instruction-set.ts";
import { Random } from "./random.ts";
import { halfBits } from "./world.ts";

const libraryPath = await buildCpuKernels();

describe.each(["reference", "avx2", "avx512"] as const)("%s", (isa) => {
  const { testHere, here } = kernelsOf(libraryPath, isa, 1);

  testHere("embedRows gathers rows as float32, exactly", () => {
    const random = new Random(testSeed());
    for (const width of [1, 7, 16, 33, 64]) {
      const values = random.normals(9 * width);
      const bits = new Uint32Array(values.buffer);
      const tables = [
        { type: "float32", data: values, read: (i: number) => values[i] },
        {
          type: "bfloat16",
          data: Uint16Array.from(bits, (x) => x >>> 16),
          read: (i: number) => truncated(bits[i] ?? 0),
        },
        { type: "float16", data: Uint16Array.from(values, halfBits), read: (i: number) => halfOf(values[i] ?? 0) },
      ] as const;
      const tokenIds = Int32Array.of(8, 0, 3, 3);
      for (const { type, data, read } of tables) {
        const out = new Float32Array(tokenIds.length * width + 3).fill(Number.NaN);
        here().embedRows({ data, type, rowCount: 9, width }, tokenIds, out);
        const expected = [...tokenIds].flatMap((id) =>
          Array.from({ length: width }, (_, d) => read(id * width + d) ?? 0),
        );
        expect([...out]).toEqual([...expected, Number.NaN, Number.NaN, Number.NaN]);
      }
    }
  });

  testHere("norms of rows, in place and added", () => {
    const random = new Random(testSeed());
    const [rows, width, stride] = [37, 45, 50];
    const x = random.normals(rows * stride);
    const norm = { weights: random.normals(width), epsilon: 1e-3 };
    const expected = x.map((value, i) => {
      if (i % stride >= width) return value;
      const row = x.subarray(i - (i % stride), i - (i % stride) + width);
      const squares = row.reduce((sum, other) => sum + other * other, 0);
      return (value / Math.sqrt(squares / width + 1e-3)) * norm.weights[i % stride];
    });
    const out = x.slice();
    here().normRows(out, rows, out, { norm, finish: "store", xStride: stride, outStride: stride });
    expect(out.every((value, i) => Math.abs(value - expected[i]) <= 1e-6 * Math.abs(expected[i]))).toBe(true);
    const sum = new Float32Array(rows * width).fill(1);
    here().normRows(x, rows, sum, { norm, finish: "add", factor: 0.5, xStride: stride });
    const added = sum.map((_, i) => 1 + 0.5 * expected[Math.floor(i / width) * stride + (i % width)]);
    expect(sum.every((value, i) => Math.abs(value - added[i]) <= 4e-6)).toBe(true);
    expect(() => here().normRows(x, rows + 1, out, { norm, finish: "store", xStride: stride })).toThrow(/x must have/);
  });

  testHere("embedRows refuses token ids outside the table and tables of the wrong size", () => {
    const table = { data: new Float32Array(8), type: "float32", rowCount: 2, width: 4 } as const;
    const out = new Float32Array(8);
    expect(() => here().embedRows(table, Int32Array.of(0, 2), out)).toThrow(/token id/);
    expect(() => here().embedRows(table, Int32Array.of(-1), out)).toThrow(/token id/);
    expect(() => here().embedRows({ ...table, rowCount: 3 }, Int32Array.of(0), out)).toThrow(/table.data/);
    expect(() => here().embedRows({ ...table, type: "float16" }, Int32Array.of(0), out)).toThrow(/array type/);
    expect(() => here().embedRows(table, Int32Array.of(0, 1, 1), out)).toThrow(/out/);
  });
});

function truncated(bits: number): number {
  return new Float32Array(Uint32Array.of(bits & 0xffff0000).buffer)[0] ?? 0;
}

/** What halfBits keeps of a value: eleven bits towards zero. */
function halfOf(value: number): number {
  const step = Math.max(2 ** -24, 2 ** (Math.floor(Math.log2(Math.abs(value))) - 10));
  return Math.trunc(value / step) * step;
}

describe.each(["reference", "avx2 without VNNI", "avx2", "avx512 without VNNI", "avx512", "amx"] as const)(
  "%s",
  (isa) => {
    const { testHere, here } = kernelsOf(libraryPath, isa, 2);

    /** As drawing looks for it; -1 where that refuses. */
    function expectedOf(row: Float32Array): number {
      try {
        return argmax(row);
      } catch {
        return -1;
      }
    }

    testHere("the greatest of each row, the first of equal ones, -1 beside NaN and infinities", () => {
      const random = new Random(testSeed());
      // Tails of vectors, of looks at 1,024 numbers, and of tasks of 16,384.
      for (const width of [1, 7, 16, 33, 1_024, 1_057, 16_384, 40_003]) {
        const rows = 8;
        const x = random.normals(rows * width);
        const rowOf = (row: number) => x.subarray(row * width, (row + 1) * width);
        // Equal ones on both sides of every border, none at all, and what is no number first, last or in between.
        rowOf(1)
          .fill(-0)
          .set([0], width >> 1);
        rowOf(2).fill(3, width >> 2);
        rowOf(3).fill(Number.NEGATIVE_INFINITY);
        rowOf(4)[width >> 1] = Number.NaN;
        rowOf(5)[width - 1] = Number.POSITIVE_INFINITY;
        rowOf(6).fill(Number.NEGATIVE_INFINITY, 0, width - 1);
        rowOf(7)
          .fill(9, width - 1)
          .set([Number.NaN]);
        const best = new Int32Array(rows + 1).fill(77);
        here().greatest(x, rows, width, best);
        expect([...best]).toEqual([...Array.from({ length: rows }, (_, row) => expectedOf(rowOf(row))), 77]);
      }
      const few = new Float32Array(4);
      expect(() => here().greatest(few, 2, 3, new Int32Array(2))).toThrow(/x must have at least 6/);
      expect(() => here().greatest(few, 2, 2, new Int32Array(1))).toThrow(/best must have at least 2/);
      expect(() => here().greatest(few, 0, 2, new Int32Array(1))).toThrow(/rowCount/);
    });
  },
);
