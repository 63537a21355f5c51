/**
 * The pack scheduler: from the segments of a step to a plan of its attention (plan-format.ts) in which rows that
 * read the same KV do so together. Memory is the measure: KV that s rows share is loaded once for as many of them as
 * fit into an item. The plan is a choice of three, by estimated time (estimate.ts):
 *
 *   1. leaf items alone: rows in the order of what they share, nobody has partial results
 *   2. hubs too, as small items
 *   3. hubs as large items, by a kernel of their own
 *
 * Each is cut so that the chip is filled. A plan is kept while only the ends of runs grow: then its words are patched.
 */
import type { Batch } from "../contract/batch.ts";
import { BatchCopy } from "./batches/copy.ts";
import type { WindowedBatch } from "./batches/windowed.ts";
import { type PackChoice, PackDraft } from "./draft.ts";
import { PieceWriter } from "./pieces.ts";
import { type AttentionPlan, mostPieceWords } from "./plan-format.ts";
import { type PackCosts, type PackShape, packCosts } from "./shape.ts";
import { SharingFinder, type Stretches } from "./sharing.ts";
import { PlanWriter } from "./writer.ts";

/** Prefill items are not split into parts of fewer tokens. */
const minPieceTokens = 512;
/** Parts are made so many times longer than is best, one factor after the other, until their partial results fit. */
const relaxations: readonly number[] = [1, 4, Number.POSITIVE_INFINITY];

/** What the plan of a step is written from. */
interface StepParts {
  readonly batch: WindowedBatch;
  readonly stretches: Stretches;
  /** Pieces that have items of their own. */
  readonly isLong: (piece: number) => boolean;
  /** Tokens that an item of such a piece has at most. */
  readonly partTokens: number;
}

/** Plans with at most so many words of slices and offsets are taken, whatever their rows share. */
const freeWords = 2 ** 20;

export class PackPlanner {
  readonly shape: PackShape;
  readonly #costs: PackCosts;
  readonly #finder: SharingFinder;
  readonly #writer: PlanWriter;
  readonly #pieces: PieceWriter;
  readonly #draft: PackDraft;
  readonly #kept: BatchCopy;
  readonly #freeListWords: number;

  /** @param freeListWords for tests */
  constructor(shape: PackShape, freeListWords = freeWords) {
    this.shape = shape;
    this.#freeListWords = freeListWords;
    this.#costs = packCosts(shape);
    this.#finder = new SharingFinder(shape.blockTokens);
    this.#writer = new PlanWriter(shape.blockTokens);
    this.#pieces = new PieceWriter(this.#writer, shape, this.#costs.large.rows);
    this.#draft = new PackDraft(shape, this.#costs, this.#writer);
    this.#kept = new BatchCopy(shape.blockTokens);
  }

  /** Pieces of more rows have items of their own. */
  get fewRows(): number {
    return this.#costs.small.rows;
  }

  /** Valid until the next `plan`. */
  plan(batch: WindowedBatch): AttentionPlan {
    // Windows move on with each token, so such a plan is never that of the step before.
    if (batch.segmentLateness !== undefined) return this.#planAnew(batch);
    if (this.#kept.isGrownTo(batch, (segment, tokens) => this.#writer.growTail(segment, tokens))) {
      return this.#writer.move(batch);
    }
    this.#kept.forget();
    const plan = this.#planAnew(batch);
    this.#kept.keep(batch);
    return plan;
  }

  /**
   * Chains that part at many different blocks cut each other into stretches, and a row then reads more stretches than
   * it has segments. The engine measures steps by the words of a plan that shares nothing (step-budget.ts), so a plan
   * with more words than that is replaced by one whose rows share nothing.
   */
  #planAnew(batch: WindowedBatch): AttentionPlan {
    const { packing } = this.shape;
    const mostWords = Math.max(this.#freeListWords, mostWordsOf(batch));
    const fits = ({ slices, offsets }: AttentionPlan) => slices.length + offsets.length <= mostWords;
    const plan = this.#planSharing(batch, packing, relaxations);
    if (fits(plan)) return plan;
    const apart = this.#planSharing(batch, false, relaxations);
    // Rows of one piece that stand in different items have slices of their own, so whole items may be needed.
    return fits(apart) ? apart : this.#planSharing(batch, false, [Number.POSITIVE_INFINITY]);
  }

  #planSharing(batch: WindowedBatch, sharing: boolean, relaxed: readonly number[]): AttentionPlan {
    const { shape } = this;
    const costs = this.#costs;
    const isLong = (piece: number) => batch.pieceRows[piece + 1] - batch.pieceRows[piece] > this.fewRows;
    const stretches = this.#finder.find(batch, (piece) => !isLong(piece), sharing);
    let longTokens = 0;
    for (let piece = 0; piece + 1 < batch.pieceRows.length; piece++) {
      if (isLong(piece)) longTokens += this.#pieces.tokensOf(batch, piece);
    }
    const rowCount = batch.tokenIds.length;
    const partTokens = Math.max(minPieceTokens, Math.ceil(longTokens / costs.itemSlots));
    const parts = { batch, stretches, isLong, partTokens };
    const choice = this.#draft.choose(stretches, rowCount, longTokens > 0, sharing);
    for (const relax of relaxed) {
      const plan = this.#write(parts, choice, relax);
      if (plan.partialCount <= shape.maxPartialRows) return plan;
    }
    // Without hubs and without cuts no row stands in two items, so there are no partial results.
    const plain = this.#draft.choose(stretches, rowCount, longTokens > 0, false);
    return this.#write(parts, plain, Number.POSITIVE_INFINITY);
  }

  /** @param relax parts are so many times longer than is best, because partial results would not fit */
  #write({ batch, stretches, isLong, partTokens }: StepParts, choice: PackChoice, relax: number): AttentionPlan {
    this.#writer.begin(batch);
    this.#draft.write(batch, stretches, choice, relax);
    for (let piece = 0; piece + 1 < batch.pieceRows.length; piece++) {
      if (isLong(piece)) this.#pieces.add(batch, piece, partTokens * relax);
    }
    return this.#writer.finish();
  }
}

function mostWordsOf({ pieceRows, pieceSegments }: Batch): number {
  let sum = 0;
  for (let piece = 0; piece + 1 < pieceRows.length; piece++) {
    const rowCount = pieceRows[piece + 1] - pieceRows[piece];
    sum += mostPieceWords(pieceSegments[piece + 1] - pieceSegments[piece], rowCount);
  }
  return sum;
}
