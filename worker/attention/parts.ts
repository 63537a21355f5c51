/**
 * Items of the final plan, before they are written: leaf items and hubs cut so that the chip is filled and no item is
 * much longer than the others. An item is cut between its rows where they have little in common, else over its tokens,
 * which costs its rows partial results.
 */
import { IntList } from "../base/int-list.ts";
import { itemCost } from "./estimate.ts";
import type { HubPacks } from "./hubs.ts";
import type { LeafItems } from "./leaves.ts";
import type { RowOrder } from "./rows.ts";
import type { KernelCosts, PackCosts } from "./shape.ts";

/** Words of a part, and their places. */
export const partWords = 8;
export const partField = {
  /** Leaf items: places in the order of rows. Hubs: places in the rows of packs. */
  firstRow: 0,
  endRow: 1,
  /** Leaf items: stretches from `depth` on; up to `endDepth`, which all rows share, or -1: to each row's end. */
  depth: 2,
  endDepth: 3,
  /** Tokens of those stretches, one after the other; of a hub's. */
  firstToken: 4,
  endToken: 5,
  /** Tokens that the item loads. */
  loads: 6,
  /** The hub's pack. */
  pack: 7,
} as const;

/** An item is cut when it is more than so many times as long as asked for. */
const slack = 1.25;

export class PartList {
  readonly words = new IntList(1_024);
  /** [parts] by itemCost. */
  readonly itemCosts = new IntList();
  totalLoads = 0;
  /** m-tiles of the largest item whose rows get partial results. */
  mergedTiles = 0;
  readonly #costs: PackCosts;
  #kernel: KernelCosts;

  constructor(costs: PackCosts) {
    this.#costs = costs;
    this.#kernel = costs.small;
  }

  /** @param kernel that the parts are for */
  clear(kernel: KernelCosts): void {
    this.words.clear();
    this.itemCosts.clear();
    this.totalLoads = 0;
    this.mergedTiles = 0;
    this.#kernel = kernel;
  }

  /** Stretches `depth` to `endDepth` of rows, or all from `depth` on: their tokens `from` to `to`. */
  addRows(firstRow: number, endRow: number, depth: number, endDepth: number, from: number, to: number): void {
    this.words.push4(firstRow, endRow, depth, endDepth);
    this.words.push4(from, to, 0, -1);
  }

  addHub(firstRow: number, endRow: number, from: number, to: number, pack: number): void {
    this.words.push4(firstRow, endRow, 0, 0);
    this.words.push4(from, to, 0, pack);
  }

