/**
 * Launches of our own kernels for products of one row (kernels/cuda/products). They read weights as fast as memory
 * allows and also do the work between two products. An input row is either finished, or as matvec_add left it: then its
 * RMSNorm factor is still missing, and the next product computes that factor from the sums of squares.
 */
import { blockScaleStride, type ComputeDevice, type DeviceBuffer, type Launch, scaleBlock } from "../device/device.ts";
import type { KernelName } from "../device/kernels.ts";
import type { MatrixScales } from "../weights/e4m3.ts";
import type { Matrix } from "../weights/matrix.ts";
import { activations } from "./activations.ts";

// Both numbers must match matvec.cu.
const blockThreads = 128;
const blockProducts = 8;

/** Warps of a thread block, and slots of each warp's ring; both must match matvec_ring.cuh. */
export const ringShape = { warps: 8, slots: 4 } as const;
/** Of two outputs' weights, two loads of each lane. */
const slotBytes = 2 * 2 * 32 * 16;
export const ringBytes = ringShape.warps * ringShape.slots * slotBytes;

type RowDevice = Pick<ComputeDevice, "multiprocessorCount" | "prepare">;

/** A row that lacks its RMSNorm factor; with `squares` null the row is finished. */
export interface RowInput {
  readonly row: DeviceBuffer;
  readonly width: number;
  readonly squares: DeviceBuffer | null;
  /** How many there are. */
  readonly squareCount: number;
  readonly epsilon: number;
}

/** Where matvec_add writes the residual stream and the next sublayer's input. */
export interface RowTarget {
  readonly residual: DeviceBuffer;
  /** Multiplies the product before it is added to the residual stream. */
  readonly scale: number;
  /** RMSNorm weights of the next sublayer. */
  readonly norm: DeviceBuffer;
  readonly row: DeviceBuffer;
  readonly squares: DeviceBuffer;
}

/** Are rows of these widths whole vectors of 16 bytes? */
export const takesRows = (...widths: readonly number[]): boolean => widths.every((width) => width % 8 === 0);

/** The kernels of matvec.cu and matvec_e4m3.cu, and those of matvec_ring.cu and matvec_ring_e4m3.cu. */
const kernels = {
  plain: {
    ...{ bfloat16: "matvec", float32: "matvec_float", gated: "matvec_gated", add: "matvec_add" },
    e4m3: { product: "matvec_e4m3", gated: "matvec_e4m3_gated", add: "matvec_e4m3_add" },
  },
  ring: {
    ...{ bfloat16: "matvec_ring", float32: "matvec_ring_float", gated: "matvec_ring_gated", add: "matvec_ring_add" },
    e4m3: { product: "matvec_ring_e4m3", gated: "matvec_ring_e4m3_gated", add: "matvec_ring_e4m3_add" },
  },
} as const satisfies Record<string, Record<string, KernelName | Record<string, KernelName>>>;

/** Weights and scales of a matrix in e4m3, as matvec_e4m3.cu takes them: from weights to inShift. */
export function bytesOf({ values, inWidth }: Matrix, scales: MatrixScales) {
  return scales.kind === "blocks"
    ? ([values, scales.values, blockScaleStride(inWidth), Math.log2(scaleBlock), Math.log2(scaleBlock / 16)] as const)
    : ([values, scales.values, 1, 0, 31] as const);
}

/**
 * `plain`: a thread block for some outputs each. `ring`: blocks that stay, and copy weights ahead (matvec_ring.cuh).
 */
export type RowProductKind = keyof typeof kernels;

/** A launch of rings for so many products. */
export function ringLaunch({ multiprocessorCount }: Pick<ComputeDevice, "multiprocessorCount">, products: number) {
  const blocks = Math.min(multiprocessorCount, Math.ceil(products / 2 / ringShape.warps));
  const blockThreads = 32 * ringShape.warps;
  return { grid: [blocks], blockThreads, sharedBytes: ringBytes, overlapsPrevious: true } as const;
}

/** Allows the rings their shared memory. */
export function allowRings(device: Pick<ComputeDevice, "allowSharedBytes">): void {
  const { e4m3, ...others } = kernels.ring;
  const names = [
    ...Object.values(others),
    ...Object.values(e4m3),
    ...Object.values(ringExperts).flatMap(Object.values),
  ];
  for (const name of names) device.allowSharedBytes(name, ringBytes);
}

/** Kernels for one row's experts, of whom there may be so many. */
export const ringExperts = {
  b16: { gated: "experts_ring_gated_b16", down: "experts_ring_down_b16" },
  e4m3: { gated: "experts_ring_gated_e4m3", down: "experts_ring_down_e4m3" },
} as const satisfies Record<string, Record<string, KernelName>>;
export const mostRingExperts = 32;

