/**
 * From the pieces of a step to the backend's struct of arrays. All arrays are views of scratch memory that
 * grows and is used again, so a batch is valid until the next `build`.
 */
import { IntList } from "../base/int-list.ts";
import type { Batch, TokenCopies } from "../contract/batch.ts";
import { blockCountForTokens } from "../contract/units.ts";
import { ChoiceBuilder } from "../sparse/choice-builder.ts";
import type { SparseState } from "../sparse/state.ts";
import type { Request } from "./request.ts";
import type { Run, SeenSegments } from "./run.ts";
import type { Piece } from "./step.ts";

/**
 * Tokens first .. first + count - 1 of a run of blocks of B tokens:
 *
 *   block first / B          ...          block (first + count - 1) / B
 *   [....[first % B ...      ...          ...]....]
 */
function seenSegments(run: Run, runs: readonly Run[], blockTokens: number): SeenSegments {
  const { sees } = run.plan;
  const blockStarts = new Int32Array(sees.length);
  const blockIds: number[] = [];
  sees.forEach((segment, index) => {
    blockStarts[index] = blockIds.length;
    const firstBlock = Math.floor(segment.firstToken / blockTokens);
    const endBlock = blockCountForTokens(segment.firstToken + segment.tokenCount, blockTokens);
    for (let i = firstBlock; i < endBlock; i++) blockIds.push(runs[segment.run].blocks[i]);
  });
  return {
    positions: Int32Array.from(sees, ({ run: seen, firstToken }) => firstToken + runs[seen].firstPosition),
    blockStarts,
    firstTokens: Int32Array.from(sees, (segment) => segment.firstToken % blockTokens),
    tokenCounts: Int32Array.from(sees, (segment) => segment.tokenCount),
    offsets: Int32Array.from(sees, (segment) => segment.offset + run.place - runs[segment.run].place),
    blockIds: Int32Array.from(blockIds),
  };
}

export class BatchBuilder {
  readonly #blockTokens: number;
  readonly #tokenIds = new IntList();
  readonly #positions = new IntList();
  readonly #slots = new IntList();
  readonly #pieceRows = new IntList();
  readonly #pieceSegments = new IntList();
  readonly #pieceGenerated = new IntList();
  readonly #segmentBlockStarts = new IntList();
  readonly #segmentFirstTokens = new IntList();
  readonly #segmentTokenCounts = new IntList();
  readonly #segmentOffsets = new IntList();
  readonly #segmentPositions = new IntList();
  readonly #blockIds = new IntList();
  readonly #logitRows = new IntList();
  readonly #all: readonly IntList[];
  readonly #choices: ChoiceBuilder;
  #listedRun: Run | undefined;
  #seenStart = 0;
  #ownStart = 0;

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
    this.#choices = new ChoiceBuilder(blockTokens);
    const rows = [this.#tokenIds, this.#positions, this.#slots, this.#logitRows];
    const pieces = [this.#pieceRows, this.#pieceSegments, this.#pieceGenerated, this.#blockIds];
    const segments = [
      this.#segmentBlockStarts,
      this.#segmentFirstTokens,
      this.#segmentTokenCounts,
      this.#segmentOffsets,
      this.#segmentPositions,
    ];
    this.#all = [...rows, ...pieces, ...segments];
  }

  /** @returns arrays that the next `build` writes over */
  build(pieces: readonly Piece[]): Batch {
    for (const list of this.#all) list.clear();
    this.#choices.clear();
    this.#listedRun = undefined;
    for (const piece of pieces) this.#addPiece(piece);
    this.#pieceRows.push(this.#tokenIds.length);
    this.#pieceSegments.push(this.#segmentOffsets.length);
    const choices = this.#choices.view();
    return {
      ...(choices && { choices }),
      tokenIds: this.#tokenIds.view(),
      positions: this.#positions.view(),
      slots: this.#slots.view(),
      pieceRows: this.#pieceRows.view(),
      pieceSegments: this.#pieceSegments.view(),
      pieceGenerated: this.#pieceGenerated.view(),
      segmentBlockStarts: this.#segmentBlockStarts.view(),
      segmentFirstTokens: this.#segmentFirstTokens.view(),
      segmentTokenCounts: this.#segmentTokenCounts.view(),
      segmentOffsets: this.#segmentOffsets.view(),
      segmentPositions: this.#segmentPositions.view(),
      blockIds: this.#blockIds.view(),
      logitRows: this.#logitRows.view(),
    };
  }

  /** After a preemption a piece may have both tokens of a prompt and generated ones: they are two then. */
  #addPiece(piece: Piece): void {
    const { run, firstToken, rowCount } = piece;
    const promptRows = run.promptTokens - firstToken;
    if (promptRows <= 0 || promptRows >= rowCount) return this.#addPart(piece, promptRows <= 0);
    this.#addPart({ ...piece, rowCount: promptRows, wantsLogits: false, sparse: undefined }, false);
    this.#addPart({ ...piece, firstToken: run.promptTokens, rowCount: rowCount - promptRows }, true);
  }

  #addPart({ request, run, firstToken, rowCount, wantsLogits, sparse }: Piece, isGenerated: boolean): void {
    if (sparse !== undefined) {
      run.seen ??= this.#seenBy(run, request);
      this.#choices.add(this.#pieceRows.length, sparse, run.seen, run.blocks);
    }
    this.#pieceRows.push(this.#tokenIds.length);
    this.#pieceSegments.push(this.#segmentOffsets.length);
    this.#pieceGenerated.push(isGenerated ? 1 : 0);
    const end = firstToken + rowCount;
    this.#addRows(run, firstToken, end);
    if (sparse?.tailToken === undefined) this.#addSegments(run, request, end);
    else this.#addChosen(run, sparse.state, sparse.tailToken, end);
    if (wantsLogits) this.#logitRows.push(this.#tokenIds.length - 1);
  }

