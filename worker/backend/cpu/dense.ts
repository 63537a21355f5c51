/** The dense algebra between two attentions, for the rows of a step. What does it is chosen by SPANGATE_DENSE. */
import type { ModelConfig } from "../../model/config.ts";
import type { Weights } from "../../model/weights.ts";
import type { CpuKernels, HeadNorms, KvPool } from "../../native/cpu-kernels.ts";
import type { StepBuffers } from "./step-buffers.ts";

/** float32: as exact as float32; int8: weights, and in products their rows, rounded to 8 bits. */
export type WeightMode = "float32" | "int8";

/** onnx: onnxruntime's products; native: our own (kernels/abi.h). */
export type DenseMode = "onnx" | "native";

export interface Dense {
  /**
   * What the first `rows` rows pass from attention of layer `index` - 1 on (from the embedding on for layer 0) to that
   * of layer `index`, whose q, k and v it leaves in the buffers.
   */
  run(index: number, rows: number): Promise<void>;
  /** Runs what stands behind the last layer: leaves the logits of the first `rows` rows. */
  head(rows: number): Promise<void>;
  /**
   * Attention too, where it can be a part of the same native calls. Stage 2i is `run(i)`, behind the last layer `head`;
   * stage 2i + 1 is attention of layer i. Absent: each is called on its own.
   */
  runStages?(first: number, end: number, rows: number): Promise<void>;
  /** Before the last attention: only these rows go on, in this order, as the first ones. */
  keepRows(rows: Int32Array): void;
  dispose(): Promise<void>;
}

export interface DenseParts {
  readonly config: ModelConfig;
  readonly weights: Weights;
  readonly weightMode: WeightMode;
  readonly buffers: StepBuffers;
  readonly kernels: CpuKernels;
  readonly pool: KvPool;
  /** [layerCount] */
  readonly headNorms: readonly (HeadNorms | undefined)[];
  /** See CpuBackendOptions. */
  readonly callWork: number;
  readonly threadCount: number;
  readonly maxRows: number;
}