export class RowProducts {
  readonly #device: RowDevice;
  readonly #kind: RowProductKind;

  constructor(device: RowDevice, kind: RowProductKind) {
    this.#device = device;
    this.#kind = kind;
  }

  /** How many sums of squares `add` leaves for a row of `width` values: one for each thread block. */
  squareCount(width: number): number {
    return this.#blocksFor(width);
  }

  /** Writes `output` [outWidth] in bfloat16 or float32. */
  product(input: RowInput, matrix: Matrix, output: DeviceBuffer, type: "bfloat16" | "float32"): () => void {
    const { outWidth } = matrix;
    const rest = restOf(input, outWidth);
    const { e4m3, ...names } = kernels[this.#kind];
    const launch = matrix.scales
      ? this.#device.prepare(e4m3.product, input.row, ...bytesOf(matrix, matrix.scales), ...rest, output)
      : this.#device.prepare(names[type], input.row, matrix.values, ...rest, output);
    return this.#launched(launch, outWidth);
  }

  /** Does `gated` compute this activation? */
  gates(activation: keyof typeof activations): boolean {
    return this.#kind === "ring" || activation === "silu";
  }

  /** Writes activation(gate) * up, [ffn] bfloat16; weights are [2 * ffn, width], gate first. */
  gated(input: RowInput, matrix: Matrix, activation: keyof typeof activations, output: DeviceBuffer): () => void {
    if (!this.gates(activation)) throw new RangeError(`no product of one row with ${activation}`);
    const rows = matrix.outWidth;
    if (this.#kind === "ring") return this.#launched(this.#ringGated(input, matrix, activation, output), rows);
    const rest = restOf(input, rows / 2);
    const { e4m3, gated } = kernels.plain;
    const launch = matrix.scales
      ? this.#device.prepare(e4m3.gated, input.row, ...bytesOf(matrix, matrix.scales), ...rest, output)
      : this.#device.prepare(gated, input.row, matrix.values, ...rest, output);
    // This launch has many thread blocks. If they began early, they would take multiprocessors from the kernel before.
    return this.#launched(launch, rows, false);
  }

  #ringGated(input: RowInput, matrix: Matrix, activation: keyof typeof activations, output: DeviceBuffer): Launch {
    const [width, ffn, ...norm] = restOf(input, matrix.outWidth / 2);
    const shape = [width, ffn, activations[activation]] as const;
    const { e4m3, gated } = kernels.ring;
    return matrix.scales
      ? this.#device.prepare(e4m3.gated, input.row, ...bytesOf(matrix, matrix.scales), ...shape, ...norm, output)
      : this.#device.prepare(gated, input.row, matrix.values, ...shape, ...norm, output);
  }

  /** Can `add` add a bias? */
  get addsBias(): boolean {
    return this.#kind === "ring";
  }

  /** Adds the product of a finished row, and a bias [outWidth], to the residual stream. */
  add(row: DeviceBuffer, matrix: Matrix, bias: DeviceBuffer | null, target: RowTarget): () => void {
    const { outWidth, inWidth } = matrix;
    const { scale, residual, norm, squares } = target;
    if (bias !== null && !this.addsBias) throw new RangeError("no product of one row with a bias");
    const rest = [scale, residual, norm, target.row, squares] as const;
    if (this.#kind === "ring") {
      const { e4m3, add } = kernels.ring;
      const shape = [inWidth, outWidth, bias] as const;
      const launch = matrix.scales
        ? this.#device.prepare(e4m3.add, row, ...bytesOf(matrix, matrix.scales), ...shape, ...rest)
        : this.#device.prepare(add, row, matrix.values, ...shape, ...rest);
      return this.#launched(launch, outWidth);
    }
    const { e4m3, add } = kernels.plain;
    const launch = matrix.scales
      ? this.#device.prepare(e4m3.add, row, ...bytesOf(matrix, matrix.scales), inWidth, outWidth, ...rest)
      : this.#device.prepare(add, row, matrix.values, inWidth, outWidth, ...rest);
    return this.#launched(launch, outWidth);
  }

  #blocksFor(products: number): number {
    if (this.#kind === "plain") return Math.ceil(products / blockProducts);
    return ringLaunch(this.#device, products).grid[0];
  }

  #launched(launch: Launch, products: number, overlapsPrevious = true): () => void {
    const size =
      this.#kind === "plain"
        ? { grid: [this.#blocksFor(products)] as const, blockThreads, overlapsPrevious }
        : ringLaunch(this.#device, products);
    return () => launch(size);
  }
}

/** From the number of inputs to epsilon. */
function restOf({ width, squares, squareCount, epsilon }: RowInput, out: number) {
  return [width, out, squares, squareCount, epsilon] as const;
}
