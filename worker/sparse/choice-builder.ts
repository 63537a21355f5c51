/** The arrays that say what rows choose from (contract/batch.ts). All are views of memory that is used again. */
import { IntList } from "../base/int-list.ts";
import type { Choices } from "../contract/batch.ts";
import { choiceModes } from "../contract/sparse.ts";
import { type BlockId, blockCountForTokens } from "../contract/units.ts";
import type { SparsePiece } from "./state.ts";

/** The segments that an open run sees, in blocks (engine/run.ts). */
export interface SeenBlocks {
  readonly blockStarts: Int32Array;
  readonly firstTokens: Int32Array;
  readonly tokenCounts: Int32Array;
  readonly offsets: Int32Array;
  readonly blockIds: Int32Array;
}

export class ChoiceBuilder {
  readonly #blockTokens: number;
  readonly #pieces = new IntList(16);
  readonly #seats = new IntList(16);
  readonly #flags = new IntList(16);
  readonly #modes = new IntList(16);
  readonly #tokens = new IntList(16);
  readonly #refreshSteps = new IntList(16);
  readonly #leastCosines: number[] = [];
  readonly #segments = new IntList(16);
  readonly #blockStarts = new IntList(16);
  readonly #firstTokens = new IntList(16);
  readonly #tokenCounts = new IntList(16);
  readonly #offsets = new IntList(16);
  readonly #forced = new IntList(16);
  readonly #blockIds = new IntList(16);

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
  }

  clear(): void {
    const entries = [this.#pieces, this.#seats, this.#flags, this.#modes, this.#tokens, this.#refreshSteps];
    const segments = [this.#segments, this.#blockStarts, this.#firstTokens, this.#tokenCounts, this.#offsets];
    for (const list of [...entries, ...segments, this.#forced, this.#blockIds]) list.clear();
    this.#leastCosines.length = 0;
  }

  /**
   * @param piece its index in the batch
   * @param seen undefined: the run sees nothing but itself
   * @param blocks the run's own
   */
  add(piece: number, choice: SparsePiece, seen: SeenBlocks | undefined, blocks: readonly BlockId[]): void {
    const { state, flags, tailToken } = choice;
    if (state.seat === undefined) throw new Error("a piece without a seat chooses");
    this.#pieces.push(piece);
    this.#seats.push(state.seat);
    this.#flags.push(flags);
    this.#modes.push(choiceModes.indexOf(state.params.mode));
    this.#tokens.push(tailToken === undefined ? 0 : state.params.tokens);
    this.#refreshSteps.push(state.params.refreshSteps);
    this.#leastCosines.push(state.params.leastCosine);
    this.#segments.push(this.#tokenCounts.length);
    if (tailToken === undefined) return;
    if (seen !== undefined) this.#addSeen(seen, state.forcedOfSegment);
    if (tailToken > 0) this.#addOwn(blocks, tailToken, state.forcedOwn(tailToken));
  }

  /** @returns undefined: nothing chooses */
  view(): Choices | undefined {
    if (this.#pieces.length === 0) return undefined;
    this.#segments.push(this.#tokenCounts.length);
    return {
      pieces: this.#pieces.view(),
      seats: this.#seats.view(),
      flags: this.#flags.view(),
      modes: this.#modes.view(),
      tokens: this.#tokens.view(),
      refreshSteps: this.#refreshSteps.view(),
      leastCosines: Float32Array.from(this.#leastCosines),
      segments: this.#segments.view(),
      segmentBlockStarts: this.#blockStarts.view(),
      segmentFirstTokens: this.#firstTokens.view(),
      segmentTokenCounts: this.#tokenCounts.view(),
      segmentOffsets: this.#offsets.view(),
      segmentForced: this.#forced.view(),
      blockIds: this.#blockIds.view(),
    };
  }

  #addSeen(seen: SeenBlocks, forced: readonly number[]): void {
    for (const start of seen.blockStarts) this.#blockStarts.push(this.#blockIds.length + start);
    this.#firstTokens.append(seen.firstTokens);
    this.#tokenCounts.append(seen.tokenCounts);
    this.#offsets.append(seen.offsets);
    for (const count of forced) this.#forced.push(count);
    this.#blockIds.append(seen.blockIds);
  }

  #addOwn(blocks: readonly BlockId[], tailToken: number, forced: number): void {
    this.#blockStarts.push(this.#blockIds.length);
    this.#firstTokens.push(0);
    this.#tokenCounts.push(tailToken);
    this.#offsets.push(0);
    this.#forced.push(forced);
    const count = blockCountForTokens(tailToken, this.#blockTokens);
    for (let index = 0; index < count; index++) this.#blockIds.push(blocks[index]);
  }
}
