/**
 * Moves of KV blocks, as launches that are safe in place. All moves of a step together are one parallel assignment:
 *
 *   content(target) := content(source) as it was before any move, its K rotated on by `delta` positions
 *
 * Many moves may read a block, one move writes it, and a block may be both read and written. A move has to run before
 * the one that overwrites what it reads. It reads one block, so at most one other move waits for it: the graph is a
 * forest. There are no cycles, because a block that is copied is in use where it stands, and nothing overwrites it in
 * that step.
 *
 *   copies        B <- A, C <- A, then A <- A, rotated in place
 *   a chain       A <- B, then B <- C
 *
 * A launch is a set of moves of which none waits for another. Launches are filled with the moves that the longest
 * chains wait for first (T. C. Hu, "Parallel sequencing and assembly line problems", 1961): when all moves are of one
 * size, there cannot be fewer launches.
 */
import type { TokenCopies } from "../contract/batch.ts";
import type { BlockId } from "../contract/units.ts";

export interface BlockMove {
  readonly source: BlockId;
  /** The source itself when K is rotated in place. */
  readonly target: BlockId;
  /** Tokens that the block holds, from its first slot on. */
  readonly tokenCount: number;
  /** Positions that the tokens stand later at their target. */
  readonly delta: number;
}

interface Step {
  readonly move: BlockMove;
  /** How many moves have to be done before it. */
  pending: number;
  /** The move that waits for it. */
  next: Step | undefined;
  /** Moves of the longest chain that begins with this one. */
  height: number;
}

/**
 * @param launchTokens tokens of one launch at most
 * @throws RangeError when two moves write one block, a move is too large for a launch, or moves wait for each other
 */
export function planRelocation(moves: readonly BlockMove[], launchTokens: number): BlockMove[][] {
  const wanted = moves.filter(({ source, target, delta }) => source !== target || delta !== 0);
  assertMoves(wanted, launchTokens);
  const steps = wanted.map((move): Step => ({ move, pending: 0, next: undefined, height: 0 }));
  const writers = new Map(steps.map((step) => [step.move.target, step]));
  for (const step of steps) {
    const writer = writers.get(step.move.source);
    if (writer === undefined || writer === step) continue;
    step.next = writer;
    writer.pending += 1;
  }
  measureHeights(steps);
  return fillLaunches(steps, launchTokens);
}

/** One launch as the backend takes it. */
export function launchCopies(launch: readonly BlockMove[], blockTokens: number): TokenCopies {
  const count = launch.reduce((sum, { tokenCount }) => sum + tokenCount, 0);
  const copies = {
    sourceSlots: new Int32Array(count),
    targetSlots: new Int32Array(count),
    deltas: new Int32Array(count),
  };
  let at = 0;
  for (const { source, target, tokenCount, delta } of launch) {
    for (let token = 0; token < tokenCount; token++, at++) {
      copies.sourceSlots[at] = source * blockTokens + token;
      copies.targetSlots[at] = target * blockTokens + token;
      copies.deltas[at] = delta;
    }
  }
  return copies;
}

function assertMoves(moves: readonly BlockMove[], launchTokens: number): void {
  const targets = new Set<BlockId>();
  for (const { target, tokenCount } of moves) {
    if (targets.has(target)) throw new RangeError(`block ${target} is moved to twice`);
    if (!(tokenCount <= launchTokens)) throw new RangeError(`a move of ${tokenCount} tokens exceeds a launch`);
    targets.add(target);
  }
}

function measureHeights(steps: readonly Step[]): void {
  for (const step of steps) {
    const chain: Step[] = [];
    for (let at: Step | undefined = step; at !== undefined && at.height === 0; at = at.next) {
      if (chain.length > steps.length) throw new RangeError("moves wait for each other");
      chain.push(at);
    }
    for (const at of chain.reverse()) at.height = 1 + (at.next?.height ?? 0);
  }
}

function fillLaunches(steps: readonly Step[], launchTokens: number): BlockMove[][] {
  const launches: BlockMove[][] = [];
  let ready = steps.filter((step) => step.pending === 0);
  while (ready.length > 0) {
    ready.sort((a, b) => b.height - a.height);
    let room = launchTokens;
    const launch: Step[] = [];
    const later: Step[] = [];
    for (const step of ready) {
      const fits = step.move.tokenCount <= room;
      if (fits) room -= step.move.tokenCount;
      (fits ? launch : later).push(step);
    }
    launches.push(launch.map(({ move }) => move));
    for (const { next } of launch) {
      if (next === undefined) continue;
      next.pending -= 1;
      if (next.pending === 0) later.push(next);
    }
    ready = later;
  }
  return launches;
}
