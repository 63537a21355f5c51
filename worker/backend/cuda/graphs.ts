/**
 * Steps are run in sizes of few kinds, so that launches, products and graphs are prepared once for each.
 * Decode steps as recorded graphs, one a bucket: every row is a piece of its own and wants logits. What is recorded is
 * sized for the whole bucket and reads from the device how much of it a step uses.
 */
import type { Batch } from "../../contract/batch.ts";
import type { ComputeDevice, Recording } from "./device/device.ts";
import type { Op } from "./forward-parts.ts";
import type { StepCapacity } from "./staging.ts";

/** Greater decode steps are rare, and long enough to hide their launches. So there are 30 graphs at most of a kind. */
const maxGraphRows = 256;

/** Sizes of decode steps that get a graph, as far as the step goes. */
export const smallBuckets: readonly number[] = [1, 2, 4, 8, 16, 24, 32, 48, 64];

/** The smallest size that holds so many rows: the waste of padding rows is below an eighth from 256 rows on. */
export function bucketOf(rowCount: number): number {
  const found = smallBuckets.find((size) => size >= rowCount);
  if (found !== undefined) return found;
  const unit = rowCount <= 256 ? 32 : rowCount <= 1_024 ? 64 : 256;
  return Math.ceil(rowCount / unit) * unit;
}

/** What a step leaves behind. */
export type StepKind = "logits" | "tokens";

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
   * Puts the step into the stream; the first of its kind is run plainly, so that products find their algorithms.
   * @param kind of what `ops` are, beside the number of rows @param hasLarge are there attention large items?
   */
  run(kind: StepKind, capacity: StepCapacity, hasLarge: boolean, ops: readonly Op[]): void {
    const key = `${kind} ${capacity.rows} ${hasLarge}`;
    const known = this.#graphs.get(key);
    if (known !== undefined) return known.launch();
    const counts = hasLarge ? capacity : { ...capacity, largeItems: 0 };
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
