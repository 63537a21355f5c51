/** Products of weights in 8-bit floats on the device, ours and cuBLASLt's, against their twins. */

import type { LaunchSize, MatmulScales } from "../../worker/backend/cuda/device/device.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import { FewRowProducts } from "../../worker/backend/cuda/products/few-rows.ts";
import { blockScaleStride, matmulScaleCounts } from "../../worker/native/cuda/cublaslt.ts";
import { emulatedBytesMatmul } from "../backend/cuda/emulated-e4m3.ts";
import type { Random } from "../native/random.ts";
import { bfloat16Step, KernelTwin } from "./kernel-twin.ts";
import { assertThat } from "./report.ts";

const epsilon = 1e-5;
const twinBytes = 64 << 20;
const [blockProducts, blockThreads] = [8, 128];

/** Finite numbers of 8 bits. */
const numbers = (random: Random, count: number) =>
  Uint8Array.from({ length: count }, () => random.integer(0, 126) + 128 * random.integer(0, 1));
/** So small that sums are some units. */
const scalesOf = (random: Random, count: number) =>
  Float32Array.from({ length: count }, () => 1e-4 + 1e-3 * random.next());

/** Inputs, outputs; of blocks in multiples of 128, rows that end within a batch of loads. */
export const e4m3Shapes = [
  ["blocks", 1_408, 2_176],
  ["blocks", 4_096, 256],
  ["rows", 1_296, 2_064],
  ["rows", 4_096, 48],
] as const;

/** The same of products of few rows: also as wide as thread blocks with several warpgroups, and not in whole ones. */
export const fewRowShapes = [
  ["blocks", 1_408, 2_176],
  ["blocks", 4_096, 256],
  ["blocks", 256, 17_024],
  ["rows", 1_280, 2_064],
  ["rows", 512, 25_616],
  ["rows", 2_048, 8_400],
] as const;

/** Products of one row. */
export async function checkByteRows(
  device: CudaDevice,
  random: Random,
  [kind, width, count]: readonly [MatmulScales, number, number],
): Promise<string> {
  const twin = new KernelTwin(device, twinBytes, 0);
  const shape = { rows: 4, outWidth: 2 * count, inWidth: width, outputType: "bfloat16" } as const;
  const row = twin.putBfloat16("row", random.normals(width));
  const weights = twin.put("weights", numbers(random, 2 * count * width));
  const scales = twin.put("scales", scalesOf(random, matmulScaleCounts(shape, kind).weights));
  const residual = twin.put("residual", random.normals(2 * count));
  const norm = twin.putBfloat16("norm", random.normals(2 * count));
  const [plain, gated, next] = [2 * count, count, 2 * count].map((size) => twin.space("out", size * 2));
  const squares = twin.space("squares", Math.ceil((2 * count) / blockProducts) * 4);
  twin.upload();
  const size: LaunchSize = { grid: [Math.ceil((2 * count) / blockProducts)], blockThreads, overlapsPrevious: true };
  const places = kind === "blocks" ? [blockScaleStride(width), 7, 3] : [1, 0, 31];
  const matrix = [row, weights, scales, ...places, width];
  twin.launch("matvec_e4m3", [...matrix, 2 * count, null, 0, epsilon, plain], size);
  twin.launch("matvec_e4m3_gated", [...matrix, count, null, 0, epsilon, gated], size);
  twin.launch("matvec_e4m3_add", [...matrix, 2 * count, 0.22, residual, norm, next, squares], size);
  // float32 sums of `width` products of some units at most, in another order.
  const sum = width * 2 ** -24 * 1_000;
  return twin.compare([
    { buffer: plain, type: "bfloat16", relative: bfloat16Step, absolute: sum },
    { buffer: gated, type: "bfloat16", relative: 2 * bfloat16Step, absolute: 20 * sum },
    { buffer: residual, type: "float32", relative: 1e-5, absolute: sum },
    { buffer: next, type: "bfloat16", relative: bfloat16Step, absolute: 10 * sum },
    { buffer: squares, type: "float32", relative: 1e-3, absolute: sum },
  ]);
}

/** Rows are rounded to 8 bits by ours, and multiplied by cuBLASLt's. */
export async function checkByteProducts(
  device: CudaDevice,
  random: Random,
  [kind, width, count]: readonly [MatmulScales, number, number],
  rows: number,
): Promise<string> {
  const twin = new KernelTwin(device, twinBytes, 0);
  const { quantized, inputScales, weights, scales, output, shape } = putProduct(
    twin,
    random,
    [kind, width, count],
    rows,
  );
  twin.matmul(shape, { input: quantized, weights, output, scales: { input: inputScales, weights: scales } });
  return twin.compare([{ buffer: output, type: "bfloat16", relative: bfloat16Step, absolute: sumOf(width) }]);
}

/** The tensor cores add up groups of products with 13 bits of fraction or more below the greatest of them. */
const sumOf = (width: number): number => Math.sqrt(width) * 2 ** -11;

