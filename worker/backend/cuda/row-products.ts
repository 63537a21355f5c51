/**
 * Products of one row by our own kernels (kernels/cuda/matvec.cu), which read weights at the rate of memory and do what
 * stands between two products themselves. The row comes finished, or as matvec_add left it: without the factor that
 * makes it RMSNorm, which follows from sums of squares.
 */
import type { ComputeDevice, DeviceBuffer, Launch } from "./device/device.ts";

// Of matvec.cu.
const blockThreads = 128;
const blockProducts = 8;

/** Sums of squares that a row of so many values leaves. */
export function squareCount(width: number): number {
  return Math.ceil(width / blockProducts);
}

/** A row without its factor; null squares: a finished row. */
export interface RowInput {
  readonly row: DeviceBuffer;
  readonly width: number;
  readonly squares: DeviceBuffer | null;
  readonly epsilon: number;
}

/** Where the residual stream, and the next sublayer's input of it, go. */
export interface RowTarget {
  readonly residual: DeviceBuffer;
  /** Of the product that joins the residual stream. */
  readonly scale: number;
  /** RMSNorm's weights of the next sublayer. */
  readonly norm: DeviceBuffer;
  readonly row: DeviceBuffer;
  readonly squares: DeviceBuffer;
}

/** Are rows of so many values whole vectors of 16 bytes? */
export function takesRows(...widths: readonly number[]): boolean {
  return widths.every((width) => width % 8 === 0);
}

export class RowProducts {
  readonly #device: ComputeDevice;

  constructor(device: ComputeDevice) {
    this.#device = device;
  }

  /** [outWidth] bfloat16 or float32 */
  product(input: RowInput, weights: DeviceBuffer, output: DeviceBuffer, type: "bfloat16" | "float32"): () => void {
    const outWidth = weights.byteLength / 2 / input.width;
    const name = type === "float32" ? "matvec_float" : "matvec";
    const launch = this.#device.prepare(name, ...this.#values(input, weights, outWidth), output);
    return this.#launched(launch, outWidth);
  }

  /** silu(gate) * up, [ffn] bfloat16; weights [2 * ffn, width], gate first. */
  gated(input: RowInput, weights: DeviceBuffer, output: DeviceBuffer): () => void {
    const rows = weights.byteLength / 2 / input.width;
    const launch = this.#device.prepare("matvec_gated", ...this.#values(input, weights, rows / 2), output);
    // Its many blocks, let in early, would take the room of those before them.
    return this.#launched(launch, rows, false);
  }

  /** A finished row's product joins the residual stream. */
  add(row: DeviceBuffer, width: number, weights: DeviceBuffer, target: RowTarget): () => void {
    const outWidth = weights.byteLength / 2 / width;
    const { scale, residual, norm, squares } = target;
    const values = [row, weights, width, outWidth, scale, residual, norm, target.row, squares] as const;
    return this.#launched(this.#device.prepare("matvec_add", ...values), outWidth);
  }

  #values({ row, width, squares, epsilon }: RowInput, weights: DeviceBuffer, out: number) {
    const count = squares === null ? 0 : squareCount(width);
    return [row, weights, width, out, squares, count, epsilon] as const;
  }

  #launched(launch: Launch, products: number, overlapsPrevious = true): () => void {
    const size = { grid: [Math.ceil(products / blockProducts)], blockThreads, overlapsPrevious } as const;
    return () => launch(size);
  }
}
