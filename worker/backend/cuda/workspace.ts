/** The activations of a step, allocated once for the largest step, and the table of rotations. */
import type { ModelConfig } from "../../model/config.ts";
import type { Rotation } from "../../model/rope.ts";
import { type ComputeDevice, type DeviceBuffer, scaleBlock } from "./device/device.ts";
import { type ExpertSpace, makeExpertSpace } from "./products/expert-space.ts";
import { squareCount } from "./products/row-products.ts";
import { editWords } from "./sampling.ts";

export interface WorkspaceSizes {
  readonly maxRows: number;
  readonly maxLogitRows: number;
  /** Rows of partial attention results, and for each row how many counters of arrivals. */
  readonly partialRows: number;
  readonly countersPerRow: number;
  /** Sizes in 32-bit words: the sampling kernels' answer, and the lists of a step. */
  readonly answerWords: number;
  readonly stepWords: number;
  /** Inputs of the widest matrix of e4m3; 0: there is none. */
  readonly e4m3Width: number;
  /** Elements of the largest matrix of experts that is not bfloat16; 0: there is none. */
  readonly widenedElements: number;
}

export interface Workspace {
  /** [rows, hidden] float32 */
  readonly residual: DeviceBuffer;
  /**
   * [rows, hidden] bfloat16: a sublayer's input, and what it adds to the residual stream; of experts
   * [rows, perToken, hidden]
   */
  readonly normed: DeviceBuffer;
  readonly delta: DeviceBuffer;
  /** float32: sums of squares of parts of one row's residual stream, as many as matvec_add has thread blocks */
  readonly squares: DeviceBuffer;
  /** [rows, (heads + 2 * kvHeads) * headDim] bfloat16 */
  readonly qkv: DeviceBuffer;
  /** [rows, heads * headDim] bfloat16 */
  readonly attended: DeviceBuffer;
  /** [partialRows, heads, headDim] and [partialRows, heads] float32 */
  readonly partials: DeviceBuffer;
  readonly partialSums: DeviceBuffer;
  /** [rows, countersPerRow] int32, zero between launches */
  readonly arrivals: DeviceBuffer;
  /** [rows, e4m3Width] e4m3, and its scales by rows or blocks of 128 inputs, float32 */
  readonly quantized: DeviceBuffer;
  readonly quantizedScales: DeviceBuffer;
  /** [rows, 2 * ffn] and [rows, ffn] bfloat16, or of experts [rows * perToken, ffn] */
  readonly gateUp: DeviceBuffer;
  readonly activated: DeviceBuffer;
  /** null: no layer has experts. */
  readonly experts: ExpertSpace | null;
  /** [logitRows, hidden] bfloat16 and [logitRows, vocab] float32 */
  readonly headInput: DeviceBuffer;
  readonly logits: DeviceBuffer;
  /** [rows] float32 */
  readonly deviations: DeviceBuffer;
  /** The answer of the sampling kernels (laid out by SampleAnswer), token ids first. */
  readonly answer: DeviceBuffer;
  /**
   * Original values of the logits that sampling edits and then restores, float32, at the edit's place in the step's
   * buffer.
   */
  readonly savedLogits: DeviceBuffer;
}

