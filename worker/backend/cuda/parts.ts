/** Makes what a backend consists of: weights on the device, the memory that steps work in, the KV pool. */
import type { PackShape } from "../../attention/shape.ts";
import type { ModelConfig } from "../../model/config.ts";
import type { LoadedModel } from "../../model/load.ts";
import type { SparseOptions } from "../backend.ts";
import {
  allowAttention,
  assertAttention,
  assertMx8,
  countersPerMerge,
  maxItems,
  packShapeOf,
  putLayerMaps,
} from "./attention.ts";
import type { ComputeDevice } from "./device/device.ts";
import type { ForwardParts } from "./forward-parts.ts";
import { bucketOf } from "./graphs.ts";
import { stagingBytes } from "./host-blocks.ts";
import { DevicePool, type KvElement, kvBytesPerBlock } from "./pool.ts";
import { leastProductRows } from "./products/byte-products.ts";
import { assertExperts, manySharedBytes, widenedElements } from "./products/expert-space.ts";
import { FewRowProducts, layerMatrices } from "./products/few-rows.ts";
import { SampleAnswer } from "./sampling.ts";
import {
  assertChoosable,
  makeChoiceWorkspace,
  mostChoiceWords,
  Shadows,
  shadowBytesPerBlock,
} from "./sparse/sparse-memory.ts";
import { allowChoices } from "./sparse/sparse-ops.ts";
import { type StepCapacity, StepLayout, StepStaging } from "./staging.ts";
import { FileReader } from "./weights/tensor-reader.ts";
import { loadWeights, type Mlp, type TensorReader, type WeightInfo } from "./weights/weights.ts";
import { makeRopeTable, makeWorkspace } from "./workspace.ts";

export interface CudaBackendOptions {
  /** The most KV memory to take; undefined: all that is free. */
  readonly kvBytes: number | undefined;
  readonly blockTokens: number;
  /** What the pool holds, for which the device's kernels are compiled; default: bfloat16. */
  readonly kvElement?: KvElement | undefined;
  /** The most rows of one step, and the most of them that want logits. */
  readonly maxRows: number;
  readonly maxLogitRows: number;
  /** false: nothing is recorded, and one row runs like many; for comparison. Default true. */
  readonly graphs?: boolean;
  /** false: no row reads KV together with rows of other requests, for comparison. Default true. */
  readonly packing?: boolean;
  /** The most page-locked memory of the host to hold blocks in; absent or 0: none. */
  readonly hostKvBytes?: number | undefined;
  /** Bytes left free on the device, for the driver and for graphs; default 1 GiB. */
  readonly reserveBytes?: number;
  /** false: matrices in 8-bit floats are widened, as they are where the device does not multiply them. Default true. */
  readonly keepsE4m3?: boolean | undefined;
  /** Rows may choose what they read; undefined: none does, and there is no memory for it. */
  readonly sparse?: SparseOptions | undefined;
  /** Where weights are read from; default: the model's files. */
  readonly reader?: TensorReader;
}

const defaultReserveBytes = 2 ** 30;
/**
 * Words for slices, offsets and block ids (16 MiB), however small the model's context; see EngineLimits.stepListWords.
 */
export const minListWords = 4 << 20;

export interface CudaModel {
  readonly config: ModelConfig;
  readonly weights: WeightInfo;
}

/**
 * Allocates the weights first, then the memory that steps work in, then the pool, which takes the rest.
 * @throws ModelError, CudaError, or Error in one sentence when the model does not fit
 */
