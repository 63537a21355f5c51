/** Matrix products: what cuBLASLt is told, that a row-major product comes of it, and what is refused before. */
import { beforeEach, expect, test } from "bun:test";
import {
  blockScaleStride,
  CublasLt,
  type MatmulOperands,
  type MatmulShape,
  matmulScaleCounts,
} from "../../../worker/native/cuda/cublaslt.ts";
import { CudaError } from "../../../worker/native/cuda/driver.ts";
import { CudaUnavailable } from "../../../worker/native/cuda/library-names.ts";
import { copyToDevice, copyToHost, DeviceArena, type HostArray } from "../../../worker/native/cuda/memory.ts";
import { fake, fakePath, openFake } from "./fake.ts";

let { context, stream } = openFake();
let arena = new DeviceArena(context, "arena", 1 << 20);
let lt = new CublasLt(context, arena.allocate("workspace", 4096), { libraryNames: [fakePath] });
beforeEach(() => {
  ({ context, stream } = openFake());
  arena = new DeviceArena(context, "arena", 1 << 20);
  lt = new CublasLt(context, arena.allocate("workspace", 4096), { libraryNames: [fakePath] });
});

function upload(values: HostArray, name = "buffer") {
  const buffer = arena.allocate(name, values.byteLength);
  copyToDevice(stream, buffer, values);
  return buffer;
}

/** Small whole numbers have the same bits in float32's upper half. */
const toBfloat16 = (values: Float32Array) => Uint16Array.from(new Uint32Array(values.buffer), (word) => word >>> 16);
const fromBfloat16 = (values: Uint16Array) => new Float32Array(Uint32Array.from(values, (half) => half << 16).buffer);
const numbers = (length: number, step: number) => Float32Array.from({ length }, (_, i) => ((i * step) % 7) - 3);

/** Runs a product of small whole numbers, which no rounding touches; answers it with what it must be. */
function run(shape: MatmulShape) {
  const { rows, outWidth, inWidth } = shape;
  const isFloat = shape.outputType === "float32";
  const typed = (values: Float32Array) => (isFloat ? values : toBfloat16(values));
  const [x, w, before] = [numbers(rows * inWidth, 3), numbers(outWidth * inWidth, 5), numbers(rows * outWidth, 4)];
  const output = upload(typed(before), "output");
  const operands: MatmulOperands = {
    input: upload(toBfloat16(x)),
    weights: upload(toBfloat16(w)),
    output,
  };
  lt.matmul(stream, shape, operands);
  const out = isFloat ? new Float32Array(before.length) : new Uint16Array(before.length);
  copyToHost(stream, out, output);
  const expected = before.slice();
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < outWidth; column++) {
      let sum = 0;
      for (let k = 0; k < inWidth; k++) sum += (x[row * inWidth + k] ?? 0) * (w[column * inWidth + k] ?? 0);
      expected[row * outWidth + column] = sum;
    }
  }
  return { actual: out instanceof Float32Array ? out : fromBfloat16(out), expected, operands };
}

test.each<MatmulShape>([
  { rows: 1, outWidth: 5, inWidth: 3, outputType: "float32" },
  { rows: 4, outWidth: 5, inWidth: 3, outputType: "float32" },
  { rows: 4, outWidth: 6, inWidth: 2, outputType: "bfloat16" },
])("%j is the row-major product", (shape) => {
  const { actual, expected } = run(shape);
  expect(actual).toEqual(expected);
});

/** Bytes of e4m3 for 0, ±1, ±2, ±4. */
const fewBytes = Uint8Array.of(0, 0x38, 0xb8, 0x40, 0xc0, 0x48, 0xc8);
const fewValues = [0, 1, -1, 2, -2, 4, -4];

