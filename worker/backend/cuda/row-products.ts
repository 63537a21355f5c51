/**
 * Launches of our own kernels for products of one row (kernels/cuda/matvec.cu). They read weights as fast as memory
 * allows and also do the work between two products. An input row is either finished, or as matvec_add left it: then its
 * RMSNorm factor is still missing, and the next product computes that factor from the sums of squares.
 */
import type { ComputeDevice, DeviceBuffer, Launch } from "./device/device.ts";

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

export class RowProducts {
  readonly #device: ComputeDevice;

  constructor(device: ComputeDevice) {
    this.#device = device;
  }

  /** Writes `output` [outWidth] in bfloat16 or float32. */
  product(input: RowInput, weights: DeviceBuffer, output: DeviceBuffer, type: "bfloat16" | "float32"): () => void {
    const outWidth = weights.byteLength / 2 / input.width;
    const name = type === "float32" ? "matvec_float" : "matvec";
    const launch = this.#device.prepare(name, ...this.#values(input, weights, outWidth), output);
    return this.#launched(launch, outWidth);
  }

  /** Writes silu(gate) * up, [ffn] bfloat16; weights are [2 * ffn, width], gate first. */
  gated(input: RowInput, weights: DeviceBuffer, output: DeviceBuffer): () => void {
    const rows = weights.byteLength / 2 / input.width;
    const launch = this.#device.prepare("matvec_gated", ...this.#values(input, weights, rows / 2), output);
    // This launch has many thread blocks. If they began early, they would take multiprocessors from the kernel before.
    return this.#launched(launch, rows, false);
  }

  /** Adds the product of a finished row to the residual stream. */
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