export function makeWorkspace(device: ComputeDevice, config: ModelConfig, sizes: WorkspaceSizes): Workspace {
  const { hiddenSize, headCount, kvHeadCount, headDim, vocabSize, experts } = config;
  // In a model whose layers all have experts, no buffer needs the width of a dense MLP.
  const ffnOfDense = experts?.layers.every((has) => has) ? 1 : config.ffnSize;
  const { maxRows, maxLogitRows, partialRows } = sizes;
  const rows = (name: string, width: number, bytes: number) => device.allocate(name, maxRows * width * bytes);
  const arrivals = rows("arrivals", sizes.countersPerRow, 4);
  device.fill(arrivals, 0);
  return {
    residual: rows("residual", hiddenSize, 4),
    normed: rows("normed", hiddenSize, 2),
    delta: rows("delta", hiddenSize * (experts?.perToken ?? 1), 2),
    squares: device.allocate("sums of squares", squareCount(hiddenSize) * 4),
    qkv: rows("qkv", (headCount + 2 * kvHeadCount) * headDim, 2),
    attended: rows("attended", headCount * headDim, 2),
    partials: device.allocate("partials", partialRows * headCount * headDim * 4),
    partialSums: device.allocate("partial sums", partialRows * headCount * 4),
    arrivals,
    quantized: rows("input in 8 bits", Math.max(1, sizes.e4m3Width), 1),
    quantizedScales: rows("scales of input in 8 bits", Math.max(1, Math.ceil(sizes.e4m3Width / scaleBlock)), 4),
    gateUp: rows("gate and up", 2 * ffnOfDense, 2),
    activated: rows("activated", Math.max(ffnOfDense, (experts?.perToken ?? 0) * (experts?.ffnSize ?? 0)), 2),
    experts: experts ? makeExpertSpace(device, experts, maxRows, sizes.widenedElements) : null,
    headInput: device.allocate("head input", maxLogitRows * hiddenSize * 2),
    logits: device.allocate("logits", maxLogitRows * vocabSize * 4),
    deviations: rows("deviations", 1, 4),
    answer: device.allocate("sampled tokens", sizes.answerWords * 4),
    savedLogits: device.allocate("saved logits", Math.ceil(sizes.stepWords / editWords) * 4),
  };
}

/** (cos, sin) rows for every distance at which a query can be read. */
export interface RopeTable {
  /** The row of position 0; null: nothing is rotated. */
  readonly origin: DeviceBuffer | null;
  /** The same of the table by which layers that slide rotate; `origin` where they have none of their own. */
  readonly slidingOrigin: DeviceBuffer | null;
  /** int32 [layers], 1 for each layer that rotates, 2 where it does so by the second table. */
  readonly layerRotates: DeviceBuffer;
}

/** The row of position 0 by which a layer rotates; null: it does not. */
export function rotationsOf({ origin, slidingOrigin }: RopeTable, config: ModelConfig, layer: number) {
  if (!config.rope.layers[layer]) return null;
  return config.window?.layers[layer] ? slidingOrigin : origin;
}

export function makeRopeTable(device: ComputeDevice, { rope, window, contextTokens }: ModelConfig): RopeTable {
  const layerRotates = device.allocate("layers that rotate", rope.layers.length * 4);
  const host = device.allocateHost("layers that rotate", rope.layers.length * 4);
  const flags = new Int32Array(host.buffer, host.byteOffset, rope.layers.length);
  const ofSliding = rope.sliding === undefined ? 1 : 2;
  flags.set(rope.layers.map((rotates, layer) => (rotates ? (window?.layers[layer] ? ofSliding : 1) : 0)));
  device.copyIn(layerRotates, flags);
  if (rope.rotaryDim === 0) return { origin: null, slidingOrigin: null, layerRotates };
  const origin = fillRopeTable(device, rope, contextTokens);
  const slidingOrigin = rope.sliding === undefined ? origin : fillRopeTable(device, rope.sliding, contextTokens);
  return { origin, slidingOrigin, layerRotates };
}

/** @returns the row of position 0 */
function fillRopeTable(device: ComputeDevice, rotation: Rotation, contextTokens: number): DeviceBuffer {
  const { inverseFrequencies, attentionFactor } = rotation;
  const half = inverseFrequencies.length;
  const host = device.allocateHost("RoPE", 4 * half);
  const frequencies = new Float32Array(host.buffer, host.byteOffset, half);
  frequencies.set(inverseFrequencies);
  const frequencyBuffer = device.allocate("inverse frequencies", half * 4);
  device.copyIn(frequencyBuffer, frequencies);
  // A query at position p reads a segment at p - offset; 0 <= p < contextTokens, and |offset| < contextTokens.
  const positionCount = 3 * contextTokens;
  const table = device.allocate("table of rotations", positionCount * half * 8);
  const factor = new Uint8Array(Float64Array.of(attentionFactor).buffer);
  const fill = device.prepare("fill_rope_table", frequencyBuffer, half, -contextTokens, positionCount, factor, table);
  fill({ grid: [8 * device.multiprocessorCount], blockThreads: 256 });
  return table.slice(contextTokens * half * 8);
}