test.each(["rows", "blocks"] as const)(
  "8-bit floats count their scales of %s, which the library is told of anew each time",
  (kind) => {
    expect(lt.hasScales).toBe(true);
    const [rows, outWidth, inWidth] = [4, 256, 640];
    const shape = { rows, outWidth, inWidth, outputType: "bfloat16", scales: kind } as const;
    const places = (count: number, step: number) => Int32Array.from({ length: count }, (_, i) => (i * step) % 7);
    const [x, w] = [places(rows * inWidth, 3), places(outWidth * inWidth, 5)];
    const counts = matmulScaleCounts(shape, kind);
    // Five blocks of inputs take the place of eight.
    if (kind === "blocks") expect(counts).toEqual({ weights: 2 * 8, input: 5 * 4 });
    const stride = blockScaleStride(inWidth);
    for (const round of [1, 2]) {
      const power = (i: number) => 2 ** ((i * round) % 3);
      const [ofWeights, ofInput] = [counts.weights, counts.input].map((count) =>
        Float32Array.from({ length: count }, (_, i) => power(i)),
      );
      const output = arena.allocate("output", rows * outWidth * 2);
      const bytesOf = (list: Int32Array) => upload(Uint8Array.from(list, (place) => fewBytes[place]));
      const scales = { weights: upload(ofWeights), input: upload(ofInput) };
      lt.matmul(stream, shape, { input: bytesOf(x), weights: bytesOf(w), output, scales });
      const out = new Uint16Array(rows * outWidth);
      copyToHost(stream, out, output);
      for (let row = 0; row < rows; row++) {
        for (let o = 0; o < outWidth; o += 37) {
          let sum = 0;
          for (let i = 0; i < inWidth; i++) {
            const block = Math.floor(i / 128);
            const scale =
              kind === "rows"
                ? ofWeights[o] * ofInput[row]
                : ofWeights[Math.floor(o / 128) * stride + block] * ofInput[block * rows + row];
            sum += scale * fewValues[x[row * inWidth + i]] * fewValues[w[o * inWidth + i]];
          }
          const [found] = fromBfloat16(out.subarray(row * outWidth + o, row * outWidth + o + 1));
          expect(Math.abs(found - sum)).toBeLessThanOrEqual(Math.abs(sum) * 2 ** -8);
        }
      }
    }
    expect(fake.notes("cublasLtMatmulAlgoGetHeuristic")).toHaveLength(1);
  },
);

test("a product by blocks of other sizes, and one without its scales, are refused", () => {
  const shape = { rows: 4, outWidth: 128, inWidth: 128, outputType: "bfloat16", scales: "blocks" } as const;
  const buffer = arena.allocate("bytes", 1 << 16);
  const scales = { weights: buffer, input: buffer };
  const operands = { input: buffer, weights: buffer, output: buffer, scales };
  for (const wrong of [{ rows: 6 }, { outWidth: 192 }, { inWidth: 64 }])
    expect(() => lt.matmul(stream, { ...shape, ...wrong }, operands)).toThrow(RangeError);
  expect(() => lt.matmul(stream, shape, { input: buffer, weights: buffer, output: buffer })).toThrow("without scales");
  const short = { ...operands, scales: { ...scales, input: arena.allocate("short", 12) } };
  expect(() => lt.matmul(stream, shape, short)).toThrow('"short" of 12 bytes is too short for a product: 16');
});

test("a shape is planned once, with the first algorithm that is usable and the workspace's size", () => {
  const shape: MatmulShape = { rows: 4, outWidth: 5, inWidth: 3, outputType: "float32" };
  run(shape);
  run({ ...shape });
  // 1: workspace bytes; 3: sums in float32; 5 to 8: alignment of each operand.
  const heuristics = "cublasLtMatmulAlgoGetHeuristic 8 1=4096 3=2 5=256 6=256 7=256 8=256";
  expect(fake.notes("cublasLtMatmulAlgoGetHeuristic")).toEqual([heuristics]);
  expect(fake.notes("cublasLtMatmul")).toEqual(Array(2).fill("cublasLtMatmul 101 4096 1"));
  for (const other of [{ rows: 5 }, { outputType: "bfloat16" }, { inWidth: 4 }, { outWidth: 6 }] as const) {
    run({ ...shape, ...other });
  }
  expect(fake.notes("cublasLtMatmulAlgoGetHeuristic")).toHaveLength(5);
});

