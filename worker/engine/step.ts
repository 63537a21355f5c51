/** What a step is made of: pieces for all layers, probes and copies of blended runs (blend/blending.ts). */
import type { BlockKey } from "../contract/units.ts";
import type { BlockMove } from "../relocation/plan.ts";
import type { SparsePiece } from "../sparse/state.ts";
import type { Request } from "./request.ts";
import type { Run } from "./run.ts";
import { ListBudget } from "./step-budget.ts";

/** Consecutive tokens of a run, computed in one step. */
export interface Piece {
  readonly request: Request;
  readonly run: Run;
  readonly firstToken: number;
  readonly rowCount: number;
  /** The piece ends with the open run's last token. */
  readonly wantsLogits: boolean;
  /** What is told of it where its request may choose what its rows read. */
  readonly sparse?: SparsePiece | undefined;
}

export interface StepPlan {
  /** Rows through all layers: tokens that runs lack, in their order; of blended runs those computed again. */
  readonly pieces: readonly Piece[];
  /** Blocks that are moved to where runs stand, before all else (relocation.ts). */
  readonly moves: readonly BlockMove[];
  /** Blended runs that begin. Their tokens are copied before anything is computed. */
  readonly copies: readonly { readonly request: Request; readonly run: Run }[];
  /** Rows through the first layer only, to find which copied tokens deviate. */
  readonly probes: readonly Piece[];
  /** Requests that even the whole pool cannot hold any more: they end now. */
  readonly outgrown: readonly Request[];
  /** Keys of blocks that the step computes. */
  readonly claimed: ReadonlySet<BlockKey>;
}

/** Whether the step computes nothing and ends no request. */
export function isEmpty({ pieces, copies, probes, moves, outgrown }: StepPlan): boolean {
  return pieces.length + copies.length + probes.length + moves.length + outgrown.length === 0;
}

/** Rows through all layers. */
export const rowCount = ({ pieces }: StepPlan): number => pieces.reduce((sum, piece) => sum + piece.rowCount, 0);

/** How much fits into a step. */
export interface StepSizes {
  readonly stepTokens: number;
  /** Words of its lists (step-budget.ts). */
  readonly listWords: number;
}

/** A step while it is planned. */
export class StepDraft {
  /** One piece a run, a run after those it sees. */
  readonly pieces = new Map<Run, Piece>();
  readonly copies: { request: Request; run: Run }[] = [];
  readonly probes = new Map<Run, Piece>();
  /** How many more of a blended run's selected tokens this step computes. */
  readonly recomputed = new Map<Run, { request: Request; rowCount: number }>();
  readonly outgrown: Request[] = [];
  /** Keys of blocks that are computed in this step, or by a run that is being blended. */
  readonly claimed = new Set<BlockKey>();
  readonly #claimedBefore: ReadonlySet<BlockKey> | undefined;
  readonly #isComing: (key: BlockKey) => boolean;
  /**
   * Prefill rows left, in rows without context (`rowCost`). A probe runs one layer and not all, so probes have rows and
   * lists of their own.
   */
  budget = 0;
  /** Rows of tokens that are computed anew, beside the newest of each answer. */
  rectifiedRows = 0;
  /** Rows of a prompt are in the step. */
  hasPrompts = false;
  /** Tokens of context that count as one more row (EngineLimits); Infinity: a row is a row. */
  rowCostTokens = Number.POSITIVE_INFINITY;
  #probeBudget: number;
  readonly listBudget: ListBudget;
  readonly #probeListBudget: ListBudget;

  /**
   * @param claimedBefore keys that the step before this one claims, when it is still in flight
   * @param isComing whether the block of a key is being loaded
   */
  constructor(
    { stepTokens, listWords }: StepSizes,
    claimedBefore?: ReadonlySet<BlockKey>,
    isComing: (key: BlockKey) => boolean = () => false,
  ) {
    this.#isComing = isComing;
    this.#probeBudget = stepTokens;
    this.listBudget = new ListBudget(listWords);
    this.#probeListBudget = new ListBudget(listWords);
    this.#claimedBefore = claimedBefore;
  }

  /** A request that decodes computes its newest token. */
  addDecode(request: Request, run: Run, sparse?: SparsePiece): void {
    this.listBudget.take(run, 1);
    this.pieces.set(run, { request, run, firstToken: run.computedTokens, rowCount: 1, wantsLogits: true, sparse });
  }

  /**
   * It computes tokens whose KV is approximate anew, as many as there are rows for: the newest with them if that is all.
   * @param rows of the step that are left for it
   */
  addRectified(request: Request, run: Run, rows: number, sparse?: SparsePiece): void {
    const firstToken = run.begunExactTokens;
    const missing = run.tokenCount - firstToken;
    const rowCount = Math.max(1, this.listBudget.rowsFor(run, Math.min(missing, rows)));
    this.listBudget.take(run, rowCount);
    this.rectifiedRows += rowCount - 1;
    const wantsLogits = rowCount === missing;
    // A seat has room for the newest queries alone.
    const told = wantsLogits ? sparse : undefined;
    this.pieces.set(run, { request, run, firstToken, rowCount, wantsLogits, sparse: told });
  }

