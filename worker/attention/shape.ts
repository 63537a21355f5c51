/** What packing must know of the model and of the machine, and what work costs there. */
import { largeTiles, rowsPerTile, smallTiles, tileHeads } from "./plan-format.ts";

export interface PackShape {
  /** Query heads of one KV head. */
  readonly group: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly blockTokens: number;
  readonly multiprocessorCount: number;
  /** Whether large items are multiplied by warpgroups (sm_90a, head sizes 64 and 128). */
  readonly hasWarpgroups: boolean;
  /** false: no row shares what it reads with rows of other pieces. */
  readonly packing: boolean;
  /** Partial rows that a plan has at most, because buffers are made for so many. */
  readonly maxPartialRows: number;
}

/** What one of the two kernels costs. */
export interface KernelCosts {
  /** Cost of one m-tile and one token. */
  readonly tile: number;
  /** Cost of a partial row: it is written in float32, and small items merge it too. */
  readonly partialRow: number;
  /** Share of a multiprocessor's rate that one work unit reaches when it runs alone. */
  readonly loneRate: number;
  /** Rows of the largest item. */
  readonly rows: number;
}

/**
 * Costs in the time that one multiprocessor takes to read one token's K and V of one KV head out of the L2 cache,
 * when all read (`readTokens`). Rates as measured on an H200: memory 4.3 TB/s, L2 5.5 TB/s, mma.sync 165 TFLOP/s
 * wgmma 550 TFLOP/s.
 */
export interface PackCosts {
  readonly rowsPerTile: number;
  readonly small: KernelCosts;
  readonly large: KernelCosts;
  /** KV heads, times tiles of 16 heads where a group has more than 16: work units of an item. */
  readonly unitsPerItem: number;
  /** How many items the chip works on at a time. */
  readonly itemSlots: number;
  /** Cost of a token that comes from memory, not from the L2 cache. */
  readonly memoryToken: number;
  /** Cost of the merges at the end, when items with partial rows have one m-tile, whose warps share the merges. */
  readonly merge: number;
  /** Cost of an item until its first tokens have arrived. */
  readonly item: number;
  /** Cost of one more launch: that of large items in a step that has small items too. */
  readonly launch: number;
  /** Fewest tokens of a part that an item is split into. */
  readonly minPartTokens: number;
  /** Seconds of one unit of cost. */
  readonly seconds: number;
}

const memoryRate = 4.3e12;
const cacheRate = 5.5e12;
const syncRate = 165e12;
const warpgroupRate = 550e12;
const launchSeconds = 12e-6;

export function packCosts(shape: PackShape): PackCosts {
  const { group, kvHeads, headDim, multiprocessorCount, hasWarpgroups } = shape;
  const tokenBytes = 4 * headDim;
  const tokenSeconds = (tokenBytes * multiprocessorCount) / cacheRate;
  const tileFlops = 4 * headDim * tileHeads * multiprocessorCount;
  const rows = rowsPerTile(group);
  const heads = Math.min(group, tileHeads);
  const unitsPerItem = kvHeads * Math.ceil(group / tileHeads);
  return {
    rowsPerTile: rows,
    small: {
      tile: tileFlops / (hasWarpgroups ? warpgroupRate : syncRate) / tokenSeconds,
      partialRow: (hasWarpgroups ? 5 : 6) * heads,
      loneRate: 0.5,
      rows: smallTiles * rows,
    },
    large: {
      tile: tileFlops / (hasWarpgroups ? warpgroupRate : syncRate) / tokenSeconds,
      partialRow: 2 * heads,
      loneRate: hasWarpgroups ? 1 : 0.5,
      rows: largeTiles * rows,
    },
    unitsPerItem,
    itemSlots: multiprocessorCount / unitsPerItem,
    memoryToken: cacheRate / memoryRate,
    merge: hasWarpgroups ? 160 : 360,
    item: 190,
    launch: launchSeconds / tokenSeconds,
    minPartTokens: 128,
    seconds: tokenSeconds,
  };
}