  #addRows(run: Run, firstToken: number, end: number): void {
    for (let token = firstToken; token < end; token++) {
      this.#tokenIds.push(run.tokenIds[token]);
      this.#positions.push(run.firstPosition + token);
      this.#slots.push(run.slotOf(token));
    }
  }

  #addSegments(run: Run, request: Request, end: number): void {
    if (this.#listedRun !== run) this.#listBlocks(run, request);
    this.#addSeen(run);
    this.#addOwn(this.#ownStart, end, run.firstPosition);
  }

  /** The buffer where there is one, and the run's own tokens from the tail's first on. */
  #addChosen(run: Run, state: SparseState, tailToken: number, end: number): void {
    this.#listedRun = undefined;
    if (state.buffer.length > 0) {
      this.#addOwn(this.#blockIds.length, state.bufferTokens(tailToken, run.seenTokenCount), 0);
      this.#blockIds.appendList(state.buffer);
    }
    this.#addOwn(this.#blockIds.length, end - tailToken, run.firstPosition + tailToken);
    this.#blockIds.appendList(run.blocks.slice(tailToken / this.#blockTokens));
  }

  #seenBy(run: Run, request: Request): SeenSegments | undefined {
    return run.plan.sees.length > 0 ? seenSegments(run, request.runs, this.#blockTokens) : undefined;
  }

  /** Blocks of what the run sees, then its own: once for all of its pieces, which stand together. */
  #listBlocks(run: Run, request: Request): void {
    this.#listedRun = run;
    this.#seenStart = this.#blockIds.length;
    run.seen ??= this.#seenBy(run, request);
    if (run.seen !== undefined) this.#blockIds.append(run.seen.blockIds);
    this.#ownStart = this.#blockIds.length;
    this.#blockIds.appendList(run.blocks);
  }

  #addSeen({ seen }: Run): void {
    if (seen === undefined) return;
    for (const start of seen.blockStarts) this.#segmentBlockStarts.push(this.#seenStart + start);
    this.#segmentFirstTokens.append(seen.firstTokens);
    this.#segmentTokenCounts.append(seen.tokenCounts);
    this.#segmentOffsets.append(seen.offsets);
    this.#segmentPositions.append(seen.positions);
  }

  /** Tokens from a block's first on that stand where the row's own positions have them; the last of them may be a row's. */
  #addOwn(blockStart: number, tokenCount: number, position: number): void {
    this.#segmentBlockStarts.push(blockStart);
    this.#segmentFirstTokens.push(0);
    this.#segmentTokenCounts.push(tokenCount);
    this.#segmentOffsets.push(0);
    this.#segmentPositions.push(position);
  }
}

/** Slots of what these runs copy, without the tokens that were found under their keys. */
export function tokenCopies(runs: readonly { readonly request: Request; readonly run: Run }[]): TokenCopies {
  const sourceSlots: number[] = [];
  const targetSlots: number[] = [];
  const deltas: number[] = [];
  for (const { request, run } of runs) {
    for (const { run: index, firstToken, tokenCount, at } of run.plan.blend?.copies ?? []) {
      const source = request.runs[index];
      const delta = run.firstPosition + at - (source.firstPosition + firstToken);
      for (let i = Math.max(0, run.computedTokens - at); i < tokenCount; i++) {
        sourceSlots.push(source.slotOf(firstToken + i));
        targetSlots.push(run.slotOf(at + i));
        deltas.push(delta);
      }
    }
  }
  return {
    sourceSlots: Int32Array.from(sourceSlots),
    targetSlots: Int32Array.from(targetSlots),
    deltas: Int32Array.from(deltas),
  };
}
