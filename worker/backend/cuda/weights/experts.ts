/** Experts of a layer on the device: the weights of all of them as one matrix, in the forms of kernels/cuda/experts/expert_forms.cuh. */
import type { StoredTensor } from "../../../model/stored-form.ts";
import type { DeviceBuffer } from "../device/device.ts";
import type { Matrix } from "./matrix.ts";

export type ExpertForm = "b16" | "e4m3" | "mx4";

/** [experts * outWidth, inWidth] */
export interface ExpertMatrix extends Matrix {
  readonly form: ExpertForm;
  /** Scales of a matrix in mx4, a byte for each 32 inputs of an output; null in other forms. */
  readonly blockScales: DeviceBuffer | null;
}

export interface ExpertWeights {
  /** [experts, hidden] */
  readonly router: Matrix;
  /** [experts], and of all experts [2 * ffn] and [hidden]; null where the family has none */
  readonly routerBias: DeviceBuffer | null;
  readonly gateUpBias: DeviceBuffer | null;
  readonly downBias: DeviceBuffer | null;
  readonly gateUp: ExpertMatrix;
  readonly down: ExpertMatrix;
  /** For output o of an expert, the gate is row o * gateStep of gateUp, and the up is upOffset rows behind it. */
  readonly gateStep: number;
  readonly upOffset: number;
}

/** Greater scales are refused: 2^(s - 1) is no bfloat16 number then. Models have scales far below 1. */
export const greatestDeviceScale = 128;

/** The part of a tensor of all experts that is one expert's, with its rows as they are stored. */
export function wholeExpert({ stack, ...tensor }: StoredTensor): StoredTensor {
  if (stack === undefined) throw new RangeError(`${tensor.file}: a tensor of one expert`);
  const { rows, columns } = stack;
  const shape = columns === undefined ? [rows] : [rows, columns];
  return { ...tensor, shape, ...(stack.transposed && { stack }) };
}

/** The scales of such a part, as bytes. */
export function wholeScales({ mxfp4Scales, file }: StoredTensor): StoredTensor {
  if (mxfp4Scales === undefined) throw new RangeError(`${file}: a tensor without scales of blocks`);
  return { ...mxfp4Scales, mxfp4Scales };
}
