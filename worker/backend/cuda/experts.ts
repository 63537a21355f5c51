/**
 * The launches of an MLP of experts: the router's scores, each row's experts and their weights, the rows of each expert, and
 * two products with the weights of the experts that have rows (kernels/cuda/experts). What the experts of a row give is
 * added up, in the order of their ranks, where it joins the residual stream (add_rmsnorm.cu).
 *
 * Nothing waits for the host: launches are sized for the most tiles that a step can have, and tiles say what is there.
 */
import type { Experts } from "../../model/experts.ts";
import type { DeviceBuffer, LaunchSize } from "./device/device.ts";
import type { KernelName } from "./device/kernels.ts";
import { activations, type ForwardParts, type Op } from "./forward-parts.ts";
import { type ExpertSpace, manySharedBytes, mostTiles, tileSizes } from "./products/expert-space.ts";
import { bytesOf, type RowInput, squareCount } from "./products/row-products.ts";
import type { StepLayout } from "./staging.ts";
import type { ExpertMatrix, ExpertWeights } from "./weights/experts.ts";
import type { Matrix } from "./weights/matrix.ts";
import type { Workspace } from "./workspace.ts";

/** Outputs that a thread block has, as gates with their ups, and of the second product. */
const blockOutputs = { few: { gated: 8, down: 16 }, many: { gated: 128, down: 256 } } as const;
/** Assignments of an expert on average from which on a step has many rows; widening weights first pays later. */
const manyRows = { b16: 16, e4m3: 64, mx4: 64 } as const;
/** Does the device multiply many rows by these kernels? Elsewhere those for few rows do it all. */
const hasMany = ({ device }: ForwardParts): boolean => device.hasWarpgroups;

type ManyRows = (rows: number, matrix: Matrix, input: DeviceBuffer, output: DeviceBuffer, type: "float32") => Op[];

export class ExpertOps {
  readonly #parts: ForwardParts;
  readonly #layout: StepLayout;
  readonly #experts: Experts;
  readonly #space: ExpertSpace;
  readonly #products: ManyRows;

  /** @param products of the rows of a step with any matrix */
  constructor(parts: ForwardParts, layout: StepLayout, products: ManyRows) {
    const { experts } = parts.config;
    const { experts: space } = parts.workspace;
    if (experts === undefined || space === null) throw new Error("a model without experts");
    this.#parts = parts;
    this.#layout = layout;
    this.#experts = experts;
    this.#space = space;
    this.#products = products;
  }

