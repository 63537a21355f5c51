/**
 * A step is padded to one of a few sizes (buckets), so that launches, products and graphs are prepared once for each
 * size. Decode steps, in which every row is a piece of its own and wants logits, run as recorded CUDA graphs, one a
 * bucket. A graph is sized for the whole bucket and reads from device memory how many rows a step really has.
 */
import type { Batch } from "../../contract/batch.ts";
import type { ComputeDevice, Recording } from "./device/device.ts";
import type { Op } from "./forward-parts.ts";
import type { StepCapacity } from "./staging.ts";

/**
 * Larger decode steps are rare, and long enough to hide the cost of their launches; so each kind has 30 graphs at most.
 */
const maxGraphRows = 256;

/** Sizes of small decode steps, for which graphs are recorded at the start. */
export const smallBuckets: readonly number[] = [1, 2, 4, 8, 16, 24, 32, 48, 64];

/** The smallest bucket that holds `rowCount` rows. Above 256 rows less than an eighth of a bucket is padding. */
export function bucketOf(rowCount: number): number {
  const found = smallBuckets.find((size) => size >= rowCount);
  if (found !== undefined) return found;
  const unit = rowCount <= 256 ? 32 : rowCount <= 1_024 ? 64 : 256;
  return Math.ceil(rowCount / unit) * unit;
}

/** What a step ends with: the logits, or the tokens drawn from them. */
export type StepKind = "logits" | "tokens";

/**
 * What of a step's launches there is: whether its plan has small items, which of its plans have large ones, and whether
 * rows choose. Only where all rows do has a step no items.
 */
export interface StepLaunches {
  readonly small: boolean;
  readonly full: boolean;
  readonly sliding: boolean;
  readonly chooses: boolean;
}

/** Is every row a piece whose logits are wanted? */
export function isDecodeStep({ tokenIds, pieceRows, logitRows }: Batch): boolean {
  return logitRows.length === tokenIds.length && pieceRows.length === tokenIds.length + 1;
}

export class DecodeGraphs {
  readonly #device: ComputeDevice;
  readonly #graphs = new Map<string, Recording>();

  constructor(device: ComputeDevice) {
    this.#device = device;
  }

  serves(batch: Batch): boolean {
    return batch.tokenIds.length <= maxGraphRows && isDecodeStep(batch);
  }

  /**
   * Puts the step into the stream. The first step of a kind runs unrecorded, so that products find their algorithms.
   * @param kind what `ops` end with; a graph is kept for each kind and number of rows
   */
  run(kind: StepKind, capacity: StepCapacity, launches: StepLaunches, ops: readonly Op[]): void {
    const { small, full, sliding, chooses } = launches;
    const key = `${kind} ${capacity.rows} ${small} ${full} ${sliding} ${chooses}`;
    const known = this.#graphs.get(key);
    if (known !== undefined) return known.launch();
    const counts = {
      ...capacity,
      smallItems: small ? capacity.smallItems : 0,
      largeItems: full ? capacity.largeItems : 0,
      slidingLargeItems: sliding ? capacity.slidingLargeItems : 0,
      choices: chooses ? capacity.choices : 0,
    };
    const putAll = () => {
      for (const op of ops) op(counts);
    };
    putAll();
    this.#graphs.set(key, this.#device.capture(putAll));
  }

  close(): void {
    for (const graph of this.#graphs.values()) graph.close();
    this.#graphs.clear();
  }
}
