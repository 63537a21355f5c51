/** The activations of a step, allocated once for the largest step. */
import type { ModelConfig } from "../../model/config.ts";
import type { KvPool } from "../../native/cpu-kernels.ts";

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
  }
}
