/** Products of one row as kernels/cuda/products says them, in plain loops. */
import type { DeviceBuffer } from "../../../worker/backend/cuda/device/device.ts";
import type { KernelName } from "../../../worker/backend/cuda/device/kernels.ts";
import { gatedActivations } from "./emulated-activations.ts";
import { widenedWeights } from "./emulated-e4m3.ts";
import type { Values } from "./emulated-heads.ts";
import type { EmulatedMemory } from "./emulated-memory.ts";

const buffer = (value: unknown): DeviceBuffer => value as DeviceBuffer;
const number = (value: unknown): number => Number(value);

/** The thread block of a grid that computes a product. */
type Deal = (product: number, grid: number) => number;
/** Of matvec.cu: each has eight. @throws RangeError when a grid is too small */
const eightEach: Deal = (product, grid) => {
  const block = Math.floor(product / 8);
  if (block >= grid) throw new RangeError(`a grid of ${grid} has no block for product ${product}`);
  return block;
};
/** Of matvec_ring.cuh: pairs are dealt out. */
export const dealtPairs: Deal = (product, grid) => Math.floor(product / 2) % grid;

/** A matrix [rows, width], widened. */
type WeightsOf = (width: number, rows: number) => Float32Array;

function products(memory: EmulatedMemory, input: unknown, weightsOf: WeightsOf, width: number, rows: number): number[] {
  const x = memory.bfloat16(buffer(input)).row(0, width);
  const matrix = weightsOf(width, rows);
  return Array.from({ length: rows }, (_, o) => {
    let sum = 0;
    for (let i = 0; i < width; i++) sum += matrix[o * width + i] * x[i];
    return sum;
  });
}

const bfloat16Weights =
  (memory: EmulatedMemory, weights: unknown): WeightsOf =>
  (width, rows) =>
    memory.bfloat16(buffer(weights)).row(0, rows * width);

/** Arguments of a kernel over e4m3 as those of its twin over bfloat16, and its weights. */
function ofBytes(memory: EmulatedMemory, [input, ...rest]: Values) {
  const weightsOf: WeightsOf = (_, rows) => widenedWeights(memory, rest, rows);
  return { weightsOf, values: [input, null, ...rest.slice(5)] };
}

/** Products of a row that matvec_add left without its factor, or of a finished one. */
function rowProducts(
  memory: EmulatedMemory,
  values: Values,
  rowsOf: (out: number) => number,
  weightsOf = bfloat16Weights(memory, values[1]),
): number[] {
  const [input, , inWidth, out, squares, squareCount, epsilon] = values;
  const [width, rows] = [number(inWidth), rowsOf(number(out))];
  const sums = products(memory, input, weightsOf, width, rows);
  if (squares === null) return sums;
  const parts = memory.float32(buffer(squares)).subarray(0, number(squareCount));
  const factor = 1 / Math.sqrt(parts.reduce((sum, part) => sum + part, 0) / width + number(epsilon));
  return sums.map((sum) => sum * factor);
}

type Emulation = (memory: EmulatedMemory, values: Values, grid: readonly number[], weightsOf?: WeightsOf) => void;

const product: Emulation = (memory, values, _, weightsOf) => {
  const to = memory.bfloat16(buffer(values[7]));
  rowProducts(memory, values, (out) => out, weightsOf).forEach((sum, o) => {
    to.set(o, sum);
  });
};

const floatProduct: Emulation = (memory, values) => {
  memory.float32(buffer(values[7])).set(rowProducts(memory, values, (out) => out));
};

const silu: Emulation = (memory, values, _, weightsOf) => {
  const ffn = number(values[3]);
  const to = memory.bfloat16(buffer(values[7]));
  const sums = rowProducts(memory, values, (out) => 2 * out, weightsOf);
  for (let o = 0; o < ffn; o++) to.set(o, (sums[o] / (1 + Math.exp(-sums[o]))) * sums[ffn + o]);
};

/** Where products are added to: residual [out] float32, next [out] bfloat16, and sums of squares by thread block. */
interface RowSpace {
  readonly bias?: unknown;
  readonly scale: unknown;
  readonly residual: unknown;
  readonly norm: unknown;
  readonly next: unknown;
  readonly squares: unknown;
}

export function addToRow(
  memory: EmulatedMemory,
  sums: ArrayLike<number>,
  { bias, scale, residual, norm, next, squares }: RowSpace,
  blockOf: (product: number) => number,
  grid: number,
): void {
  const stream = memory.float32(buffer(residual));
  const parts = memory.float32(buffer(squares));
  const [scales, to] = [memory.bfloat16(buffer(norm)), memory.bfloat16(buffer(next))];
  const added = bias ? memory.bfloat16(buffer(bias)).row(0, sums.length) : undefined;
  parts.fill(0, 0, grid);
  for (let o = 0; o < sums.length; o++) {
    stream[o] += (sums[o] + (added?.[o] ?? 0)) * number(scale);
    to.set(o, stream[o] * scales.get(o));
    parts[blockOf(o)] += stream[o] ** 2;
  }
}

