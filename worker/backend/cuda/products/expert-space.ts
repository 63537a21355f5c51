/** Memory that a step's rows need to find their experts, and what sizes it (kernels/cuda/experts). */
import type { Experts } from "../../../model/experts.ts";
import type { DeviceBuffer } from "../device/device.ts";
import type { ExpertMatrix } from "../weights/experts.ts";

/** Choices of a tile: of the kernels for few rows, and of those for many. */
export const tileChoices = { few: 16, many: 128 } as const;
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
  /** Choices in the order of their experts, and their tiles (expert_tiles.cuh). */
  readonly order: DeviceBuffer;
  readonly tiles: DeviceBuffer;
  /** Room for the weights of one product in bfloat16; null: they are. */
  readonly widened: DeviceBuffer | null;
}

/** The most tiles that the choices of so many rows can have (group_rows.cu). */
export function mostTiles({ count, perToken }: Experts, rows: number, choices: number): number {
  return Math.floor((rows * perToken) / choices) + Math.min(count, rows * perToken);
}

/** @param widened elements of the largest product's weights that may have to be widened */
export function makeExpertSpace(
  allocate: (name: string, byteLength: number) => DeviceBuffer,
  experts: Experts,
  rows: number,
  widened: number,
): ExpertSpace {
  const choices = rows * experts.perToken;
  return {
    scores: allocate("scores of experts", rows * experts.count * 4),
    chosen: allocate("chosen experts", choices * 4),
    factors: allocate("weights of experts", choices * 4),
    order: allocate("choices by expert", choices * 4),
    tiles: allocate("tiles of choices", mostTiles(experts, rows, tileChoices.few) * tileBytes),
    widened: widened === 0 ? null : allocate("widened experts", widened * 2),
  };
}

/** The elements that `makeExpertSpace` takes for the weights of a layer. */
export function widenedElements(hasWarpgroups: boolean, experts: Experts, matrices: readonly ExpertMatrix[]): number {
  if (!hasWarpgroups) return 0;
  const sizes = matrices.map(({ form, outWidth, inWidth }) => (form === "b16" ? 0 : outWidth * inWidth));
  return experts.count * Math.max(0, ...sizes);
}

/** @throws Error naming the size that the kernels do not take */
export function assertExperts({ ffnSize }: Experts, hiddenSize: number): void {
  for (const [name, size] of [
    ["hidden size", hiddenSize],
    ["size of an expert", ffnSize],
  ] as const) {
    if (size % 8 !== 0) throw new Error(`${name} ${size}: the CUDA backend takes multiples of 8`);
  }
}