test("less alignment is a plan of its own, too little is refused", () => {
  const shape: MatmulShape = { rows: 1, outWidth: 2, inWidth: 2, outputType: "float32" };
  const { operands } = run(shape);
  const wide = arena.allocate("wide", 1024);
  lt.matmul(stream, shape, { ...operands, output: wide.slice(16) });
  expect(fake.notes("cublasLtMatmulAlgoGetHeuristic").at(-1)).toEndWith("8 1=4096 3=2 5=16 6=16 7=16 8=16");
  expect(() => lt.matmul(stream, shape, { ...operands, output: wide.slice(8) })).toThrow(
    '"wide" does not start on a multiple of 16 bytes',
  );
});

test("operands that are too short are refused before the call", () => {
  const shape: MatmulShape = { rows: 3, outWidth: 4, inWidth: 5, outputType: "float32" };
  const { operands } = run(shape);
  const short = (name: keyof MatmulOperands, bytes: number) => ({
    ...operands,
    [name]: arena.allocate(`short ${name}`, bytes),
  });
  fake.reset();
  const fits = { input: 3 * 5 * 2, weights: 4 * 5 * 2, output: 3 * 4 * 4 } as const;
  for (const [name, bytes] of Object.entries(fits)) {
    const key = name as keyof typeof fits;
    expect(() => lt.matmul(stream, shape, short(key, bytes - 1))).toThrow(`"short ${name}" of ${bytes - 1} bytes`);
    expect(() => lt.matmul(stream, shape, short(key, bytes))).not.toThrow();
  }
  expect(fake.notes("cublasLtMatmul")).toHaveLength(3);
  for (const wrong of [{ rows: 0 }, { inWidth: Number.NaN }, { outWidth: 1.5 }]) {
    expect(() => lt.matmul(stream, { ...shape, ...wrong }, operands)).toThrow(RangeError);
  }
});

test("what cuBLASLt refuses is an error with its words, and leaves no descriptors", () => {
  const shape: MatmulShape = { rows: 2, outWidth: 2, inWidth: 2, outputType: "float32" };
  const before = fake.liveDescriptors();
  fake.fail("cublasLtMatmulAlgoGetHeuristic", 15);
  expect(() => run(shape)).toThrow(CudaError);
  expect(() => run(shape)).toThrow("CUBLAS_STATUS_NOT_SUPPORTED (15): the library's words");
  fake.reset();
  // For this width the fake has one algorithm, which cannot be used.
  expect(() => run({ ...shape, inWidth: 13 })).toThrow("no algorithm for");
  expect(fake.liveDescriptors()).toBe(before);
  fake.fail("cublasLtMatmul", 7);
  expect(() => run(shape)).toThrow("cublasLtMatmul (");
  fake.reset();
  run({ ...shape, rows: 3 });
  lt.close();
  expect(fake.liveDescriptors()).toBe(before);
  expect(fake.notes().at(-1)).toBe("cublasLtDestroy");
});

test("plans are bounded in number", () => {
  const before = fake.liveDescriptors();
  const operands = run({ rows: 1, outWidth: 1, inWidth: 1, outputType: "float32" }).operands;
  const big = { ...operands, input: arena.allocate("in", 1 << 16), output: arena.allocate("out", 1 << 17) };
  for (let rows = 1; rows <= 5000; rows++) {
    lt.matmul(stream, { rows, outWidth: 1, inWidth: 1, outputType: "float32" }, big);
  }
  expect(fake.liveDescriptors() - before).toBeLessThanOrEqual(4096 * 4);
});

test("a machine without the library is told so in one sentence", () => {
  const open = () => new CublasLt(context, arena.allocate("w", 256), { libraryNames: ["libcublasLt-absent.so.13"] });
  expect(open).toThrow(CudaUnavailable);
  expect(open).toThrow("no cuBLASLt: libcublasLt-absent.so.13 was not found");
});
