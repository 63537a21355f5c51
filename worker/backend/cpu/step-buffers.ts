/** The activations of a step, allocated once for the largest step. */
import type { ModelConfig } from "../../model/config.ts";
import type { KvPool } from "../../native/cpu-kernels.ts";
import { type FloatTensor, rowsTensor } from "./dense-session.ts";

/** Views of the first rows of the buffers, which all layers of a step use. */
export interface StepTensors {
  readonly residual: readonly [FloatTensor, FloatTensor];
  readonly qkv: FloatTensor;
  readonly attention: FloatTensor;
}

export class StepBuffers {
  /** [maxRows, hiddenSize] each; the residual stream alternates between two. */
  readonly residual: readonly [Float32Array, Float32Array];
  /** [maxRows, qkvWidth] */
  readonly qkv: Float32Array;
  /** [maxRows, outWidth] */
  readonly attention: Float32Array;
  /** [maxLogitRows, vocabSize] */
  readonly logits: Float32Array;
  /** [maxLogitRows] */
  readonly greatest: Int32Array;
  /** [maxRows] */
  readonly deviations: Float32Array;
  readonly #hiddenSize: number;
  readonly #pool: Pick<KvPool, "qkvWidth" | "outWidth">;

  constructor(
    { hiddenSize, vocabSize }: ModelConfig,
    pool: Pick<KvPool, "qkvWidth" | "outWidth">,
    { maxRows, maxLogitRows }: { readonly maxRows: number; readonly maxLogitRows: number },
  ) {
    this.residual = [new Float32Array(maxRows * hiddenSize), new Float32Array(maxRows * hiddenSize)];
    this.qkv = new Float32Array(maxRows * pool.qkvWidth);
    this.attention = new Float32Array(maxRows * pool.outWidth);
    this.logits = new Float32Array(maxLogitRows * vocabSize);
    this.greatest = new Int32Array(maxLogitRows);
    this.deviations = new Float32Array(maxRows);
    this.#hiddenSize = hiddenSize;
    this.#pool = pool;
  }

  /** Takes less than a microsecond. */
  tensors(rows: number): StepTensors {
    const { residual, qkv, attention } = this;
    return {
      residual: [rowsTensor(residual[0], rows, this.#hiddenSize), rowsTensor(residual[1], rows, this.#hiddenSize)],
      qkv: rowsTensor(qkv, rows, this.#pool.qkvWidth),
      attention: rowsTensor(attention, rows, this.#pool.outWidth),
    };
  }
}
