/** What rows that choose can ask of this backend, and what their choices came to, as the device counts it. */
import type { Batch } from "../../../contract/batch.ts";
import { type ChoiceCounts, choiceModes } from "../../../contract/sparse.ts";
import type { SparseShape } from "../../backend.ts";
import { choiceSizes } from "./choice-words.ts";
import { assertChoicesFit, segmentsPerSeat, shadowBytesPerBlock } from "./sparse-memory.ts";
import type { SparseParts } from "./sparse-ops.ts";

const modes = ["now"] as const;

export function sparseShapeOf({ config, blockTokens, workspace }: SparseParts): SparseShape {
  const { mostCandidates, options } = workspace;
  const { seats, listTokens } = options;
  const bytes = shadowBytesPerBlock(config, blockTokens);
  const most = { mostSegments: segmentsPerSeat, mostCandidates };
  return { seats, listTokens, shadowBytesPerBlock: bytes, modes, ...most, readsInPlace: true };
}

/** The counts of all seats, copied to the host behind each step that chooses. */
export class ChoiceCounters {
  readonly #parts: SparseParts;
  /** [seats] lists that were chosen, in pinned memory */
  readonly #counts: BigUint64Array<ArrayBuffer>;

  constructor(parts: SparseParts) {
    const { seats } = parts.workspace.options;
    const { buffer, byteOffset } = parts.device.allocateHost("counts of choices", seats * 8);
    this.#parts = parts;
    this.#counts = new BigUint64Array(buffer, byteOffset, seats);
  }

  /** @throws RangeError when the step's choices are none that this backend makes, before anything has begun */
  assertFit({ choices }: Batch): void {
    if (choices === undefined) return;
    const { workspace } = this.#parts;
    assertChoicesFit(workspace, choiceSizes(choices));
    for (const [entry, mode] of choices.modes.entries()) {
      const name = choiceModes[mode];
      if (!modes.some((own) => own === name)) throw new RangeError(`no row of a GPU chooses by "${name}"`);
      if (!(choices.seats[entry] < workspace.options.seats)) throw new RangeError(`no seat ${choices.seats[entry]}`);
    }
  }

  /** Puts the copy to the host into the stream. */
  fetch(): void {
    this.#parts.device.copyOut(this.#counts, this.#parts.workspace.counts);
  }

  /** Nothing is copied for a choice here, and neither mass nor overlap is measured. */
  of(seat: number): ChoiceCounts {
    const lists = Number(this.#counts[seat]);
    return { lists, chosen: lists, chosenAgain: 0, changed: 0, mass: 0, overlap: 0, measured: 0 };
  }
}
