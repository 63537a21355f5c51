/**
 * Random attention plans that use all that the format allows: items of any number of rows, rows in several items,
 * slices that are empty, of one token, begin inside a block and end inside another, causal ones, rows that see nothing,
 * an offset of either sign for each (row, slice).
 */
import { type AttentionPlan, largeTiles, rowsPerTile, smallTiles } from "../../worker/attention/plan-format.ts";
import type { Random } from "../native/random.ts";
import { type BuiltItem, type BuiltSlice, buildPlan } from "./attention-builder.ts";

export interface PlanShape {
  readonly rowCount: number;
  readonly group: number;
  readonly blockTokens: number;
  readonly blockCount: number;
  /** Offsets and positions lie in [0, contextTokens), offsets also below 0. */
  readonly contextTokens: number;
  /** Of the most slices that an item shares, and of the most private ones of a tile. */
  readonly sharedSlices: number;
  readonly privateSlices: number;
  readonly maxTokens: number;
  /** In how many rounds every row gets an item, by kind; a row may be left out of the later ones. */
  readonly smallRounds: number;
  readonly largeRounds: number;
}

export interface RandomPlan {
  readonly plan: AttentionPlan;
  readonly positions: Int32Array;
  readonly blockIds: Int32Array;
}

export function randomPlan(random: Random, shape: PlanShape): RandomPlan {
  const rows = Array.from({ length: shape.rowCount }, (_, row) => row);
  const blockIds: number[] = [];
  const itemsOf = (rounds: number, tiles: number, ownSlices: number): BuiltItem[] =>
    Array.from({ length: rounds }, (_, round) => {
      const order = random.shuffle([...rows]).filter(() => round === 0 || random.next() < 0.7);
      const parts = cut(random, order, tiles * rowsPerTile(shape.group));
      return parts.map((part) => itemOf(random, shape, part, ownSlices, blockIds));
    }).flat();
  const small = itemsOf(shape.smallRounds, smallTiles, shape.privateSlices);
  const large = itemsOf(shape.largeRounds, largeTiles, 0);
  return {
    plan: buildPlan(shape.rowCount, small, large),
    positions: Int32Array.from(rows, () => random.integer(0, shape.contextTokens - 1)),
    blockIds: Int32Array.from(blockIds),
  };
}

/** Into parts of 1 to `most`. */
function cut(random: Random, order: readonly number[], most: number): number[][] {
  const parts: number[][] = [];
  for (let at = 0; at < order.length; ) {
    const count = random.next() < 0.3 ? most : random.integer(1, most);
    parts.push(order.slice(at, at + count));
    at += count;
  }
  return parts;
}

function itemOf(
  random: Random,
  shape: PlanShape,
  rows: readonly number[],
  ownSlices: number,
  blockIds: number[],
): BuiltItem {
  const perTile = rowsPerTile(shape.group);
  const sharedCount = random.integer(0, shape.sharedSlices);
  const shared = Array.from({ length: sharedCount }, () => sliceOf(random, shape, 0, rows.length, blockIds));
  const own: BuiltSlice[] = [];
  for (let first = 0; first < rows.length; first += perTile) {
    const inTile = Math.min(perTile, rows.length - first);
    for (let i = random.integer(0, ownSlices); i > 0; i--) {
      const from = random.integer(0, inTile - 1);
      own.push(sliceOf(random, shape, first + from, random.integer(1, inTile - from), blockIds));
    }
  }
  return { rows, shared, own };
}

function sliceOf(
  random: Random,
  { maxTokens, blockTokens, blockCount, contextTokens }: PlanShape,
  firstRow: number,
  rowCount: number,
  blockIds: number[],
): BuiltSlice {
  const tokens = random.next() < 0.2 ? random.integer(0, 1) : random.integer(0, maxTokens);
  const firstToken = random.next() < 0.5 ? 0 : random.integer(0, blockTokens - 1);
  const block = blockIds.length;
  for (let left = firstToken + tokens; left > 0; left -= blockTokens) blockIds.push(random.integer(0, blockCount - 1));
  // Whole, causal with the slice's end in the last row, or beginning before the first token.
  const firstVisible = random.pick([tokens, tokens - rowCount + 1, random.integer(-2, tokens)]);
  const offsets = Array.from({ length: rowCount }, () => random.integer(1 - contextTokens, contextTokens - 1));
  return { block, firstToken, tokens, firstRow, firstVisible, offsets };
}