/**
 * The same products of up to 64 rows by our own kernel. The input has no outliers: of the sums of so many outputs, those with
 * an outlier in them are off by up to three times the tolerance, since what is 2^13 times smaller is left out beside it.
 */
export async function checkFewRows(
  device: CudaDevice,
  random: Random,
  shapeOf: readonly [MatmulScales, number, number],
  rows: number,
): Promise<string> {
  const twin = new KernelTwin(device, twinBytes, 0);
  const [kind, inWidth, outWidth] = shapeOf;
  const { quantized, inputScales, weights, scales, output, shape } = putProduct(
    twin,
    random,
    shapeOf,
    rows,
    Number.POSITIVE_INFINITY,
  );
  twin.both(
    (real) => {
      const matrix = { values: real(weights), outWidth, inWidth, scales: { kind, values: real(scales) } };
      const products = new FewRowProducts(device, [matrix], real(quantized));
      assertThat(products.takes(rows, matrix), "the kernel does not take the product");
      products.product(rows, matrix, matrix.scales, real(inputScales), real(output))();
    },
    (memory) =>
      emulatedBytesMatmul(memory, shape, {
        ...{ input: quantized, weights, output },
        scales: { input: inputScales, weights: scales },
      }),
  );
  return twin.compare([{ buffer: output, type: "bfloat16", relative: bfloat16Step, absolute: sumOf(inWidth) }]);
}

/** Rows that end in 8 bits in the kernel that computes them. */
export async function checkBytesLeft(device: CudaDevice, random: Random, width: number): Promise<string> {
  const twin = new KernelTwin(device, twinBytes, 0);
  const [rows, gridRows] = [13, 16];
  const residual = twin.put("residual", random.normals(gridRows * width));
  const delta = twin.putBfloat16("delta", random.normals(gridRows * width));
  const weight = twin.putBfloat16("weight", random.normals(width));
  const gateUp = twin.putBfloat16("gate and up", random.normals(gridRows * 2 * width));
  const count = twin.put("count", Int32Array.of(rows));
  const bytes = ["norm by blocks", "norm by rows", "activation by blocks", "activation by rows"].map((name) =>
    twin.space(name, gridRows * width),
  );
  const scales = bytes.map(({ name }) => twin.space(`scales of ${name}`, ((gridRows * width) / 128) * 4));
  twin.upload();
  const size = { grid: [gridRows], blockThreads: Math.min(1024, Math.ceil(width / 8 / 32) * 32) } as const;
  const norm = [1, weight, 0, epsilon, count, width] as const;
  twin.launch("add_rmsnorm", [residual, delta, null, 1, null, null, ...norm, bytes[0], scales[0], gridRows], size);
  twin.launch("add_rmsnorm", [residual, null, null, 1, null, null, ...norm, bytes[1], scales[1], 0], size);
  const wide = { grid: [Math.ceil(width / 2_048), gridRows], blockThreads: 256 } as const;
  twin.launch("activate", [gateUp, count, width, 0, bytes[2], scales[2], gridRows], wide);
  twin.launch("activate_rows", [gateUp, count, width, 0, bytes[3], scales[3]], size);
  return twin.compare([
    { buffer: residual, type: "float32", relative: epsilon, absolute: epsilon },
    // A number may be rounded to bfloat16 and to 8 bits to different sides, and so may the greatest, of which all are parts.
    ...bytes.map((buffer) => ({ buffer, type: "e4m3", relative: 2 ** -3 + bfloat16Step, absolute: 2 ** -9 }) as const),
    ...scales.map((buffer) => ({ buffer, type: "float32", relative: bfloat16Step, absolute: 0 }) as const),
  ]);
}

/** Rows rounded to 8 bits, on both sides. */
function putProduct(
  twin: KernelTwin,
  random: Random,
  [kind, width, count]: readonly [MatmulScales, number, number],
  rows: number,
  outlierEvery?: number,
) {
  const shape = { rows, outWidth: count, inWidth: width, outputType: "bfloat16", scales: kind } as const;
  const counts = matmulScaleCounts(shape, kind);
  const input = twin.putBfloat16("input", random.normals(rows * width, outlierEvery));
  const rowCount = twin.put("count", Int32Array.of(rows));
  const weights = twin.put("weights", numbers(random, count * width));
  const scales = twin.put("scales", scalesOf(random, counts.weights));
  const quantized = twin.space("quantized", rows * width);
  const inputScales = twin.space("scales of the input", counts.input * 4);
  const output = twin.space("output", rows * count * 2);
  twin.upload();
  if (kind === "rows") {
    twin.launch("quantize_rows", [input, rowCount, width, quantized, inputScales], { grid: [rows], blockThreads: 512 });
  } else {
    const grid = [rows, Math.ceil(width / 1_024)] as const;
    const values = [input, rowCount, width, rows, quantized, inputScales];
    twin.launch("quantize_blocks", values, { grid, blockThreads: 256 });
  }
  return { quantized, inputScales, weights, scales, output, shape };
}
