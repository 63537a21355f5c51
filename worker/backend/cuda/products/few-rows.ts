/**
 * Products of a decode step's rows with weights in 8 bits (kernels/cuda/products/few_rows_wgmma.cu): how the outputs and
 * inputs of a matrix are cut among thread blocks, and the tensor maps by which these copy. The cut depends on the matrix
 * alone, never on the rows, so that a row's result does not depend on those beside it.
 */
import { blockScaleStride, type ComputeDevice, type DeviceBuffer, type LaunchSize } from "../device/device.ts";
import type { MatrixScales } from "../weights/e4m3.ts";
import type { Matrix } from "../weights/matrix.ts";
import type { LayerWeights } from "../weights/weights.ts";

/** Rows for which there are kernels. */
const rowTiles = [8, 16, 32, 64] as const;
type RowTile = (typeof rowTiles)[number];
const mostRows = 64;

/** Inputs that a step takes, a byte each, and outputs of a thread block. */
const stepInputs = 128;
const blockOutputs = 64;
const blockThreads = 160;
const mostStages = 16;
/** Shared memory that every thread block takes beside what it asks for, and what begins the ring on 1,024 bytes. */
const [reservedBytes, alignBytes] = [1_024, 1_024];

/** How a matrix is cut: thread blocks of a cluster, which share its inputs, and thread blocks of a multiprocessor. */
export interface FewRowCut {
  readonly peers: 1 | 2 | 4;
  readonly perMultiprocessor: number;
}

/** Clusters that an H200's multiprocessors hold with one thread block each: of four, 30 in place of 33. */
function clustersOf(multiprocessors: number, peers: number): number {
  return Math.floor((peers === 4 ? 10 / 11 : 1) * (multiprocessors / peers));
}

/**
 * All thread blocks are to run at a time, two to four on a multiprocessor, so that they begin before the kernel before has
 * ended: the fewest of these, and where outputs are few, as many for the same outputs as fit.
 */
export function cutOf({ outWidth, inWidth }: Pick<Matrix, "outWidth" | "inWidth">, multiprocessors: number): FewRowCut {
  const blocks = Math.ceil(outWidth / blockOutputs);
  const fits = (count: number, each: number) =>
    count <= inWidth / stepInputs && blocks <= each * clustersOf(multiprocessors, count);
  const peers = ([4, 2] as const).find((count) => fits(count, 3)) ?? 1;
  return { peers, perMultiprocessor: [2, 3].find((each) => fits(peers, each)) ?? 4 };
}

/** Shared memory of a thread block with so many stages: weights, input and its scales, and two barriers of each. */
const bytesOf = (rows: RowTile, stages: number): number =>
  alignBytes + stages * ((blockOutputs + rows) * stepInputs + rows * 4 + 16);

function stagesOf({ perMultiprocessor }: FewRowCut, rows: RowTile, mostSharedBytes: number): number {
  const room = (mostSharedBytes + reservedBytes) / perMultiprocessor - reservedBytes;
  return Math.min(mostStages, Math.floor((room - alignBytes) / (bytesOf(rows, 1) - alignBytes)));
}

const tileOf = (rows: number): RowTile => rowTiles.find((tile) => tile >= rows) ?? mostRows;
const kernelOf = (tile: RowTile, peers: FewRowCut["peers"]) => `few_rows_wgmma_${tile}x${peers}` as const;

/** The tensor map's columns are bfloat16, each two numbers of 8 bits. */
const columnsOf = ({ inWidth }: Matrix): number => inWidth / 2;

/** Matrices of layers by which rows are multiplied as they stand, without a choice of experts. */
export const layerMatrices = (layers: readonly LayerWeights[]): Matrix[] =>
  layers.flatMap(({ qkv, output, mlp }) => [qkv, output, ...("router" in mlp ? [] : [mlp.gateUp, mlp.down])]);

export class FewRowProducts {
  readonly #device: ComputeDevice;
  /** Maps of matrices by where their values are, and of the input by width and rows. */
  readonly #weightMaps = new Map<number, DeviceBuffer>();
  readonly #inputMaps = new Map<string, DeviceBuffer>();

  /** @param input rows in 8 bits, of any width */
  constructor(device: ComputeDevice, matrices: readonly Matrix[], input: DeviceBuffer) {
    this.#device = device;
    if (!device.hasWarpgroups) return;
    for (const matrix of matrices.filter(({ scales, inWidth }) => scales && inWidth % stepInputs === 0)) {
      this.#weightMaps.set(matrix.values.pointer, device.putTensorMap(matrix.values, columnsOf(matrix), blockOutputs));
      for (const tile of rowTiles) {
        const key = this.#inputKey(matrix, tile);
        if (!this.#inputMaps.has(key)) this.#inputMaps.set(key, device.putTensorMap(input, columnsOf(matrix), tile));
      }
    }
    if (this.#weightMaps.size === 0) return;
    for (const tile of rowTiles) {
      for (const peers of [1, 2, 4] as const)
        device.allowSharedBytes(kernelOf(tile, peers), device.maxSharedBytesPerBlock);
    }
  }

  /** Does it multiply so many rows with the matrix? */
  takes(rows: number, { values }: Matrix): boolean {
    return rows <= mostRows && this.#weightMaps.has(values.pointer);
  }

  /** Multiplies rows that `input` holds, with their scales. */
  product(
    rows: number,
    matrix: Matrix,
    scales: MatrixScales,
    inputScales: DeviceBuffer,
    output: DeviceBuffer,
  ): () => void {
    const { outWidth, inWidth, values } = matrix;
    const tile = tileOf(rows);
    const cut = cutOf(matrix, this.#device.multiprocessorCount);
    const { peers } = cut;
    const maps = [this.#weightMaps.get(values.pointer), this.#inputMaps.get(this.#inputKey(matrix, tile))] as const;
    const [weightMap, inputMap] = maps;
    if (weightMap === undefined || inputMap === undefined) throw new Error("a matrix without a tensor map");
    const stages = stagesOf(cut, tile, this.#device.maxSharedBytesPerBlock);
    const stride = scales.kind === "blocks" ? blockScaleStride(inWidth) : 0;
    const shape = [stride, rows, inWidth, outWidth, stages] as const;
    const given = [weightMap, inputMap, scales.values, inputScales, ...shape, output] as const;
    const launch = this.#device.prepare(kernelOf(tile, peers), ...given);
    const size: LaunchSize = {
      grid: [peers * Math.ceil(outWidth / blockOutputs)],
      blockThreads,
      sharedBytes: bytesOf(tile, stages),
      overlapsPrevious: true,
    };
    return () => launch(size);
  }

  #inputKey({ inWidth }: Matrix, tile: RowTile): string {
    return `${inWidth} ${tile}`;
  }
}
