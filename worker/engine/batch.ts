/**
 * From the pieces of a step to the backend's struct of arrays. All arrays are views of scratch memory that
 * grows and is used again, so a batch is valid until the next `build`.
 */
import type { Batch } from "../backend/backend.ts";
import { blockCountForTokens } from "../contract/units.ts";
import type { Request } from "./request.ts";
import type { Run } from "./run.ts";
import type { Piece } from "./step.ts";

/** The segments of `PlanRun.sees` in blocks: fixed once the runs seen are complete, so built once a run. */
export interface SeenSegments {
  /** [S] where a segment's blocks begin in blockIds. */
  readonly blockStarts: Int32Array;
  readonly firstTokens: Int32Array;
  readonly tokenCounts: Int32Array;
  readonly offsets: Int32Array;
  readonly blockIds: Int32Array;
}

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
    blockStarts,
    firstTokens: Int32Array.from(sees, (segment) => segment.firstToken % blockTokens),
    tokenCounts: Int32Array.from(sees, (segment) => segment.tokenCount),
    offsets: Int32Array.from(sees, (segment) => segment.offset + run.place - runs[segment.run].place),
    blockIds: Int32Array.from(blockIds),
  };
}

export class BatchBuilder {
  private readonly blockTokens: number;
  private readonly tokenIds = new Scratch();
  private readonly positions = new Scratch();
  private readonly slots = new Scratch();
  private readonly pieceRows = new Scratch();
  private readonly pieceSegments = new Scratch();
  private readonly segmentBlockStarts = new Scratch();
  private readonly segmentFirstTokens = new Scratch();
  private readonly segmentTokenCounts = new Scratch();
  private readonly segmentOffsets = new Scratch();
  private readonly blockIds = new Scratch();
  private readonly logitRows = new Scratch();
  private readonly all: readonly Scratch[];
  private listedRun: Run | undefined;
  private seenStart = 0;
  private ownStart = 0;

  constructor(blockTokens: number) {
    this.blockTokens = blockTokens;
    this.all = Object.values(this).filter((field) => field instanceof Scratch);
  }

  /** @returns arrays that the next `build` writes over */
  build(pieces: readonly Piece[]): Batch {
    for (const scratch of this.all) scratch.clear();
    this.listedRun = undefined;
    for (const piece of pieces) this.addPiece(piece);
    this.pieceRows.push(this.tokenIds.length);
    this.pieceSegments.push(this.segmentOffsets.length);
    return {
      tokenIds: this.tokenIds.view(),
      positions: this.positions.view(),
      slots: this.slots.view(),
      pieceRows: this.pieceRows.view(),
      pieceSegments: this.pieceSegments.view(),
      segmentBlockStarts: this.segmentBlockStarts.view(),
      segmentFirstTokens: this.segmentFirstTokens.view(),
      segmentTokenCounts: this.segmentTokenCounts.view(),
      segmentOffsets: this.segmentOffsets.view(),
      blockIds: this.blockIds.view(),
      logitRows: this.logitRows.view(),
    };
  }

  private addPiece({ request, run, firstToken, rowCount, wantsLogits }: Piece): void {
    this.pieceRows.push(this.tokenIds.length);
    this.pieceSegments.push(this.segmentOffsets.length);
    const end = firstToken + rowCount;
    this.addRows(run, firstToken, end);
    if (this.listedRun !== run) this.listBlocks(run, request);
    this.addSeen(run);
    this.addOwn(end);
    if (wantsLogits) this.logitRows.push(this.tokenIds.length - 1);
  }

  private addRows(run: Run, firstToken: number, end: number): void {
    for (let token = firstToken; token < end; token++) {
      this.tokenIds.push(run.tokenIds[token]);
      this.positions.push(run.plan.position + run.place + token);
      this.slots.push(run.slotOf(token));
    }
  }

  /** Blocks of what the run sees, then its own: once for all of its pieces, which stand together. */
  private listBlocks(run: Run, request: Request): void {
    this.listedRun = run;
    this.seenStart = this.blockIds.length;
    if (run.plan.sees.length > 0) {
      run.seen ??= seenSegments(run, request.runs, this.blockTokens);
      this.blockIds.append(run.seen.blockIds);
    }
    this.ownStart = this.blockIds.length;
    this.blockIds.appendList(run.blocks);
  }

  private addSeen({ seen }: Run): void {
    if (seen === undefined) return;
    for (const start of seen.blockStarts) this.segmentBlockStarts.push(this.seenStart + start);
    this.segmentFirstTokens.append(seen.firstTokens);
    this.segmentTokenCounts.append(seen.tokenCounts);
    this.segmentOffsets.append(seen.offsets);
  }

  /** The run itself up to the piece's last row, in its own positions. */
  private addOwn(end: number): void {
    this.segmentBlockStarts.push(this.ownStart);
    this.segmentFirstTokens.push(0);
    this.segmentTokenCounts.push(end);
    this.segmentOffsets.push(0);
  }
}

/** An Int32Array that grows and keeps its memory. */
class Scratch {
  private memory = new Int32Array(64);
  private count = 0;

  get length(): number {
    return this.count;
  }

  clear(): void {
    this.count = 0;
  }

  push(value: number): void {
    if (this.count === this.memory.length) this.reserve(1);
    this.memory[this.count] = value;
    this.count += 1;
  }

  append(values: Int32Array): void {
    this.reserve(values.length);
    this.memory.set(values, this.count);
    this.count += values.length;
  }

  /** A loop, since TypedArray.set of a plain array is several times slower. */
  appendList(values: readonly number[]): void {
    this.reserve(values.length);
    for (let i = 0; i < values.length; i++) this.memory[this.count + i] = values[i];
    this.count += values.length;
  }

  view(): Int32Array {
    return this.memory.subarray(0, this.count);
  }

  private reserve(extra: number): void {
    if (this.count + extra <= this.memory.length) return;
    const grown = new Int32Array(Math.max(this.count + extra, 2 * this.memory.length));
    grown.set(this.memory);
    this.memory = grown;
  }
}
