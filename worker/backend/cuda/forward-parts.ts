/** What the launches of a step share: the device, the weights and the memory that steps work in. */
import type { PackShape } from "../../attention/shape.ts";
import type { ModelConfig } from "../../model/config.ts";
import type { ComputeDevice, DeviceBuffer } from "./device/device.ts";
import type { DevicePool, KvElement } from "./pool.ts";
import type { FewRowProducts } from "./products/few-rows.ts";
import type { SampleAnswer } from "./sampling.ts";
import type { SparseParts } from "./sparse/sparse-ops.ts";
import type { StepCounts, StepStaging } from "./staging.ts";
import type { DeviceWeights } from "./weights/weights.ts";
import type { RopeTable, Workspace } from "./workspace.ts";

/** The numbers by which kernels know them (activation.cuh). */
export const activations = { silu: 0, gelu: 1, clamped: 2 } as const;

/** Puts one launch or matrix product into the stream, sized for the counts of a step. */
export type Op = (counts: StepCounts) => void;

export interface ForwardParts {
  readonly device: ComputeDevice;
  readonly config: ModelConfig;
  readonly weights: DeviceWeights;
  readonly workspace: Workspace;
  readonly pool: DevicePool;
  readonly rope: RopeTable;
  readonly staging: StepStaging;
  readonly answer: SampleAnswer;
  readonly packShape: PackShape;
  /** The tensor maps, by the device address of a layer's part of the pool (putLayerMaps). */
  readonly layerMaps: ReadonlyMap<number, LayerMaps>;
  readonly blockTokens: number;
  readonly kvElement: KvElement;
  /** Products of few rows with weights in 8 bits. */
  readonly fewRows: FewRowProducts;
  /** true: the products of one-row steps compute sums and norms themselves; false: such steps run like any other. */
  readonly fusesRows: boolean;
  /** Of rows that choose what they read; undefined: none does, and K has no shadows. */
  readonly sparse: SparseParts | undefined;
}

/** Tensor maps of a layer's part of the pool. */
export interface LayerMaps {
  readonly small: DeviceBuffer;
  readonly large: DeviceBuffer;
}