  /** Sets the work of the part that was just added. @param tileTokens tokens times m-tiles that read them */
  setWork(loads: number, tileTokens: number, partialRows: number): void {
    this.words.memory[this.words.length - partWords + partField.loads] = loads;
    this.itemCosts.push(itemCost(loads, tileTokens, partialRows, this.#kernel, this.#costs));
    this.totalLoads += loads;
    const tiles = Math.ceil(partialRows / this.#costs.rowsPerTile);
    if (tiles > this.mergedTiles) this.mergedTiles = tiles;
  }
}

/** Tokens of a part of `count` parts, in whole blocks. */
function partTokensOf(tokens: number, count: number, blockTokens: number): number {
  return Math.ceil(tokens / count / blockTokens) * blockTokens;
}

/** Parts are at least a block long, so that no part consists of slots without tokens only. */
function partEnd(at: number, step: number, tokens: number, blockTokens: number): number {
  return tokens - at - step < blockTokens ? tokens : at + step;
}

export class LeafSplitter {
  readonly #costs: PackCosts;
  readonly #blockTokens: number;
  #hasHubs = false;
  #limit = 0;
  #partTokens = 0;
  /**
   * Of the rows that were measured last: tokens and stretches that all of them read, and the work of an item of them.
   */
  #shared = 0;
  #endDepth = 0;
  #loads = 0;
  #tileTokens = 0;

  constructor(costs: PackCosts, blockTokens: number) {
    this.#costs = costs;
    this.#blockTokens = blockTokens;
  }

  /** @param hasHubs do rows get partial results of hubs? @param partTokens tokens that an item should load at most */
  split(order: RowOrder, leaves: LeafItems, hasHubs: boolean, partTokens: number, parts: PartList): void {
    this.#hasHubs = hasHubs;
    this.#partTokens = Math.max(this.#costs.minPartTokens, partTokens);
    this.#limit = slack * this.#partTokens;
    for (let item = 0; item < leaves.count; item++) {
      this.#cut(order, parts, leaves.first[item], leaves.first[item + 1], 0, 0);
    }
  }

  /** @param depth stretches before it, of `before` tokens, are in other parts */
  #cut(order: RowOrder, parts: PartList, first: number, end: number, depth: number, before: number): void {
    const rows = end - first;
    this.#measure(order, first, end, before);
    const shared = this.#shared;
    const endDepth = this.#endDepth;
    const loads = this.#loads;
    const tileTokens = this.#tileTokens;
    if (loads <= 0) return;
    if (loads <= this.#limit) {
      parts.addRows(first, end, depth, -1, 0, 0);
      return parts.setWork(loads, tileTokens, depth > 0 || this.#hasHubs ? rows : 0);
    }
    if (rows === 1) return this.#addChunks(parts, first, end, depth, endDepth, loads);
    if (shared > this.#costs.small.partialRow * rows) {
      this.#addChunks(parts, first, end, depth, endDepth, shared);
      return this.#cut(order, parts, first, end, endDepth, before + shared);
    }
    const middle = this.#middleOf(order, first, end);
    this.#cut(order, parts, first, middle, depth, before);
    this.#cut(order, parts, middle, end, depth, before);
  }

  #addChunks(parts: PartList, first: number, end: number, depth: number, endDepth: number, tokens: number): void {
    const count = Math.max(1, Math.round(tokens / this.#partTokens));
    const step = partTokensOf(tokens, count, this.#blockTokens);
    const tiles = Math.ceil((end - first) / this.#costs.rowsPerTile);
    for (let at = 0, to = 0; at < tokens; at = to) {
      to = partEnd(at, step, tokens, this.#blockTokens);
      parts.addRows(first, end, depth, endDepth, at, to);
      parts.setWork(to - at, (to - at) * tiles, end - first);
    }
  }

  #measure(order: RowOrder, first: number, end: number, before: number): void {
    const { tokens, sharedTokens, sharedDepth, starts, rows } = order;
    const { rowsPerTile } = this.#costs;
    let shared = tokens[first];
    let depth = starts[rows[first] + 1] - starts[rows[first]];
    let inTiles = 0;
    let tiles = 0;
    for (let i = first; i < end; i++) {
      if (i > first && sharedDepth[i] < depth) {
        depth = sharedDepth[i];
        shared = sharedTokens[i];
      }
      const isNewTile = (i - first) % rowsPerTile === 0;
      if (isNewTile) tiles += 1;
      inTiles += isNewTile ? tokens[i] - before : tokens[i] - sharedTokens[i];
    }
    this.#shared = shared - before;
    this.#endDepth = depth;
    this.#tileTokens = inTiles;
    this.#loads = inTiles - (tiles - 1) * this.#shared;
  }

  /** Where to cut rows: near the middle, where neighbours share least; between m-tiles if there is more than one. */
  #middleOf({ sharedTokens }: RowOrder, first: number, end: number): number {
    const rows = end - first;
    const step = rows > this.#costs.rowsPerTile ? this.#costs.rowsPerTile : 1;
    let best = first + Math.max(1, Math.round(rows / 2 / step)) * step;
    if (best >= end) best = end - 1;
    for (let i = first + Math.ceil(rows / 4); i <= first + Math.floor((3 * rows) / 4); i++) {
      if (i > first && i < end && (i - first) % step === 0 && sharedTokens[i] < sharedTokens[best]) best = i;
    }
    return best;
  }
}

/** Cuts packs of hubs into items of at most `itemRows` rows and about `partTokens` tokens. */
export function splitHubs(
  packs: HubPacks,
  costs: PackCosts,
  itemRows: number,
  blockTokens: number,
  partTokens: number,
  parts: PartList,
): void {
  const { rowsPerTile, minPartTokens } = costs;
  for (let pack = 0; pack < packs.count; pack++) {
    const [first, end] = [packs.firstRow[pack], packs.firstRow[pack + 1]];
    const tokens = packs.tokens[pack];
    const tiles = Math.ceil((end - first) / rowsPerTile);
    const items = Math.ceil((end - first) / itemRows);
    const step = Math.ceil(tiles / items) * rowsPerTile;
    const count = Math.max(1, Math.round(tokens / Math.max(minPartTokens, partTokens)));
    const evenTokens = partTokensOf(tokens, count, blockTokens);
    for (let row = first; row < end; row += step) {
      const endRow = Math.min(end, row + step);
      for (let at = 0, to = 0; at < tokens; at = to) {
        to = partEnd(at, evenTokens, tokens, blockTokens);
        parts.addHub(row, endRow, at, to, pack);
        const ownTiles = Math.ceil((endRow - row) / rowsPerTile);
        parts.setWork(to - at, (to - at) * ownTiles, endRow - row);
      }
    }
  }
}
