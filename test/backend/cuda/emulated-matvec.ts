/** Products of one row as kernels/cuda/products says them, in plain loops. */
import type { DeviceBuffer } from "../../../worker/backend/cuda/device/device.ts";
import { widenedWeights } from "./emulated-e4m3.ts";
import type { Values } from "./emulated-heads.ts";
import type { EmulatedMemory } from "./emulated-memory.ts";

const buffer = (value: unknown): DeviceBuffer => value as DeviceBuffer;
const number = (value: unknown): number => Number(value);

/** What one thread block computes. */
const blockProducts = 8;

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

function assertGrid(grid: number, rows: number): void {
  if (grid * blockProducts < rows) throw new RangeError(`a grid of ${grid} for ${rows} products`);
}

/** Products of a row that matvec_add left without its factor, or of a finished one. */
function rowProducts(
  memory: EmulatedMemory,
  values: Values,
  grid: number,
  rowsOf: (out: number) => number,
  weightsOf = bfloat16Weights(memory, values[1]),
): number[] {
  const [input, , inWidth, out, squares, squareCount, epsilon] = values;
  const [width, rows] = [number(inWidth), rowsOf(number(out))];
  assertGrid(grid, rows);
  const sums = products(memory, input, weightsOf, width, rows);
  if (squares === null) return sums;
  const parts = memory.float32(buffer(squares)).subarray(0, number(squareCount));
  const factor = 1 / Math.sqrt(parts.reduce((sum, part) => sum + part, 0) / width + number(epsilon));
  return sums.map((sum) => sum * factor);
}

export function emulatedMatvec(
  memory: EmulatedMemory,
  values: Values,
  [grid]: readonly number[],
  weightsOf?: WeightsOf,
): void {
  const to = memory.bfloat16(buffer(values[7]));
  rowProducts(memory, values, grid, (out) => out, weightsOf).forEach((sum, o) => {
    to.set(o, sum);
  });
}

export function emulatedMatvecE4m3(memory: EmulatedMemory, given: Values, grid: readonly number[]): void {
  const { values, weightsOf } = ofBytes(memory, given);
  emulatedMatvec(memory, values, grid, weightsOf);
}

export function emulatedMatvecE4m3Gated(memory: EmulatedMemory, given: Values, grid: readonly number[]): void {
  const { values, weightsOf } = ofBytes(memory, given);
  emulatedMatvecGated(memory, values, grid, weightsOf);
}

export function emulatedMatvecE4m3Add(memory: EmulatedMemory, given: Values, grid: readonly number[]): void {
  const { values, weightsOf } = ofBytes(memory, given);
  emulatedMatvecAdd(memory, values, grid, weightsOf);
}

export function emulatedMatvecFloat(memory: EmulatedMemory, values: Values, [grid]: readonly number[]): void {
  memory.float32(buffer(values[7])).set(rowProducts(memory, values, grid, (out) => out));
}

export function emulatedMatvecGated(
  memory: EmulatedMemory,
  values: Values,
  [grid]: readonly number[],
  weightsOf?: WeightsOf,
): void {
  const ffn = number(values[3]);
  const to = memory.bfloat16(buffer(values[7]));
  const sums = rowProducts(memory, values, grid, (out) => 2 * out, weightsOf);
  for (let o = 0; o < ffn; o++) to.set(o, (sums[o] / (1 + Math.exp(-sums[o]))) * sums[ffn + o]);
}

export function emulatedMatvecAdd(
  memory: EmulatedMemory,
  values: Values,
  [grid]: readonly number[],
  weightsOf = bfloat16Weights(memory, values[1]),
): void {
  const [input, , inWidth, outWidth, scale, residual, norm, next, squares] = values;
  const out = number(outWidth);
  assertGrid(grid, out);
  const stream = memory.float32(buffer(residual));
  const parts = memory.float32(buffer(squares));
  const [scales, to] = [memory.bfloat16(buffer(norm)), memory.bfloat16(buffer(next))];
  parts.fill(0, 0, Math.ceil(out / blockProducts));
  products(memory, input, weightsOf, number(inWidth), out).forEach((sum, o) => {
    stream[o] += sum * number(scale);
    to.set(o, stream[o] * scales.get(o));
    parts[Math.floor(o / blockProducts)] += stream[o] ** 2;
  });
}
