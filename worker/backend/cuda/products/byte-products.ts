/**
 * Products of several rows with weights in 8 bits. Their input is rounded to 8 bits, a scale for what shares one of the
 * weights' inputs: by the kernel that computes it, where that leaves it so, else by one of its own. Few rows are multiplied
 * by our own kernel, many by cuBLASLt.
 */
import type { ComputeDevice, DeviceBuffer } from "../device/device.ts";
import type { Matrix } from "../weights/matrix.ts";
import type { FewRowProducts } from "./few-rows.ts";
import { takesRows } from "./row-products.ts";

const [blockThreads, warpThreads] = [256, 32];
const overlapsPrevious = true;

/** Threads of a block that goes through a row and keeps it: as many as have a vector of 8 values each, where it can. */
export const rowThreads = (width: number): number => Math.min(1024, Math.ceil(width / 8 / warpThreads) * warpThreads);

/** The most numbers of a row with one scale that a thread block keeps while it looks for the greatest (e4m3.cuh). */
const mostKept = 32_768;

/** Products of weights in 8 bits have at least so many rows; what is in the others is computed for nothing. */
export const leastProductRows = 4;

/** What such products share. */
export interface ByteParts {
  readonly device: ComputeDevice;
  readonly fewRows: FewRowProducts;
  /** Rows in 8 bits and their scales. */
  readonly workspace: { readonly quantized: DeviceBuffer; readonly quantizedScales: DeviceBuffer };
  /** How many rows a step has, on the device. */
  readonly rowCount: DeviceBuffer;
}

type Op = (counts: { readonly rows: number }) => void;

export class ByteProducts {
  readonly #parts: ByteParts;
  /** Rows of a step. */
  readonly #stepRows: number;

  constructor(parts: ByteParts, stepRows: number) {
    this.#parts = parts;
    this.#stepRows = stepRows;
  }

  /** Is the input of the matrix rounded to 8 bits? A row that runs alone is not. */
  takes({ scales, inWidth }: Matrix): boolean {
    return scales !== undefined && !(this.#stepRows === 1 && takesRows(inWidth));
  }

  /** Does the kernel that computes the input of the matrix round it? */
  leaves(matrix: Matrix): boolean {
    return this.takes(matrix) && (matrix.scales?.kind === "blocks" || matrix.inWidth <= mostKept);
  }

  /** Rounds the input of the matrix. */
  round({ scales, inWidth }: Matrix, input: DeviceBuffer): Op {
    const { device, workspace, rowCount } = this.#parts;
    const { quantized, quantizedScales } = workspace;
    if (scales?.kind === "rows") {
      const launch = device.prepare("quantize_rows", input, rowCount, inWidth, quantized, quantizedScales);
      return (counts) => launch({ grid: [counts.rows], blockThreads: rowThreads(inWidth), overlapsPrevious });
    }
    const given = [input, rowCount, inWidth, this.#rows, quantized, quantizedScales] as const;
    const launch = device.prepare("quantize_blocks", ...given);
    const gridY = Math.ceil(inWidth / 1_024);
    return (counts) => launch({ grid: [counts.rows, gridY], blockThreads, overlapsPrevious });
  }

  /**
   * Where a kernel leaves the input of the matrix, and how: out, scales, rowStride (add_rmsnorm.cu).
   * @param plain where it does in bfloat16
   */
  leftOf(plain: DeviceBuffer, matrix: Matrix | undefined): readonly [DeviceBuffer, DeviceBuffer | null, number] {
    if (matrix === undefined || !this.leaves(matrix)) return [plain, null, 0];
    const { quantized, quantizedScales } = this.#parts.workspace;
    return [quantized, quantizedScales, matrix.scales?.kind === "blocks" ? this.#rows : 0];
  }

  /** A product of the input that was rounded last. @throws RangeError when the matrix is not in 8 bits */
  product(matrix: Matrix, output: DeviceBuffer): Op {
    const { device, workspace, fewRows } = this.#parts;
    const { quantized: input, quantizedScales } = workspace;
    const { values: weights, outWidth, inWidth, scales } = matrix;
    if (scales === undefined) throw new RangeError("a matrix without scales");
    const rows = this.#rows;
    if (fewRows.takes(rows, matrix)) return fewRows.product(rows, matrix, scales, quantizedScales, output);
    const shape = { rows, outWidth, inWidth, outputType: "bfloat16", scales: scales.kind } as const;
    const both = { weights: scales.values, input: quantizedScales };
    return () => device.matmul(shape, { input, weights, output, scales: both });
  }

  /** What is in rows that a step does not have is computed for nothing. */
  get #rows(): number {
    return Math.max(this.#stepRows, leastProductRows);
  }
}
