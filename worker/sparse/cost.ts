/**
 * Whether a row that chooses reads less than a dense one adds to a packed step. What others read too is loaded once for
 * all of them, so a dense row adds only blocks that are its own.
 */
import type { BackendShape } from "../backend/backend.ts";
import type { SparseParams } from "../contract/sparse.ts";
import type { BlockId } from "../contract/units.ts";

/**
 * Of the chosen tokens how many are others than a step before: about half by the row's own query. By the predicted one it
 * was a third over four steps (measured with the demo model).
 */
const changedParts = { now: 1 / 2, ahead: 1 / 3 } as const;
/** Of the lists that were chosen ahead, how many the row's own query chooses again: 30 to 70 % on real queries. */
const againPart = 1 / 2;

export interface RowSizes {
  /** Blocks that the row alone reads, when it reads all it sees. */
  readonly ownBlocks: number;
  /** Tokens that it chooses from. */
  readonly candidates: number;
  /** Forced, chosen and tail. */
  readonly readTokens: number;
}

/** Bytes that a sparse row reads, as a part of those that a dense one adds. */
export function sparseCost(
  { ownBlocks, candidates, readTokens }: RowSizes,
  params: SparseParams,
  shape: BackendShape,
): number {
  const { kvBytesPerBlock, blockTokens, sparse } = shape;
  const tokenBytes = kvBytesPerBlock / blockTokens;
  const { mode, tokens, refreshSteps = 1, leastCosine = 0 } = params;
  const isAhead = mode === "ahead";
  const again = leastCosine > -1 ? againPart : 0;
  const choices = isAhead ? 1 / refreshSteps + again : 1;
  const changed = isAhead ? changedParts.ahead / refreshSteps + again * changedParts.now : changedParts.now;
  const scores = (candidates / blockTokens) * (sparse?.shadowBytesPerBlock ?? 0) * choices;
  // Each copied token is read once more, and written.
  const copies = sparse?.readsInPlace ? 0 : 2 * Math.min(tokens, candidates) * changed * tokenBytes;
  return (readTokens * tokenBytes + scores + copies) / (ownBlocks * kvBytesPerBlock);
}

/**
 * How many of the blocks that a request's open run reads nobody else holds.
 * @param runs blocks of each of the request's runs
 * @param references of a block, all holders counted
 */
export function ownBlockCount(runs: readonly (readonly BlockId[])[], references: (blockId: BlockId) => number): number {
  const held = new Map<BlockId, number>();
  for (const blocks of runs) for (const blockId of blocks) held.set(blockId, (held.get(blockId) ?? 0) + 1);
  let count = 0;
  for (const [blockId, own] of held) if (references(blockId) === own) count += 1;
  return count;
}
