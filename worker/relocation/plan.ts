/**
 * Moves of KV blocks, as launches that are safe in place. All moves together are one parallel assignment:
 *
 *   content(target) := content(source) as it was before any move, its K turned by `delta` positions
 *
 * A block may be read by many moves, written by one, and be both. A move has to run before the one that overwrites
 * what it reads, and it reads one block, so each move has at most one that waits for it: the graph is a forest whose
 * roots are moves or simple cycles, and these cycles are all the strongly connected components there can be. One of
 * a cycle's moves goes by way of a scratch block: what it reads is saved before all others, restored after them.
 *
 *   copies        B <- A, C <- A, then A <- A turned in place
 *   a chain       A <- B, then B <- C
 *   a cycle       S <- B, then B <- A, then A <- S
 *
 * A launch is a set of moves of which none waits for another. Launches are filled with the moves that the longest
 * chains wait for first (T. C. Hu, "Parallel sequencing and assembly line problems", 1961): as few as there can be
 * when all moves are of one size.
 */
import type { TokenCopies } from "../contract/batch.ts";
import type { BlockId } from "../contract/units.ts";

export interface BlockMove {
  readonly source: BlockId;
  /** The source itself: its K is turned in place. */
  readonly target: BlockId;
  /** Tokens that the block holds, from its first slot on. */
  readonly tokenCount: number;
  /** Positions that the tokens stand later at their target. */
  readonly delta: number;
}

export interface RelocationLimits {
  /** Tokens of one launch; a move's at least. */
  readonly launchTokens: number;
  /** Blocks that hold nothing and that no move names: one breaks a cycle, and then the next. */
  readonly scratchBlocks: readonly BlockId[];
}

/** A move, the moves that have to be done before it (how many), and those that wait for it. */
interface Step {
  move: BlockMove;
  pending: number;
  readonly waiting: Step[];
  /** Moves of the longest chain that begins with this one. */
  height: number;
}

/**
 * @throws RangeError when a block is written twice, a scratch block is named by a move, a move is too large for a
 * launch, or there is a cycle and no scratch block
 */
export function planRelocation(moves: readonly BlockMove[], limits: RelocationLimits): BlockMove[][] {
  const wanted = moves.filter(({ source, target, delta }) => source !== target || delta !== 0);
  assertMoves(wanted, limits);
  const steps = wanted.map((move): Step => ({ move, pending: 0, waiting: [], height: 0 }));
  const writers = new Map(steps.map((step) => [step.move.target, step]));
  for (const step of steps) {
    const writer = writers.get(step.move.source);
    if (writer !== undefined && writer !== step) wait(writer, step);
  }
  breakCycles(steps, limits.scratchBlocks);
  measureHeights(steps);
  return fillLaunches(steps, limits.launchTokens);
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

function assertMoves(moves: readonly BlockMove[], { launchTokens, scratchBlocks }: RelocationLimits): void {
  const targets = new Set<BlockId>();
  const scratch = new Set(scratchBlocks);
  for (const { source, target, tokenCount } of moves) {
    if (targets.has(target)) throw new RangeError(`block ${target} is moved to twice`);
    if (scratch.has(source) || scratch.has(target)) throw new RangeError("a scratch block is moved");
    if (!(tokenCount <= launchTokens)) throw new RangeError(`a move of ${tokenCount} tokens exceeds a launch`);
    targets.add(target);
  }
}

function wait(step: Step, before: Step): void {
  before.waiting.push(step);
  step.pending += 1;
}

/** Follows, from each move, the one move that waits for it; where that comes back to the path there is a cycle. */
function breakCycles(steps: Step[], scratchBlocks: readonly BlockId[]): void {
  const walkOf = new Map<Step, number>();
  const restores: Step[] = [];
  for (const [walk, first] of [...steps].entries()) {
    let at: Step | undefined = first;
    while (at !== undefined && !walkOf.has(at)) {
      walkOf.set(at, walk);
      at = at.waiting[0];
    }
    if (at === undefined || walkOf.get(at) !== walk) continue;
    if (scratchBlocks.length === 0) throw new RangeError("moves form a cycle, and there is no scratch block");
    const scratch = scratchBlocks[restores.length % scratchBlocks.length];
    const save = detour(at, scratch);
    const lastUse = restores.at(-scratchBlocks.length);
    if (lastUse !== undefined) wait(save, lastUse);
    restores.push(at);
    steps.push(save);
  }
}

/**
 * Makes `step` read the scratch block. Answers the move that fills it, for which waits whoever waited for `step`: the
 * rest of the cycle, and `step` itself at its end.
 */
function detour(step: Step, scratch: BlockId): Step {
  const { move } = step;
  const save: Step = { move: { ...move, target: scratch }, pending: 0, waiting: step.waiting.splice(0), height: 0 };
  step.move = { ...move, source: scratch, delta: 0 };
  return save;
}

/** Longest chains, from their ends: a move is measured when all that wait for it are. */
function measureHeights(steps: readonly Step[]): void {
  const order: Step[] = [];
  const pending = new Map(steps.map((step) => [step, step.pending]));
  const ready = steps.filter((step) => step.pending === 0);
  for (let step = ready.pop(); step !== undefined; step = ready.pop()) {
    order.push(step);
    for (const next of step.waiting) {
      const left = (pending.get(next) ?? 0) - 1;
      pending.set(next, left);
      if (left === 0) ready.push(next);
    }
  }
  for (const step of order.reverse()) {
    step.height = 1 + step.waiting.reduce((most, { height }) => Math.max(most, height), 0);
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
    for (const { waiting } of launch) {
      for (const step of waiting) {
        step.pending -= 1;
        if (step.pending === 0) later.push(step);
      }
    }
    ready = later;
  }
  return launches;
}
