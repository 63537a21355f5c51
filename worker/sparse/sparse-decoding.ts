/**
 * Which rows of answers choose what they read, and whose seats and buffers that takes. A buffer is of ordinary blocks
 * without a key. They are taken while there is room, and nobody is preempted for one: when blocks are short, buffers are
 * given up before any request is. For a backend that reads chosen KV where it is kept there are no buffers. The device
 * alone knows what is chosen, so steps are begun ahead as ever.
 *
 * What a sparse row computes is approximate, so the KV of its token gets no key (engine/run.ts: exactTokens). After some
 * such tokens, and before others read the chain, their KV is computed anew by a dense piece that begins at the first.
 */
import type { Backend, SparseShape } from "../backend/backend.ts";
import type { BlockPool } from "../cache/block-pool.ts";
import type { PrefixCache } from "../cache/prefix-cache.ts";
import type { KvOwner } from "../contract/owners.ts";
import { looksBack, type SparseReport } from "../contract/sparse.ts";
import { type BlockId, blockCountForTokens } from "../contract/units.ts";
import { ownBlockCount, sparseCost } from "./cost.ts";
import type { SparsePiece, SparseRun, SparseState } from "./state.ts";

/** A request, as far as sparse decoding looks at it. */
export interface SparseRequest {
  readonly requestId: string;
  readonly runs: readonly SparseRun[];
  readonly owner: KvOwner;
  readonly sparse: SparseState | undefined;
  /** Tokens of its answer so far. */
  readonly generatedTokens: number;
}

export interface SparseLimits {
  /** Requests that have fewer tokens, prompt and answer, read all of them. */
  readonly fromTokens: number;
  /** The least of a row's own newest tokens that it reads whatever it chooses. */
  readonly tailTokens: number;
  /** After so many tokens it is asked again whether choosing is worth it. */
  readonly askTokens: number;
  /** Rows choose where they read less than this part of what a dense row adds to a step. */
  readonly mostCost: number;
}

export const defaultSparseLimits: SparseLimits = { fromTokens: 16_384, tailTokens: 64, askTokens: 64, mostCost: 0.8 };

export class SparseDecoding {
  readonly #backend: Backend;
  readonly #shape: SparseShape;
  readonly #pool: BlockPool;
  readonly #cache: PrefixCache;
  readonly #limits: SparseLimits;
  /** Numbers of seats that nobody has, the next to be taken at the end. */
  readonly #freeSeats: number[];

  constructor(
    backend: Backend,
    shape: SparseShape,
    pool: BlockPool,
    cache: PrefixCache,
    limits?: Partial<SparseLimits>,
  ) {
    this.#backend = backend;
    this.#shape = shape;
    this.#pool = pool;
    this.#cache = cache;
    this.#limits = { ...defaultSparseLimits, ...limits };
    this.#freeSeats = Array.from({ length: shape.seats }, (_, index) => shape.seats - 1 - index);
  }

