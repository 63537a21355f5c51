/**
 * Relocation, the other way to have a span at any place of a prompt: K is stored rotated by absolute positions, of the
 * request that uses it, and moved when another request wants it elsewhere. All segments of a batch then have an offset
 * of 0, and q is rotated once, by its own position, as in kernels that know nothing of spans.
 *
 *   found where it is wanted     used as it is, beside whoever else uses it there
 *   found elsewhere, not in use  rotated in place
 *   found elsewhere, in use      copied: who uses it where it is goes on undisturbed
 *
 * Reference counts say which blocks are in use. A request takes its references before anything is decided, so nothing
 * moves under a reader, whatever is admitted in the same step. The price is a copy for each place in use at a time.
 */
import type { BackendShape } from "../backend/backend.ts";
import type { BlockPool } from "../cache/block-pool.ts";
import type { KvEventLog } from "../cache/kv-events.ts";
import type { PlanRun } from "../contract/messages.ts";
import type { BlockId } from "../contract/units.ts";
import type { BlockMove } from "./plan.ts";
import { RelocatingCache, type RelocatingCacheOptions } from "./relocating-cache.ts";

/** A run of a request, as far as relocation looks at it and changes it. */
export interface PlacedRun {
  /** Where the chain's position 0 stands in the positions that K is stored at. */
  readonly place: number;
  readonly blocks: BlockId[];
}

/** A request, as far as relocation looks at it. */
export interface PlacedRequest {
  readonly requestId: string;
  readonly runs: readonly PlacedRun[];
  /** undefined: its runs are only prepared, and nothing reads them. */
  readonly openRun: PlacedRun | undefined;
  readonly allRunsComplete: boolean;
  readonly decoding: boolean;
}

/** Where the content of a block comes from, until the step's moves run. */
interface Origin {
  readonly source: BlockId;
  readonly place: number;
  readonly moveCount: number;
}

/**
 * Where K stands in the pool: at its chain's positions (deferred), at those of who uses it (relocate), or there with a
 * copy for each place that stays in the cache as any block does, as published systems have it (duplicate): a key's
 * copies push other keys out, and how often a K is moved is not counted.
 */
export type KvPositions = "deferred" | "relocate" | "duplicate";

/** @returns undefined when K stays at its chain's positions */
export function relocationOf(
  positions: KvPositions,
  pool: BlockPool,
  shape: BackendShape,
  events: KvEventLog,
): Relocation | undefined {
  if (positions === "deferred") return undefined;
  const published = { keepsCopies: true, maxMoves: Number.POSITIVE_INFINITY };
  return new Relocation(pool, shape, events, positions === "duplicate" ? published : undefined);
}

export class Relocation {
  readonly cache: RelocatingCache;
  /** Blocks whose K was rotated in place, and blocks that were copied to be at two places. */
  movedBlocks = 0;
  copiedBlocks = 0;
  readonly #pool: BlockPool;
  readonly #contextTokens: number;
  readonly #origins = new Map<BlockId, Origin>();
  #moves: BlockMove[] = [];

  constructor(
    pool: BlockPool,
    { blockTokens, contextTokens }: BackendShape,
    events: KvEventLog,
    options?: RelocatingCacheOptions,
  ) {
    this.#pool = pool;
    this.#contextTokens = contextTokens;
    this.cache = new RelocatingCache(pool, blockTokens, events, options);
  }

  /** Cached blocks for each different content, on average. */
  copiesPerKey(): number {
    const keys = Array.from(this.cache.resident(), ([key]) => key);
    return keys.length === 0 ? 1 : keys.length / new Set(keys).size;
  }

