/** What packing must know of the model and of the machine, and what work costs there. */
import { fewTiles, manyTiles, rowsPerTile, tileHeads } from "./plan-format.ts";

export interface PackShape {
  /** Query heads of one KV head. */
  readonly group: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly blockTokens: number;
  readonly multiprocessorCount: number;
  /** Are "many" items multiplied by warpgroups (sm_90a, head sizes 64 and 128)? */
  readonly hasWarpgroups: boolean;
  /** false: no row shares what it reads with rows of other pieces. */
  readonly packing: boolean;
  /** A plan has no more of them: buffers are made for so many. */
  readonly maxPartialRows: number;
}

/** What one of the two kernels costs. */
export interface KernelCosts {
  /** Of an m-tile and token. */
  readonly tile: number;
  /** Of a partial row: written in float32, and of few rows merged too. */
  readonly partialRow: number;
  /** Share of a multiprocessor's rate that one unit reaches by itself. */
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
  readonly few: KernelCosts;
  readonly many: KernelCosts;
  /** KV heads, times chunks of heads where a group has more than 16: work units of an item. */
  readonly unitsPerItem: number;
  /** Items that the chip works on at a time. */
  readonly itemSlots: number;
  /** Of a token that must come from memory. */
  readonly memoryToken: number;
  /** Of the merges at the end, where items with partial rows have one m-tile: its warps share them. */
  readonly merge: number;
  /** Of an item, until its first tokens are there. */
  readonly item: number;
  /** Of "many" items in a step of few rows: one launch more. */
  readonly launch: number;
  /** An item is not split into parts of fewer tokens. */
  readonly minPartTokens: number;
  /** The unit. */
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
    few: {
      tile: tileFlops / (hasWarpgroups ? warpgroupRate : syncRate) / tokenSeconds,
      partialRow: (hasWarpgroups ? 5 : 6) * heads,
      loneRate: 0.5,
      rows: fewTiles * rows,
    },
    many: {
      tile: tileFlops / (hasWarpgroups ? warpgroupRate : syncRate) / tokenSeconds,
      partialRow: 2 * heads,
      loneRate: hasWarpgroups ? 1 : 0.5,
      rows: manyTiles * rows,
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