  /** The request has lost its blocks. */
  dropDecode({ openRun }: Request): void {
    const piece = openRun && this.pieces.get(openRun);
    if (piece === undefined) return;
    this.listBudget.giveBack(piece.run, piece.rowCount);
    this.pieces.delete(piece.run);
  }

  /** What is told of the run's piece; undefined: nothing, as its request has lost what its row would choose with. */
  tell(run: Run | undefined, sparse: SparsePiece | undefined): void {
    const piece = run && this.pieces.get(run);
    if (piece !== undefined) this.pieces.set(piece.run, { ...piece, sparse });
  }

  /** The run's piece has `rowCount` rows more. */
  addRows(request: Request, run: Run, rowCount: number): void {
    const { firstToken, rowCount: before } = this.pieces.get(run) ?? { firstToken: run.computedTokens, rowCount: 0 };
    const wantsLogits = run.open && firstToken + before + rowCount === run.tokenCount;
    this.pieces.set(run, { request, run, firstToken, rowCount: before + rowCount, wantsLogits });
    this.listBudget.take(run, rowCount, before);
    this.budget -= rowCount * this.rowCost(run);
    this.hasPrompts = true;
  }

  /** The step before this one is still in flight. */
  get isAhead(): boolean {
    return this.#claimedBefore !== undefined;
  }

  get isEmpty(): boolean {
    return this.pieces.size + this.copies.length + this.probes.size + this.recomputed.size + this.outgrown.length === 0;
  }

  /** What a row of the run costs, measured in rows that read no context. */
  rowCost(run: Run): number {
    return 1 + (run.seenTokenCount + run.computedTokens) / this.rowCostTokens;
  }

  /** All rows of a request, as `rowCost` counts. */
  workOf({ runs }: Request): number {
    return runs.reduce((sum, run) => sum + (this.pieces.get(run)?.rowCount ?? 0) * this.rowCost(run), 0);
  }

  /** Up to `rowCount` more of the tokens of a blended run that are computed again. @returns how many */
  addRecomputed(request: Request, run: Run, rowCount: number): number {
    const before = this.recomputed.get(run)?.rowCount ?? 0;
    const rows = this.listBudget.rowsFor(run, rowCount - before, before, "scattered");
    if (rows === 0) return 0;
    this.recomputed.set(run, { request, rowCount: before + rows });
    this.listBudget.take(run, rows, before, "scattered");
    this.budget -= rows;
    this.hasPrompts = true;
    return rows;
  }

  /** Adds up to `rowCount` probes of a blended run, as far as they fit. */
  addProbes(request: Request, run: Run, firstToken: number, rowCount: number): void {
    const before = this.probes.get(run)?.rowCount ?? 0;
    const more = this.#probeListBudget.rowsFor(run, Math.min(rowCount - before, this.#probeBudget), before);
    if (more <= 0) return;
    this.probes.set(run, { request, run, firstToken, rowCount: before + more, wantsLogits: false });
    this.#probeListBudget.take(run, more, before);
    this.#probeBudget -= more;
  }

  /** Whether the block is computed in this step, or in the one that is still in flight, or is being loaded. */
  isClaimed(key: BlockKey): boolean {
    return this.claimed.has(key) || this.#claimedBefore?.has(key) === true || this.#isComing(key);
  }

  /** @param moves blocks to move before all else */
  plan(moves: readonly BlockMove[] = []): StepPlan {
    const blended = Array.from(this.recomputed, ([run, { request, rowCount }]) =>
      (run.blending?.nextStretches(rowCount) ?? []).map((stretch) => ({
        request,
        run,
        ...stretch,
        wantsLogits: false,
      })),
    );
    return {
      pieces: [...this.pieces.values(), ...blended.flat()],
      moves,
      copies: this.copies,
      probes: [...this.probes.values()],
      outgrown: this.outgrown,
      claimed: this.claimed,
    };
  }

  /** The run's KV is there when this step is done. A blended run is found complete a step later. */
  covers(run: Run): boolean {
    return run.computedTokens + (this.pieces.get(run)?.rowCount ?? 0) === run.tokenCount;
  }

  /**
   * A run needs the KV of all it sees, which may come about in the same step: a backend writes a layer's K and V
   * of all rows before it attends. What is copied must be there before the step. The open run goes last, so that
   * a decoding request has no other work.
   */
  mayCompute(run: Run, request: Request): boolean {
    if (run.open) return request.runs.every((other) => other === run || this.covers(other));
    const { sees, blend } = run.plan;
    if (blend === undefined) return sees.every((segment) => this.covers(request.runs[segment.run]));
    return [...sees, ...blend.copies].every((needed) => request.runs[needed.run].complete);
  }
}