  placesOf(runs: readonly PlanRun[]): Int32Array {
    return placesOf(runs, this.#contextTokens);
  }

  /** Whether the block serves this run beside those that use it, so that the run takes no free block. */
  isShared(blockId: BlockId, run: PlacedRun): boolean {
    return this.#pool.isLive(blockId) && this.cache.placeOf(blockId) === run.place;
  }

  /** The same of all runs of a request that is admitted. What is only prepared is not read, so it stays where it is. */
  settleAll({ runs, openRun, allRunsComplete }: PlacedRequest, found: readonly (readonly BlockId[])[]): void {
    if (openRun === undefined && allRunsComplete) return;
    for (const [index, run] of runs.entries()) this.settle(run, found[index].length);
  }

  /** Brings the blocks that the run adopted last, `count` of them, to where it stands; each has room reserved. */
  settle(run: PlacedRun, count: number): void {
    for (let index = run.blocks.length - count; index < run.blocks.length; index++) {
      const blockId = run.blocks[index];
      if (this.cache.placeOf(blockId) === run.place) continue;
      if (this.#pool.referenceCount(blockId) === 1) this.#rotate(blockId, run.place);
      else run.blocks[index] = this.#copy(blockId, run.place);
    }
  }

  /** Whether the next step may have moves, which take a step of their own: somebody looks for blocks. */
  mayMove(running: readonly PlacedRequest[], admissible: readonly PlacedRequest[]): boolean {
    return admissible.length > 0 || running.some((request) => !request.decoding);
  }

  /** Moves since the last call, to run at once before the step that was planned with them. */
  takeMoves(): BlockMove[] {
    const moves = this.#moves;
    this.#moves = [];
    this.#origins.clear();
    return moves;
  }

  /** @throws Error when a request that reads would read a block at another place than it is at. For tests. */
  assertPlaces(requests: readonly PlacedRequest[]): void {
    for (const { requestId, runs, openRun } of requests) {
      for (const { blocks, place } of openRun === undefined ? [] : runs) {
        const isAstray = (id: BlockId) => this.cache.keyOf(id) !== undefined && this.cache.placeOf(id) !== place;
        if (blocks.some(isAstray)) throw new Error(`invariant broken: ${requestId} has a block that stands elsewhere`);
      }
    }
  }

  #rotate(blockId: BlockId, place: number): void {
    const origin = this.#move(blockId, blockId, place);
    this.cache.move(blockId, place, origin.moveCount + 1);
    this.movedBlocks += 1;
  }

  #copy(source: BlockId, place: number): BlockId {
    const target = this.cache.allocate(this.#pool.shares.ownerOf(source));
    if (target === undefined) throw new Error("no block is free although one was reserved");
    const origin = this.#move(source, target, place);
    this.cache.copy(source, target, place, origin.moveCount + 1);
    this.cache.release(source);
    this.copiedBlocks += 1;
    return target;
  }

  /** All moves of a step read what was there before the step, so a block that is moved itself is read at its origin. */
  #move(blockId: BlockId, target: BlockId, place: number): Origin {
    const { cache } = this;
    const found = this.#origins.get(blockId);
    const origin = found ?? { source: blockId, place: cache.placeOf(blockId), moveCount: cache.moveCountOf(blockId) };
    const tokenCount = cache.tokenCountOf(blockId);
    this.#moves.push({ source: origin.source, target, tokenCount, delta: place - origin.place });
    this.#origins.set(target, origin);
    return origin;
  }
}

/**
 * Where each run's chain stands in the positions of the plan's last run: [runs] the position of its position 0. Seen by
 * several at different places it stands where the last of them sees it, and the others read it with what is left as
 * the segment's offset (a preamble under several branches; a fragment shown twice in one run). So it is for what would
 * stand outside of the context: tokens of a chain that the last run does not show.
 */
export function placesOf(runs: readonly PlanRun[], contextTokens: number): Int32Array {
  const places: (number | undefined)[] = runs.map(() => undefined);
  for (let index = runs.length - 1; index >= 0; index--) {
    const place = places[index] ?? 0;
    places[index] = place;
    for (const { run, offset } of runs[index].sees) {
      if (places[run] === undefined && fits(runs[run], place + offset, contextTokens)) places[run] = place + offset;
    }
  }
  const settled = Int32Array.from(places, (place) => place ?? 0);
  const isReadable = runs.every(({ sees }, index) =>
    sees.every(({ run, offset }) => Math.abs(offset + settled[index] - settled[run]) < contextTokens),
  );
  return isReadable ? settled : settled.fill(0);
}

function fits({ position, tokenIds }: PlanRun, place: number, contextTokens: number): boolean {
  return position + place >= 0 && position + place + tokenIds.length <= contextTokens;
}