  /**
   * How the newest token of a request is to be read by its row.
   * @param hasRoom whether so many blocks can be taken without taking them from anybody
   * @returns undefined: densely, and no seat is told of it
   */
  pieceOf(request: SparseRequest, run: SparseRun, hasRoom: (blockCount: number) => boolean): SparsePiece | undefined {
    const state = request.sparse;
    if (state === undefined) return undefined;
    const tailToken = this.#tailToken(run);
    if (!this.#isWorth(request, run, state, tailToken) || !this.#seat(request, state, hasRoom)) return state.watched();
    return { state, flags: state.flags, tailToken };
  }

  /**
   * How the end of a prompt is told of, whose request will decode next: where rows choose by earlier queries, a seat is
   * taken now, so that it has those of the prompt.
   */
  promptPieceOf(
    request: SparseRequest,
    run: SparseRun,
    hasRoom: (blockCount: number) => boolean,
  ): SparsePiece | undefined {
    const state = request.sparse;
    if (state === undefined || !looksBack(state.params.mode)) return undefined;
    const isSeated = this.#isWorth(request, run, state, this.#tailToken(run)) && this.#seat(request, state, hasRoom);
    return isSeated ? state.watched() : undefined;
  }

  /** How a piece of tokens that are computed anew is told of. */
  densePieceOf({ sparse }: SparseRequest): SparsePiece | undefined {
    return sparse?.watched();
  }

  /**
   * How many tokens of the open run are to be computed anew now, its newest with them; 0: none.
   * @param mostRows rows that a step has for it at most
   */
  rowsToRectify({ sparse }: SparseRequest, { tokenCount, begunExactTokens }: SparseRun, mostRows: number): number {
    const least = sparse?.params.rectifyTokens ?? 0;
    const rows = tokenCount - begunExactTokens;
    return least > 0 && rows >= Math.min(least, mostRows) ? rows : 0;
  }

  /** Gives up what the request has. No step in flight may hold it. */
  release({ sparse }: SparseRequest): void {
    if (sparse?.seat === undefined) return;
    this.#freeSeats.push(sparse.seat);
    const blocks = sparse.leave((seat) => this.#countsOf(seat));
    for (const blockId of blocks.toReversed()) this.#cache.release(blockId);
  }

  /** Gives up the buffer of the last of these requests that has one, and answers which; undefined: none has one. */
  releaseLast<R extends SparseRequest>(requests: readonly R[]): R | undefined {
    if (this.#shape.readsInPlace) return undefined;
    const holder = requests.findLast(({ sparse }) => sparse?.seat !== undefined);
    if (holder !== undefined) this.release(holder);
    return holder;
  }

  reportOf({ sparse, generatedTokens }: SparseRequest): SparseReport | undefined {
    return sparse?.report((seat) => this.#countsOf(seat), generatedTokens);
  }

  /** @throws Error when seats and buffers are not held by the requests that have them. For tests and for debugging. */
  assertSeats(requests: readonly SparseRequest[]): void {
    const held = requests.flatMap(({ sparse }) => (sparse?.seat === undefined ? [] : [sparse.seat]));
    const all = [...held, ...this.#freeSeats].sort((a, b) => a - b);
    const isRight = all.length === this.#shape.seats && all.every((seat, index) => seat === index);
    if (!isRight)
      throw new Error(`invariant broken: seats ${held.join()} are held, ${this.#freeSeats.join()} are free`);
    for (const { requestId, sparse } of requests) {
      const needed = sparse?.seat === undefined ? 0 : this.#bufferBlocks(sparse);
      const has = sparse?.buffer.length ?? 0;
      if (has !== needed) throw new Error(`invariant broken: ${requestId} has ${has} blocks of a buffer of ${needed}`);
    }
  }

  #countsOf(seat: number) {
    const counts = this.#backend.choiceCounts?.(seat);
    if (counts === undefined) throw new Error("the backend chooses, and counts nothing of it");
    return counts;
  }

  #bufferBlocks({ mostBufferTokens }: SparseState): number {
    if (this.#shape.readsInPlace) return 0;
    return blockCountForTokens(mostBufferTokens, this.#backend.shape.blockTokens);
  }

  /** Where the tail begins: at a block, and with `tailTokens` behind it where there are as many. */
  #tailToken({ tokenCount }: SparseRun): number {
    const { blockTokens } = this.#backend.shape;
    return Math.max(0, Math.floor((tokenCount - this.#limits.tailTokens) / blockTokens) * blockTokens);
  }

  #isWorth(request: SparseRequest, run: SparseRun, state: SparseState, tailToken: number): boolean {
    const { fromTokens, askTokens, mostCost } = this.#limits;
    const candidates = run.seenTokenCount + tailToken;
    if (candidates === 0 || run.seenTokenCount + run.tokenCount < fromTokens) return false;
    if (candidates > (this.#shape.mostCandidates ?? candidates)) return false;
    if (run.tokenCount < state.nextAskTokens) return state.isWorth;
    state.nextAskTokens = run.tokenCount + askTokens;
    const bufferTokens = state.bufferTokens(tailToken, run.seenTokenCount);
    const ownBlocks = ownBlockCount(
      request.runs.map(({ blocks }) => blocks),
      (blockId) => this.#pool.referenceCount(blockId),
    );
    const readTokens = bufferTokens + run.tokenCount - tailToken;
    state.isWorth = sparseCost({ ownBlocks, candidates, readTokens }, state.params, this.#backend.shape) < mostCost;
    return state.isWorth;
  }

  /** Whether the request has a seat and a buffer, or gets them now. Where there are none it asks again later. */
  #seat({ owner }: SparseRequest, state: SparseState, hasRoom: (blockCount: number) => boolean): boolean {
    if (state.seat !== undefined) return true;
    const blockCount = this.#bufferBlocks(state);
    const { listTokens, mostSegments = Number.POSITIVE_INFINITY } = this.#shape;
    // Its own tokens before the tail are a segment too.
    const fits = state.mostBufferTokens <= listTokens && state.forcedOfSegment.length < mostSegments;
    const isFree = this.#freeSeats.length > 0 && (blockCount === 0 || hasRoom(blockCount));
    const seat = fits && isFree ? this.#freeSeats.pop() : undefined;
    if (seat === undefined) {
      state.isWorth = false;
      return false;
    }
    const buffer: BlockId[] = [];
    while (buffer.length < blockCount) {
      const blockId = this.#cache.allocate(owner);
      if (blockId === undefined) throw new Error("no block is free although there was room");
      buffer.push(blockId);
    }
    state.sit(seat, buffer);
    return true;
  }
}
