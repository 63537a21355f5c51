/**
 * Launches of our own kernels for products of 2 to 16 rows (kernels/cuda/products/few_rows.cuh), which read weights ahead
 * as those of one row do, and activate what they multiply.
 */
import type { ComputeDevice, DeviceBuffer } from "../device/device.ts";
import type { KernelName } from "../device/kernels.ts";
import type { Matrix } from "../weights/matrix.ts";
import { activations } from "./activations.ts";
import { bytesOf, ringBytes, ringShape, takesRows } from "./row-products.ts";

/** kMostRowTiles of few_rows.cuh, of 8 rows each. */
const mostFewRows = 16;

const kernels = {
  8: {
    ...{ bfloat16: "few_rows_8", float32: "few_rows_float_8", gated: "few_rows_gated_8" },
    ...{ bytes: "few_rows_e4m3_8", gatedBytes: "few_rows_e4m3_gated_8" },
  },
  16: {
    ...{ bfloat16: "few_rows_16", float32: "few_rows_float_16", gated: "few_rows_gated_16" },
    ...{ bytes: "few_rows_e4m3_16", gatedBytes: "few_rows_e4m3_gated_16" },
  },
} as const satisfies Record<number, Record<string, KernelName>>;

/** Outputs that a thread block has at a time. */
const unitOutputs = 16;

/** Allows the rings of few rows their shared memory. */
export function allowFewRows(device: Pick<ComputeDevice, "allowSharedBytes">): void {
  for (const names of Object.values(kernels)) {
    for (const name of Object.values(names)) device.allowSharedBytes(name, ringBytes);
  }
}

/** Do these kernels multiply so many rows with the matrix? */
export function takesFewRows(rows: number, { inWidth, scales }: Matrix, type: "bfloat16" | "float32"): boolean {
  return rows > 1 && rows <= mostFewRows && takesRows(inWidth) && !(scales && type === "float32");
}

export class FewRows {
  readonly #device: Pick<ComputeDevice, "multiprocessorCount" | "prepare">;
  readonly #rows: number;

  /** @param rows of a step's bucket, `takesFewRows` */
  constructor(device: Pick<ComputeDevice, "multiprocessorCount" | "prepare">, rows: number) {
    this.#device = device;
    this.#rows = rows;
  }

  /** Writes `output` [rows, outWidth] in bfloat16 or float32. */
  product(input: DeviceBuffer, matrix: Matrix, output: DeviceBuffer, type: "bfloat16" | "float32"): () => void {
    const { values, scales, inWidth, outWidth } = matrix;
    const shape = [this.#rows, inWidth, outWidth] as const;
    const launch = scales
      ? this.#device.prepare(this.#names.bytes, input, ...bytesOf(matrix, scales), ...shape, output)
      : this.#device.prepare(this.#names[type], input, values, ...shape, output);
    return () => launch(this.#size(outWidth));
  }

  /** Writes activation(gate) * up, [rows, ffn] bfloat16; weights are [2 * ffn, width], gate first. */
  gated(input: DeviceBuffer, matrix: Matrix, activation: keyof typeof activations, output: DeviceBuffer): () => void {
    const { values, scales, inWidth, outWidth } = matrix;
    const shape = [this.#rows, inWidth, outWidth / 2, activations[activation]] as const;
    const launch = scales
      ? this.#device.prepare(this.#names.gatedBytes, input, ...bytesOf(matrix, scales), ...shape, output)
      : this.#device.prepare(this.#names.gated, input, values, ...shape, output);
    return () => launch(this.#size(outWidth));
  }

  get #names() {
    return kernels[this.#rows <= 8 ? 8 : 16];
  }

  #size(outputs: number) {
    const blocks = Math.min(this.#device.multiprocessorCount, Math.ceil(outputs / unitOutputs));
    const blockThreads = 32 * ringShape.warps;
    return { grid: [blocks], blockThreads, sharedBytes: ringBytes, overlapsPrevious: true } as const;
  }
}
