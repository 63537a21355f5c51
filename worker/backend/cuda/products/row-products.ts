/**
 * Launches of our own kernels for products of one row (kernels/cuda/products). They read weights as fast as memory
 * allows and also do the work between two products. An input row is either finished, or as matvec_add left it: then its
 * RMSNorm factor is still missing, and the next product computes that factor from the sums of squares.
 */
import { blockScaleStride, type ComputeDevice, type DeviceBuffer, type Launch, scaleBlock } from "../device/device.ts";
import type { MatrixScales } from "../weights/e4m3.ts";
import type { Matrix } from "../weights/matrix.ts";

// Both numbers must match matvec.cu.
const blockThreads = 128;
const blockProducts = 8;

/** How many sums of squares matvec_add leaves for a row of `width` values: one for each thread block. */
export const squareCount = (width: number): number => Math.ceil(width / blockProducts);

/** A row that lacks its RMSNorm factor; with `squares` null the row is finished. */
export interface RowInput {
  readonly row: DeviceBuffer;
  readonly width: number;
  readonly squares: DeviceBuffer | null;
  readonly epsilon: number;
}

/** Where matvec_add writes the residual stream and the next sublayer's input. */
export interface RowTarget {
  readonly residual: DeviceBuffer;
  /** Multiplies the product before it is added to the residual stream. */
  readonly scale: number;
  /** RMSNorm weights of the next sublayer. */
  readonly norm: DeviceBuffer;
  readonly row: DeviceBuffer;
  readonly squares: DeviceBuffer;
}

/** Are rows of these widths whole vectors of 16 bytes? */
export const takesRows = (...widths: readonly number[]): boolean => widths.every((width) => width % 8 === 0);

const plainProducts = { bfloat16: "matvec", float32: "matvec_float" } as const;

/** Weights and scales of a matrix in e4m3, as matvec_e4m3.cu takes them: from weights to inShift. */
export function bytesOf({ values, inWidth }: Matrix, scales: MatrixScales) {
  return scales.kind === "blocks"
    ? ([values, scales.values, blockScaleStride(inWidth), Math.log2(scaleBlock), Math.log2(scaleBlock / 16)] as const)
    : ([values, scales.values, 1, 0, 31] as const);
}

export class RowProducts {
  readonly #device: ComputeDevice;

  constructor(device: ComputeDevice) {
    this.#device = device;
  }

  /** Writes `output` [outWidth] in bfloat16 or float32. */
  product(input: RowInput, matrix: Matrix, output: DeviceBuffer, type: "bfloat16" | "float32"): () => void {
    const { outWidth } = matrix;
    const rest = this.#restOf(input, outWidth);
    const launch = matrix.scales
      ? this.#device.prepare("matvec_e4m3", input.row, ...bytesOf(matrix, matrix.scales), ...rest, output)
      : this.#device.prepare(plainProducts[type], input.row, matrix.values, ...rest, output);
    return this.#launched(launch, outWidth);
  }

  /** Writes silu(gate) * up, [ffn] bfloat16; weights are [2 * ffn, width], gate first. */
  gated(input: RowInput, matrix: Matrix, output: DeviceBuffer): () => void {
    const rows = matrix.outWidth;
    const rest = this.#restOf(input, rows / 2);
    const launch = matrix.scales
      ? this.#device.prepare("matvec_e4m3_gated", input.row, ...bytesOf(matrix, matrix.scales), ...rest, output)
      : this.#device.prepare("matvec_gated", input.row, matrix.values, ...rest, output);
    // This launch has many thread blocks. If they began early, they would take multiprocessors from the kernel before.
    return this.#launched(launch, rows, false);
  }

  /** Adds the product of a finished row to the residual stream. */
  add(row: DeviceBuffer, matrix: Matrix, target: RowTarget): () => void {
    const { outWidth, inWidth } = matrix;
    const { scale, residual, norm, squares } = target;
    const rest = [inWidth, outWidth, scale, residual, norm, target.row, squares] as const;
    const launch = matrix.scales
      ? this.#device.prepare("matvec_e4m3_add", row, ...bytesOf(matrix, matrix.scales), ...rest)
      : this.#device.prepare("matvec_add", row, matrix.values, ...rest);
    return this.#launched(launch, outWidth);
  }

  /** From the number of inputs to epsilon. */
  #restOf({ width, squares, epsilon }: RowInput, out: number) {
    const count = squares === null ? 0 : squareCount(width);
    return [width, out, squares, count, epsilon] as const;
  }

  #launched(launch: Launch, products: number, overlapsPrevious = true): () => void {
    const size = { grid: [Math.ceil(products / blockProducts)], blockThreads, overlapsPrevious } as const;
    return () => launch(size);
  }
}