  /** Leaves in `workspace.delta` [rows, perToken, hidden] what each expert of a row gives; the weights are `factors`. */
  ops(weights: ExpertWeights, input: RowInput): Op[] {
    const { rows } = this.#layout.capacity;
    const { workspace } = this.#parts;
    const size = this.#isMany(weights.gateUp) ? "many" : "few";
    const tiles = mostTiles(this.#experts, rows, tileSizes[size]);
    const [gated, down] = [this.#gated(weights, input, tiles), this.#down(weights, workspace, tiles)];
    return [...this.#route(weights, input), ...this.#group(tileSizes[size], tiles), ...gated, ...down];
  }

  #isMany({ form }: ExpertMatrix): boolean {
    const assignments = this.#layout.capacity.rows * this.#experts.perToken;
    return hasMany(this.#parts) && assignments >= manyRows[form] * this.#experts.count;
  }

  /** One row's assignments need no sorting. */
  get #isOne(): boolean {
    return this.#layout.capacity.rows === 1;
  }

  #route({ router, routerBias }: ExpertWeights, input: RowInput): Op[] {
    const { device, staging } = this.#parts;
    const { scores, chosen, factors, tiles, order, arrivals } = this.#space;
    const { count, perToken, normalised } = this.#experts;
    if (this.#isOne) {
      const { row, width, squares, epsilon } = input;
      const norm = [squares, squares === null ? 0 : squareCount(width), epsilon] as const;
      const sizes = [routerBias, count, perToken, normalised ? 1 : 0] as const;
      const out = [scores, arrivals, chosen, factors, tiles, order] as const;
      const route = device.prepare("route_row", row, router.values, width, ...norm, ...sizes, ...out);
      return [() => route({ grid: [Math.ceil(count / 4)], blockThreads: 128, overlapsPrevious: true })];
    }
    const sizes = [staging.count("rows"), count, perToken, normalised ? 1 : 0] as const;
    const route = device.prepare("route_rows", scores, routerBias, ...sizes, chosen, factors);
    return [
      ...this.#products(this.#layout.capacity.rows, router, input.row, scores, "float32"),
      (counts) => route({ grid: [Math.ceil(counts.rows / 4)], blockThreads: 128, overlapsPrevious: true }),
    ];
  }

  #group(assignments: number, tileCount: number): Op[] {
    if (this.#isOne) return [];
    const { device, staging } = this.#parts;
    const { chosen, order, tiles } = this.#space;
    const { count, perToken } = this.#experts;
    const sizes = [staging.count("rows"), perToken, count, assignments, tileCount] as const;
    const group = device.prepare("group_rows", chosen, ...sizes, order, tiles);
    return [() => group({ grid: [count], blockThreads: 256, overlapsPrevious: true })];
  }

  #gated(weights: ExpertWeights, { row, width, squares, epsilon }: RowInput, tileCount: number): Op[] {
    const { device, config, workspace } = this.#parts;
    const { gateUp, gateUpBias, gateStep, upOffset } = weights;
    const { tiles, order } = this.#space;
    const { perToken, ffnSize } = this.#experts;
    const isMany = this.#isMany(gateUp);
    const shape = [perToken, gateUp.inWidth, ffnSize, gateStep, upOffset, activations[config.activation]] as const;
    const size = this.#size(isMany, "gated", ffnSize, tileCount);
    if (isMany) {
      const [values, widen] = this.#widened(gateUp);
      const product = [row, values, gateUpBias, tiles, order, ...shape, workspace.activated] as const;
      return [...widen, this.#launched(device.prepare("experts_gated_wgmma", ...product), size)];
    }
    const norm = [squares, squares === null ? 0 : squareCount(width), epsilon] as const;
    const product = [gateUpBias, tiles, order, ...shape, ...norm, workspace.activated] as const;
    return [this.#launched(device.prepare(fewKernels[gateUp.form].gated, row, ...formOf(gateUp), ...product), size)];
  }

  #down({ down, downBias }: ExpertWeights, { activated, delta }: Workspace, tileCount: number): Op[] {
    const { device } = this.#parts;
    const { tiles, order } = this.#space;
    const isMany = this.#isMany(down);
    const size = this.#size(isMany, "down", down.outWidth, tileCount);
    const shape = [down.inWidth, down.outWidth, delta] as const;
    if (isMany) {
      const [values, widen] = this.#widened(down);
      const product = device.prepare("experts_down_wgmma", activated, values, downBias, tiles, order, ...shape);
      return [...widen, this.#launched(product, size)];
    }
    const name = fewKernels[down.form].down;
    const product = device.prepare(name, activated, ...formOf(down), downBias, tiles, order, ...shape);
    return [this.#launched(product, size)];
  }

  #size(isMany: boolean, product: "gated" | "down", outputs: number, tiles: number): LaunchSize {
    const grid = [Math.ceil(outputs / blockOutputs[isMany ? "many" : "few"][product]), tiles] as const;
    const size = { grid, overlapsPrevious: true } as const;
    return isMany ? { ...size, blockThreads: 256, sharedBytes: manySharedBytes } : { ...size, blockThreads: 128 };
  }

  /** Weights in bfloat16, and what makes them so. */
  #widened({ form, values, inWidth, outWidth, ...matrix }: ExpertMatrix): [DeviceBuffer, Op[]] {
    const { widened } = this.#space;
    if (form === "b16" || widened === null) return [values, []];
    const { device } = this.#parts;
    const [, scales, stride, rowShift, inShift] = formOf({ form, values, inWidth, outWidth, ...matrix });
    const shape = [inWidth, this.#experts.count * outWidth, widened] as const;
    const launch =
      form === "e4m3"
        ? device.prepare("widen_e4m3", values, scales, stride, rowShift, inShift, ...shape)
        : device.prepare("widen_mx4", values, scales, ...shape);
    return [widened, [this.#launched(launch, { grid: [16 * device.multiprocessorCount], blockThreads: 256 })]];
  }

  #launched(launch: (size: LaunchSize) => void, size: LaunchSize): Op {
    return () => launch(size);
  }
}

/** Weights and scales, as expert_rows.cuh takes them: from weights to inShift. */
function formOf(matrix: ExpertMatrix): readonly [DeviceBuffer, DeviceBuffer | null, number, number, number] {
  if (matrix.scales) return bytesOf(matrix, matrix.scales);
  return [matrix.values, matrix.blockScales, 0, 0, 0] as const;
}

const fewKernels = {
  b16: { gated: "experts_gated_b16", down: "experts_down_b16" },
  e4m3: { gated: "experts_gated_e4m3", down: "experts_down_e4m3" },
  mx4: { gated: "experts_gated_mx4", down: "experts_down_mx4" },
} as const satisfies Record<string, Record<string, KernelName>>;
