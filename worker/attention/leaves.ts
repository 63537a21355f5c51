/**
 * Leaf items: rows that stand together in the order of `RowArranger`, up to 4 m-tiles of them. What all rows of an item
 * read is loaded once for it, what rows of one m-tile read once for the m-tile; no row is in two items.
 */
import { IntList } from "../base/int-list.ts";
import type { RowOrder } from "./rows.ts";
import type { PackCosts } from "./shape.ts";

/** Struct of arrays, valid until the next `cut`. */
export interface LeafItems {
  readonly count: number;
  /** [count + 1] places in the order of rows. */
  readonly first: Int32Array;
  /** [count] leading stretches that all rows of an item read, their tokens, and tokens that it loads in all. */
  readonly sharedDepth: Int32Array;
  readonly sharedTokens: Int32Array;
  readonly loads: Int32Array;
  /** Tokens times m-tiles that read them, of all items. */
  readonly tileTokens: number;
}

export class LeafCutter {
  #cost = new Float64Array(257);
  #from = new Int32Array(257);
  readonly #first = new IntList();
  readonly #sharedDepth = new IntList();
  readonly #sharedTokens = new IntList();
  readonly #loads = new IntList();
  #tileTokens = 0;

  /**
   * The cheapest cut of rows into items by what they load and multiply.
   * @param tiles m-tiles of an item at most
   * @param isEnd [count] 1: an item begins here whatever it costs
   */
  cut(order: RowOrder, costs: PackCosts, tiles: number, isEnd?: Uint8Array): LeafItems {
    const { count } = order;
    if (this.#cost.length <= count) {
      this.#cost = new Float64Array(2 * count + 1);
      this.#from = new Int32Array(2 * count + 1);
    }
    const cost = this.#cost;
    const from = this.#from;
    cost.fill(Number.POSITIVE_INFINITY, 0, count + 1);
    cost[0] = 0;
    for (let start = 0; start < count; start++) this.#extend(order, costs, start, tiles * costs.rowsPerTile, isEnd);
    for (const list of [this.#first, this.#sharedDepth, this.#sharedTokens, this.#loads]) list.clear();
    this.#tileTokens = 0;
    for (let end = count; end > 0; end = from[end]) this.#first.push(from[end]);
    const firsts = this.#first.view().reverse();
    this.#first.push(count);
    for (let i = 0; i < firsts.length; i++) this.#measure(order, costs, firsts[i], this.#first.memory[i + 1]);
    return {
      count: firsts.length,
      first: this.#first.memory,
      sharedDepth: this.#sharedDepth.memory,
      sharedTokens: this.#sharedTokens.memory,
      loads: this.#loads.memory,
      tileTokens: this.#tileTokens,
    };
  }

  /** Prices of all items that begin with one row. */
  #extend(order: RowOrder, costs: PackCosts, start: number, maxRows: number, isEnd?: Uint8Array): void {
    const cost = this.#cost;
    const from = this.#from;
    const { rowsPerTile, small, item } = costs;
    const { tokens, sharedTokens } = order;
    const end = Math.min(order.count, start + maxRows);
    const before = cost[start] + item;
    const { tile } = small;
    let shared = tokens[start];
    let inTiles = 0;
    let tilesBefore = -1;
    let leftInTile = 0;
    for (let i = start; i < end; i++) {
      const own = sharedTokens[i];
      if (i > start) {
        if (isEnd !== undefined && isEnd[i] === 1) return;
        if (own < shared) shared = own;
      }
      inTiles += tokens[i];
      if (leftInTile === 0) {
        leftInTile = rowsPerTile;
        tilesBefore += 1;
      } else inTiles -= own;
      leftInTile -= 1;
      const loads = inTiles - tilesBefore * shared;
      const price = before + Math.max(loads, tile * inTiles);
      if (price < cost[i + 1]) {
        cost[i + 1] = price;
        from[i + 1] = start;
      }
    }
  }

  #measure(order: RowOrder, { rowsPerTile }: PackCosts, start: number, end: number): void {
    const { tokens, sharedTokens, sharedDepth, starts, rows } = order;
    let depth = starts[rows[start] + 1] - starts[rows[start]];
    let shared = tokens[start];
    let inTiles = 0;
    for (let i = start; i < end; i++) {
      if (i > start && sharedDepth[i] < depth) {
        depth = sharedDepth[i];
        shared = sharedTokens[i];
      }
      inTiles += (i - start) % rowsPerTile === 0 ? tokens[i] : tokens[i] - sharedTokens[i];
    }
    this.#sharedDepth.push(depth);
    this.#sharedTokens.push(shared);
    this.#loads.push(inTiles - (Math.ceil((end - start) / rowsPerTile) - 1) * shared);
    this.#tileTokens += inTiles;
  }
}

/** [stretches] what the items pay for each token of it: how often it is loaded, or multiplied if that is more. */
export function leafCosts(order: RowOrder, leaves: LeafItems, stretchCount: number, costs: PackCosts): Float64Array {
  const { rows, starts, stretches, sharedDepth } = order;
  const { rowsPerTile, small } = costs;
  const paid = new Float64Array(stretchCount);
  for (let item = 0; item < leaves.count; item++) {
    const begin = leaves.first[item];
    const end = leaves.first[item + 1];
    const depth = leaves.sharedDepth[item];
    const shared = Math.max(1, small.tile * Math.ceil((end - begin) / rowsPerTile));
    for (let d = 0; d < depth; d++) paid[stretches[starts[rows[begin]] + d]] += shared;
    const alone = Math.max(1, small.tile);
    for (let i = begin; i < end; i++) {
      const start = starts[rows[i]];
      // The rows before have loaded what this one shares with them.
      const known = (i - begin) % rowsPerTile === 0 ? depth : sharedDepth[i];
      for (let place = start + known; place < starts[rows[i] + 1]; place++) paid[stretches[place]] += alone;
    }
  }
  return paid;
}