const added =
  (deal: Deal, hasBias: boolean): Emulation =>
  (memory, values, [grid], weightsOf = bfloat16Weights(memory, values[1])) => {
    const [input, , inWidth, outWidth] = values;
    const [bias, scale, residual, norm, next, squares] = hasBias ? values.slice(4) : [null, ...values.slice(4)];
    const sums = products(memory, input, weightsOf, number(inWidth), number(outWidth));
    addToRow(memory, sums, { bias, scale, residual, norm, next, squares }, (o) => deal(o, grid), grid);
  };

/** A grid with a thread block for each product. @param productsOf by the number of outputs that a launch names */
const coveredBy =
  (deal: Deal, productsOf: (out: number) => number, emulation: Emulation): Emulation =>
  (memory, values, grid, weightsOf) => {
    deal(productsOf(number(values[3])) - 1, grid[0]);
    emulation(memory, values, grid, weightsOf);
  };

/** The kernel has an activation's number behind its shape. */
const activated: Emulation = (memory, values, _, weightsOf) => {
  const [ffn, activation] = [number(values[3]), number(values[4])];
  const to = memory.bfloat16(buffer(values[8]));
  const sums = rowProducts(memory, values.toSpliced(4, 1), (out) => 2 * out, weightsOf);
  for (let o = 0; o < ffn; o++) to.set(o, gatedActivations[activation](sums[o], sums[ffn + o]));
};

/** The same over weights in e4m3. */
const ofBytesToo =
  (emulation: Emulation): Emulation =>
  (memory, given, grid) => {
    const { values, weightsOf } = ofBytes(memory, given);
    emulation(memory, values, grid, weightsOf);
  };

function emulationsOf(deal: Deal, gated: Emulation) {
  const each = {
    product: coveredBy(deal, (out) => out, product),
    float: coveredBy(deal, (out) => out, floatProduct),
    gated: coveredBy(deal, (ffn) => 2 * ffn, gated),
    add: coveredBy(deal, (out) => out, added(deal, deal === dealtPairs)),
  };
  const bytes = { product: ofBytesToo(each.product), gated: ofBytesToo(each.gated), add: ofBytesToo(each.add) };
  return { ...each, bytes };
}

/** A kernel of few rows: one after the other. @param before what stands before the number of rows */
const fewRows =
  (before: number, isGated: boolean, isFloat = false): Emulation =>
  (memory, values) => {
    const [rows, inWidth, outWidth] = values.slice(before, before + 3).map(number);
    const [activation, out] = [isGated ? number(values[before + 3]) : 0, buffer(values.at(-1))];
    const weightsOf: WeightsOf =
      before === 2
        ? bfloat16Weights(memory, values[1])
        : (_, count) => widenedWeights(memory, [...values.slice(1, 6), inWidth], count);
    const matrix = weightsOf(inWidth, (isGated ? 2 : 1) * outWidth);
    for (let row = 0; row < rows; row++) {
      const x = memory.bfloat16(buffer(values[0])).row(row * inWidth, inWidth);
      const sumOf = (o: number): number => {
        let sum = 0;
        for (let i = 0; i < inWidth; i++) sum += matrix[o * inWidth + i] * x[i];
        return sum;
      };
      for (let o = 0; o < outWidth; o++) {
        const sum = isGated ? gatedActivations[activation](sumOf(o), sumOf(outWidth + o)) : sumOf(o);
        if (isFloat) memory.float32(out)[row * outWidth + o] = sum;
        else memory.bfloat16(out).set(row * outWidth + o, sum);
      }
    }
  };

const [plain, ring] = [emulationsOf(eightEach, silu), emulationsOf(dealtPairs, activated)];

export const emulatedRowProducts = {
  matvec: plain.product,
  matvec_float: plain.float,
  matvec_gated: plain.gated,
  matvec_add: plain.add,
  matvec_e4m3: plain.bytes.product,
  matvec_e4m3_gated: plain.bytes.gated,
  matvec_e4m3_add: plain.bytes.add,
  matvec_ring: ring.product,
  matvec_ring_float: ring.float,
  matvec_ring_gated: ring.gated,
  matvec_ring_add: ring.add,
  matvec_ring_e4m3: ring.bytes.product,
  matvec_ring_e4m3_gated: ring.bytes.gated,
  matvec_ring_e4m3_add: ring.bytes.add,
  few_rows_8: fewRows(2, false),
  few_rows_16: fewRows(2, false),
  few_rows_float_8: fewRows(2, false, true),
  few_rows_float_16: fewRows(2, false, true),
  few_rows_gated_8: fewRows(2, true),
  few_rows_gated_16: fewRows(2, true),
  few_rows_e4m3_8: fewRows(6, false),
  few_rows_e4m3_16: fewRows(6, false),
  few_rows_e4m3_gated_8: fewRows(6, true),
  few_rows_e4m3_gated_16: fewRows(6, true),
} satisfies Partial<Record<KernelName, Emulation>>;
