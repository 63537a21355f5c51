/** Products of a step, and turns for messages between them. */
import { isGate, type Matrix, type ProductOptions } from "../../native/cpu-kernels.ts";

/** Multiply-adds between two looks at messages: 2 to 40 ms of work, by the instruction set. */
export const multiplyAddsBetweenLooks = 2e9;
/** Rows that products share loads of weights for. */
const rowPanels = 32;

export class Products {
  #sinceLook = 0;

  /** A large product in parts, a row's bits being its own, so that messages are seen in between. */
  async multiply(matrix: Matrix, x: Float32Array, rows: number, out: Float32Array, options: ProductOptions) {
    const { outputs, inputs } = matrix.options;
    const panels = Math.floor(multiplyAddsBetweenLooks / (outputs * inputs * rowPanels));
    const most = Math.max(1, panels) * rowPanels;
    for (let first = 0; first < rows; first += most) {
      const count = Math.min(most, rows - first);
      multiplyRows(matrix, x, { first, count }, out, options);
      await this.look(count * outputs * inputs);
    }
  }

  /** After so many multiply-adds more: lets messages be seen when it is time. */
  async look(work: number): Promise<void> {
    this.#sinceLook += work;
    if (this.#sinceLook < multiplyAddsBetweenLooks) return;
    this.#sinceLook = 0;
    await new Promise((resolve) => setImmediate(resolve));
  }
}

interface RowRange {
  readonly first: number;
  readonly count: number;
}

/** Rows that are named by their places stay where they are; only the names move on. */
function multiplyRows(matrix: Matrix, x: Float32Array, rows: RowRange, out: Float32Array, options: ProductOptions) {
  const { first, count } = rows;
  if (first === 0) return matrix.multiply(x, count, out, options);
  const { outputs, inputs } = matrix.options;
  const { xRows, outRows, rowFactors, xStride = inputs } = options;
  const outStride = options.outStride ?? (isGate(options.finish) ? outputs / 2 : outputs);
  matrix.multiply(
    xRows === undefined ? x.subarray(first * xStride) : x,
    count,
    outRows === undefined ? out.subarray(first * outStride) : out,
    {
      ...options,
      xRows: xRows?.subarray(first),
      outRows: outRows?.subarray(first),
      rowFactors: rowFactors?.subarray(first),
    },
  );
}
