/** What one request has of sparse decoding, and what has come of it. */
import type { PlanRun } from "../contract/messages.ts";
import {
  type ChoiceCounts,
  choiceFlags,
  forcedTokens,
  looksBack,
  type SparseParams,
  type SparseReport,
  sparseDefaults,
} from "../contract/sparse.ts";
import type { BlockId } from "../contract/units.ts";

/** A run, as far as sparse decoding looks at it (engine/run.ts). */
export interface SparseRun {
  readonly plan: PlanRun;
  readonly blocks: readonly BlockId[];
  readonly tokenCount: number;
  readonly seenTokenCount: number;
  /** Tokens whose KV is that of rows that read all they saw, or will be when the steps in flight are done. */
  readonly begunExactTokens: number;
}

/** What rows of a piece read. */
export interface SparsePiece {
  readonly state: SparseState;
  readonly flags: number;
  /** The row chooses from all before this token of its own run, which begins a block; undefined: it reads all. */
  readonly tailToken: number | undefined;
}

const noCounts: ChoiceCounts = { lists: 0, chosen: 0, chosenAgain: 0, changed: 0, mass: 0, overlap: 0, measured: 0 };

export const addCounts = (a: ChoiceCounts, b: ChoiceCounts): ChoiceCounts => ({
  lists: a.lists + b.lists,
  chosen: a.chosen + b.chosen,
  chosenAgain: a.chosenAgain + b.chosenAgain,
  changed: a.changed + b.changed,
  mass: a.mass + b.mass,
  overlap: a.overlap + b.overlap,
  measured: a.measured + b.measured,
});

export class SparseState {
  readonly params: Required<SparseParams>;
  /** The most tokens that the request can come to, prompt and answer. */
  readonly mostTokens: number;
  /** Of the segments that the open run sees, in their order, how many of the first tokens are forced. */
  readonly forcedOfSegment: readonly number[];
  /** The seat, and the blocks that chosen KV is copied to: both or neither. Where KV is read in place, the seat alone. */
  seat: number | undefined;
  buffer: readonly BlockId[] = [];
  /** Whether sparse rows read less than dense ones would, as it was found last; asked again from this many own tokens on. */
  isWorth = false;
  nextAskTokens = 0;
  /** Tokens whose KV was computed anew, whatever for. */
  rectifiedTokens = 0;
  /** Flags of the next piece that the seat is told of. */
  #flags = 0;
  /** Own tokens that the newest row chose from. */
  #tailToken = 0;
  #steps = 0;
  /** Of seats that were given back. */
  #counts = noCounts;

  constructor(params: SparseParams, runs: readonly PlanRun[], maxTokens: number) {
    const { refreshSteps, leastCosine, rectifyTokens } = sparseDefaults;
    this.params = {
      mode: params.mode,
      tokens: params.tokens,
      refreshSteps: params.refreshSteps ?? refreshSteps,
      leastCosine: params.leastCosine ?? leastCosine,
      rectifyTokens: params.rectifyTokens ?? rectifyTokens,
    };
    const open = runs[runs.length - 1];
    this.forcedOfSegment = open.sees.map(({ run, tokenCount }, index) => {
      const most = index === 0 ? forcedTokens.prompt : runs[run].kind === "span" ? forcedTokens.span : 0;
      return Math.min(most, tokenCount);
    });
    this.mostTokens = open.sees.reduce((sum, { tokenCount }) => sum + tokenCount, open.tokenIds.length + maxTokens);
  }

  /** Of the own run's first tokens: they are forced where nothing stands before them. */
  forcedOwn(tailToken: number): number {
    return this.forcedOfSegment.length === 0 ? Math.min(forcedTokens.prompt, tailToken) : 0;
  }

  /** Forced and chosen tokens of a row that has so many before its tail. */
  bufferTokens(tailToken: number, seenTokens: number): number {
    const forced = this.forcedOfSegment.reduce((sum, count) => sum + count, this.forcedOwn(tailToken));
    return forced + Math.min(this.params.tokens, seenTokens + tailToken - forced);
  }

  /** The most tokens that the buffer comes to hold. */
  get mostBufferTokens(): number {
    const forced = this.forcedOfSegment.reduce((sum, count) => sum + count, this.forcedOwn(forcedTokens.prompt));
    return Math.min(forced + this.params.tokens, this.mostTokens);
  }

  /** What is told of the seat's next piece. */
  get flags(): number {
    return this.#flags;
  }

  /** A piece that reads all it sees: the seat is told of its queries where later rows choose by them. */
  watched(): SparsePiece | undefined {
    if (this.seat === undefined || !looksBack(this.params.mode)) return undefined;
    const flags = (this.#flags & choiceFlags.fresh) | choiceFlags.watch;
    return { state: this, flags, tailToken: undefined };
  }

  /** Takes a seat and blocks. */
  sit(seat: number, buffer: readonly BlockId[]): void {
    this.seat = seat;
    this.buffer = buffer;
    this.#flags = choiceFlags.fresh;
  }

  /** A step with this piece has begun, from this token of the own run on. */
  begin(piece: SparsePiece | undefined, firstToken: number): void {
    if (piece?.tailToken !== undefined) {
      this.#flags = 0;
      this.#tailToken = piece.tailToken;
      return;
    }
    // Nothing was chosen for it yet.
    if (piece !== undefined && (this.#flags & choiceFlags.fresh) !== 0) this.#flags = choiceFlags.stale;
    // Tokens that may have been chosen are computed anew: what was copied of them is not their KV any more.
    if (firstToken < this.#tailToken) this.#flags |= choiceFlags.stale;
  }

  /** A step with this piece is done, and its rows are the request's. @param again rows whose tokens had KV before */
  settle(piece: SparsePiece | undefined, again: number): void {
    if (piece?.tailToken !== undefined) this.#steps += 1;
    this.rectifiedTokens += again;
  }

  /** Gives the seat and its blocks up. @param counts of the seat since it was taken */
  leave(counts: (seat: number) => ChoiceCounts): readonly BlockId[] {
    const { buffer } = this;
    this.#counts = this.#countsWith(counts);
    this.seat = undefined;
    this.buffer = [];
    this.isWorth = false;
    this.#flags = 0;
    this.#tailToken = 0;
    return buffer;
  }

  /** @param drawnTokens of the answer */
  report(counts: (seat: number) => ChoiceCounts, drawnTokens: number): SparseReport {
    const { mode, tokens } = this.params;
    const steps = this.#steps;
    const denseSteps = Math.max(0, drawnTokens - steps);
    return {
      ...{ mode, tokens, steps, denseSteps, rectifiedTokens: this.rectifiedTokens },
      ...this.#countsWith(counts),
    };
  }

  /** A seat that no step has used has the counts of whoever had it before. */
  #countsWith(counts: (seat: number) => ChoiceCounts): ChoiceCounts {
    const isUnused = this.seat === undefined || (this.#flags & choiceFlags.fresh) !== 0;
    return isUnused ? this.#counts : addCounts(this.#counts, counts(this.seat as number));
  }
}
