/** Products of one row on the device against their twins, in widths with and without rests of every kind. */
import { blockScaleStride, type LaunchSize, type MatmulScales } from "../../worker/backend/cuda/device/device.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import { activations } from "../../worker/backend/cuda/products/activations.ts";
import { ringBytes, ringShape } from "../../worker/backend/cuda/products/row-products.ts";
import type { Random } from "../native/random.ts";
import { bfloat16Step, KernelTwin } from "./kernel-twin.ts";

const epsilon = 1e-5;
const normScale = 0.05;
/** Names of kernels, launches for so many products, and how many sums of squares come of a row. */
export interface ProductKernels {
  readonly prefix: "matvec" | "matvec_ring";
  /** Numbers of activations that the gated product takes, each as it stands among the arguments. */
  readonly activations: readonly (readonly number[])[];
  readonly addsBias: boolean;
  size(products: number): LaunchSize;
}
export const plainProducts: ProductKernels = {
  prefix: "matvec",
  activations: [[]],
  addsBias: false,
  size: (products) => ({ grid: [Math.ceil(products / 8)], blockThreads: 128, overlapsPrevious: true }),
};
/** @param blocks of the grid; each has pairs of outputs */
export const ringProducts = (blocks: number): ProductKernels => ({
  prefix: "matvec_ring",
  activations: Object.values(activations).map((number) => [number]),
  addsBias: true,
  size: () => ({
    grid: [blocks],
    blockThreads: 32 * ringShape.warps,
    sharedBytes: ringBytes,
    overlapsPrevious: true,
  }),
});
export const squaresOf = (kernels: ProductKernels, width: number): number => kernels.size(width).grid[0];

/** Shapes: values of the row, products. The last row of blocks is not full; rows end within a batch of loads. */
export const productShapes = [
  [1_288, 2_052],
  [264, 50],
  [1_024, 520],
  [4_096, 264],
  [3_336, 19],
] as const;

/**
 * A row of normal numbers with outliers of some tens goes through every product, finished and without its factor; the
 * sums of squares that the first product leaves are what the others take.
 */
/** Products of 2 to 16 rows, of which each is what it is alone. */
export async function checkFewRows(
  device: CudaDevice,
  random: Random,
  [width, count]: readonly [number, number],
  rows: number,
  e4m3?: MatmulScales,
): Promise<string> {
  const twin = new KernelTwin(device, 64 << 20, 0);
  const size = ringProducts(5).size(0);
  const input = twin.putBfloat16("input", random.normals(rows * width));
  const matrix = e4m3
    ? putBytes(twin, random, e4m3, 2 * count, width)
    : [
        twin.putBfloat16(
          "weights",
          random.normals(2 * count * width).map((x) => x / Math.sqrt(width)),
        ),
      ];
  const [plain, gated] = [twin.space("plain", rows * 2 * count * 2), twin.space("gated", rows * count * 2)];
  const floats = twin.space("floats", rows * 2 * count * 4);
  twin.upload();
  const tile = rows <= 8 ? 8 : 16;
  const form = e4m3 ? "e4m3_" : "";
  twin.launch(`few_rows_${form}${tile}`, [input, ...matrix, rows, width, 2 * count, plain], size);
  twin.launch(`few_rows_${form}gated_${tile}`, [input, ...matrix, rows, width, count, 1, gated], size);
  if (!e4m3) twin.launch(`few_rows_float_${tile}`, [input, ...matrix, rows, width, 2 * count, floats], size);
  // Tensor cores add up products of units in float32, in another order; a gate's error counts up times.
  const sum = 2 ** -8;
  return twin.compare([
    { buffer: plain, type: "bfloat16", relative: bfloat16Step, absolute: sum },
    { buffer: gated, type: "bfloat16", relative: bfloat16Step, absolute: 16 * sum },
    { buffer: floats, type: "float32", relative: 1e-5, absolute: sum },
  ]);
}