export async function makeParts(
  device: ComputeDevice,
  model: CudaModel | LoadedModel,
  options: CudaBackendOptions,
): Promise<ForwardParts> {
  const { config } = model;
  assertAttention(config, options.blockTokens);
  if (config.experts) assertExperts(config.experts, config.hiddenSize);
  const { blockTokens, kvElement = "bfloat16", hostKvBytes = 0, reserveBytes = defaultReserveBytes } = options;
  const packShape = packShapeOf(config, device, options);
  if (kvElement === "mx8") assertMx8(packShape, device);
  if (options.sparse) {
    assertChoosable(config, blockTokens, kvElement === "mx8", device.hasWarpgroups);
    allowChoices(device, config.headDim);
  }
  allowAttention(device, config.headDim, kvElement);
  if (config.experts && device.hasWarpgroups) {
    for (const name of ["experts_gated_wgmma", "experts_down_wgmma"] as const)
      device.allowSharedBytes(name, manySharedBytes);
  }
  const reader = options.reader ?? new FileReader();
  // Elsewhere nothing multiplies 8-bit floats, and they are widened as they are read.
  const keepsE4m3 = options.keepsE4m3 !== false && device.multipliesE4m3;
  const weights = await loadWeights(device, config, model.weights, { reader, keepsE4m3 });
  const rows = bucketOf(Math.max(options.maxRows, leastProductRows));
  const maxLogitRows = bucketOf(options.maxLogitRows);
  const answer = new SampleAnswer(maxLogitRows);
  const stepWords = stagingWords(config, options, packShape);
  const sizes = {
    maxRows: rows,
    maxLogitRows,
    partialRows: packShape.maxPartialRows,
    countersPerRow: countersPerMerge(config),
    answerWords: answer.wordCount,
    stepWords,
    e4m3Width: weights.e4m3Width,
    widenedElements: Math.max(0, ...weights.layers.map(({ mlp }) => widenedOf(device, config, mlp))),
  };
  const workspace = makeWorkspace(device, config, sizes);
  const fewRows = new FewRowProducts(device, layerMatrices(weights.layers), workspace.quantized);
  const rope = makeRopeTable(device, config);
  const staging = new StepStaging(device, stepWords);
  const forHost = hostKvBytes > 0 ? stagingBytes(kvBytesPerBlock(config, { blockTokens, kvElement })) : 0;
  const choosing = options.sparse && makeChoiceWorkspace(device, config, options.sparse);
  const besideBlockBytes = choosing ? shadowBytesPerBlock(config, blockTokens) : 0;
  const poolOptions = { ...options, kvElement, reserveBytes: reserveBytes + forHost, besideBlockBytes };
  const pool = new DevicePool(device, config, poolOptions);
  const sparse = choosing && {
    ...{ device, config, blockTokens, pool, workspace: choosing, qkv: workspace.qkv, attended: workspace.attended },
    shadows: new Shadows(device, config, pool.blockCount, blockTokens),
  };
  const layers = Array.from({ length: config.layerCount }, (_, index) => pool.layer(index));
  const layerMaps = putLayerMaps(device, packShape, { layers, kvElement });
  return {
    device,
    config,
    weights,
    workspace,
    pool,
    rope,
    staging,
    answer,
    packShape,
    layerMaps,
    blockTokens,
    kvElement,
    fewRows,
    fusesRows: options.graphs !== false,
    sparse,
  };
}

function widenedOf({ hasWarpgroups }: ComputeDevice, { experts }: ModelConfig, mlp: Mlp): number {
  return experts && "router" in mlp ? widenedElements(hasWarpgroups, experts, [mlp.gateUp, mlp.down]) : 0;
}

/** Room for the lists of steps of up to so many rows, of which so many want logits, and so many choose. */
export function stepCapacity(
  config: ModelConfig,
  shape: PackShape,
  rows: number,
  logitRows: number,
  seats = 0,
): StepCapacity {
  const items = maxItems(shape, rows);
  const [slidingItems, slidingMerges] = config.window === undefined ? [0, 0] : [items, rows];
  return {
    rows,
    logitRows,
    smallItems: items,
    largeItems: items,
    merges: rows,
    slidingSmallItems: slidingItems,
    slidingLargeItems: slidingItems,
    slidingMerges,
    choices: Math.min(rows, seats),
  };
}

/** Words that the largest step takes: its lists, and twice the blocks of all requests. */
function stagingWords(config: ModelConfig, options: CudaBackendOptions, shape: PackShape): number {
  const rows = bucketOf(options.maxRows);
  const lists = new StepLayout(stepCapacity(config, shape, rows, rows)).wordCount;
  const blocksOfRequest = Math.ceil(config.contextTokens / options.blockTokens);
  // Pieces of few rows are planned row by row for layers that slide, which takes up to four times the words.
  const listWords = config.window === undefined ? minListWords : 5 * minListWords;
  // Edits have up to half of the room for lists (cuda-backend.ts), so what else a step has counts twice.
  const choices = options.sparse ? 2 * mostChoiceWords(config, options.sparse, options.blockTokens) : 0;
  return lists + 2 * options.maxLogitRows * blocksOfRequest + listWords + choices;
}
