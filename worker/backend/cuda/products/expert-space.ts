/** Memory that a step's rows need to find their experts, and what sizes it (kernels/cuda/experts). */
import type { Experts } from "../../../model/experts.ts";
import type { ComputeDevice, DeviceBuffer } from "../device/device.ts";
import type { ExpertMatrix } from "../weights/experts.ts";

/** Assignments of a tile: of the kernels for few rows, and of those for many. */
export const tileSizes = { few: 16, many: 128 } as const;
/** kSharedBytes of experts_wgmma.cu. */
export const manySharedBytes = 4 * (128 + 256) * 64 * 2;
const tileBytes = 16;

/** What a step's rows need to find their experts. */
export interface ExpertSpace {
  /** [rows, experts] float32 */
  readonly scores: DeviceBuffer;
  /** [rows, perToken]: experts, and their weights */
  readonly chosen: DeviceBuffer;
  readonly factors: DeviceBuffer;
  /** Assignments in the order of their experts, and their tiles (expert_tiles.cuh). */
  readonly order: DeviceBuffer;
  readonly tiles: DeviceBuffer;
  /** A number of route_rows.cu, zero between launches. */
  readonly arrivals: DeviceBuffer;
  /** Room for the weights of one product in bfloat16; null: they are. */
  readonly widened: DeviceBuffer | null;
}

/** The most tiles that the assignments of so many rows can have (group_rows.cu). */
export function mostTiles({ count, perToken }: Experts, rows: number, assignments: number): number {
  return Math.floor((rows * perToken) / assignments) + Math.min(count, rows * perToken);
}

/** @param widened elements of the largest product's weights that may have to be widened */
export function makeExpertSpace(
  device: Pick<ComputeDevice, "allocate" | "fill">,
  experts: Experts,
  rows: number,
  widened: number,
): ExpertSpace {
  const assignments = rows * experts.perToken;
  const allocate = (name: string, byteLength: number) => device.allocate(name, byteLength);
  const arrivals = allocate("arrivals at a row's scores", 4);
  device.fill(arrivals, 0);
  return {
    arrivals,
    scores: allocate("scores of experts", rows * experts.count * 4),
    chosen: allocate("chosen experts", assignments * 4),
    factors: allocate("weights of experts", assignments * 4),
    order: allocate("assignments by expert", assignments * 4),
    tiles: allocate("tiles of assignments", mostTiles(experts, rows, tileSizes.few) * tileBytes),
    widened: widened === 0 ? null : allocate("widened experts", widened * 2),
  };
}

/** The elements that `makeExpertSpace` takes for the weights of a layer. */
export function widenedElements(hasWarpgroups: boolean, experts: Experts, matrices: readonly ExpertMatrix[]): number {
  if (!hasWarpgroups) return 0;
  const sizes = matrices.map(({ form, outWidth, inWidth }) => (form === "b16" ? 0 : outWidth * inWidth));
  return experts.count * Math.max(0, ...sizes);
}

/** A warp keeps the scores of so many (choose_experts.cuh). */
const mostExperts = 512;

/** @throws Error naming the size that the kernels do not take */
export function assertExperts({ ffnSize, count }: Experts, hiddenSize: number): void {
  if (count > mostExperts) throw new Error(`${count} experts: the CUDA backend takes ${mostExperts} at most`);
  for (const [name, size] of [
    ["hidden size", hiddenSize],
    ["size of an expert", ffnSize],
  ] as const) {
    if (size % 8 !== 0) throw new Error(`${name} ${size}: the CUDA backend takes multiples of 8`);
  }
}