/** Weights of 8 bits whose sums with units are units, and what a kernel takes of them from weights to inShift. */
function putBytes(twin: KernelTwin, random: Random, kind: MatmulScales, outputs: number, width: number) {
  const bytes = Uint8Array.from({ length: outputs * width }, () => random.integer(0, 126) + 128 * random.integer(0, 1));
  const count = kind === "blocks" ? Math.ceil(outputs / 128) * blockScaleStride(width) : outputs;
  // The numbers are 100 on average.
  const scales = Float32Array.from({ length: count }, () => (0.5 + random.next()) / 100 / Math.sqrt(width));
  const values = [twin.put("weights", bytes), twin.put("scales", scales)] as const;
  return kind === "blocks" ? [...values, blockScaleStride(width), 7, 3] : [...values, 1, 0, 31];
}

export async function checkProducts(
  device: CudaDevice,
  random: Random,
  width: number,
  count: number,
  kernels = plainProducts,
): Promise<string> {
  const twin = new KernelTwin(device, 64 << 20, 0);
  const { prefix, size: grid } = kernels;
  const squareCount = squaresOf(kernels, width);
  const bias = kernels.addsBias ? [twin.putBfloat16("bias", random.normals(width))] : [];
  const bfloat16 = (name: string, size: number) => twin.putBfloat16(name, random.normals(size));
  const [row, weights, joining] = [
    bfloat16("row", width),
    bfloat16("weights", 2 * count * width),
    bfloat16("joining", width * width),
  ];
  const residual = twin.put("residual", random.normals(width));
  // Small, so that the activation is asked where it bends.
  const norm = twin.putBfloat16(
    "norm",
    random.normals(width).map((weight) => weight * normScale),
  );
  const open = twin.space("open row", width * 2);
  const squares = twin.space("squares", squareCount * 4);
  const [plain, scaled] = ["plain", "scaled"].map((name) => twin.space(name, count * 2));
  const gated = kernels.activations.map((number) => [number, twin.space(`gated ${number}`, count * 2)] as const);
  const [floats, scaledFloats] = ["floats", "scaled floats"].map((name) => twin.space(name, count * 4));
  twin.upload();
  const finished = [row, weights, width, count, null, 0, 0];
  twin.launch(prefix, [...finished, plain], grid(count));
  twin.launch(`${prefix}_float`, [...finished, floats], grid(count));
  twin.launch(`${prefix}_add`, [row, joining, width, width, ...bias, 0.22, residual, norm, open, squares], grid(width));
  // The device's own row goes on, as its twin's does: both rounded it to bfloat16 from nearly the same numbers.
  const half = [open, weights, width, count, squares, squareCount, epsilon];
  twin.launch(prefix, [...half, scaled], grid(count));
  twin.launch(`${prefix}_float`, [...half, scaledFloats], grid(count));
  for (const [activation, out] of gated) {
    const given = [open, weights, width, count, ...activation, squares, squareCount, epsilon, out];
    twin.launch(`${prefix}_gated`, given, grid(2 * count));
  }
  // float32 sums of `width` products of values of about 1, outliers of some tens among them: in the order of lanes on
  // the device, from the first to the last in the twin.
  const sum = width * 2 ** -24 * 1_000;
  // One value in fifty of the row, at most, is rounded to the other side: each moves products by a bfloat16 step of
  // what it adds, at random. Gates and ups are some tens at most.
  const moved = 8 * normScale * 2 ** -8 * Math.sqrt(width / 50);
  return twin.compare([
    { buffer: plain, type: "bfloat16", relative: bfloat16Step, absolute: sum },
    { buffer: floats, type: "float32", relative: 1e-5, absolute: sum },
    { buffer: residual, type: "float32", relative: 1e-5, absolute: sum },
    { buffer: open, type: "bfloat16", relative: bfloat16Step, absolute: sum },
    { buffer: squares, type: "float32", relative: 1e-3, absolute: sum },
    { buffer: scaled, type: "bfloat16", relative: bfloat16Step, absolute: moved },
    { buffer: scaledFloats, type: "float32", relative: 1e-3, absolute: moved },
    ...gated.map(([, buffer]) => {
      return { buffer, type: "bfloat16", relative: bfloat16Step, absolute: 20 * moved } as const;
    }),
  ]);
}
