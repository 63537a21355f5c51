/** Random plans of large items, and what they stand on: rows, pool, blocks, offsets. */
import { type AttentionPlan, largeTiles, rowsPerTile } from "../../worker/attention/plan-format.ts";
import { packedWarpgroupLaunch, warpgroupLaunch } from "../../worker/backend/cuda/attention.ts";
import { roundToBfloat16 } from "../../worker/backend/cuda/weights/tensor-reader.ts";
import type { DeviceBuffer } from "../../worker/native/cuda/memory.ts";
import { encodeTensorMap } from "../../worker/native/cuda/tensor-map.ts";
import type { Random } from "../native/random.ts";
import type { AttentionDevice, Heads } from "./attention-device.ts";

/** A slice that rows of an item read. */
export interface SliceSpec {
  readonly tokens: number;
  /** What the first of its rows sees; default all. */
  readonly firstVisible?: number;
  /** Rows of the item that take part; default all. */
  readonly firstRow?: number;
  readonly rowCount?: number;
  /** Slices of one run read the same tokens from its first on; the first of them is the longest. */
  readonly run?: number;
}

/** Rows, and the slices that each item with these rows reads: more than one item makes partial results. */
export interface RowsSpec {
  readonly rowCount: number;
  readonly parts: readonly (readonly SliceSpec[])[];
}

export interface PlanCase {
  readonly heads: Heads;
  readonly rows: readonly RowsSpec[];
  readonly inputs?: "equal scores" | "equal values";
  /** Slices begin with a block, as prepared fragments do. */
  readonly isAligned?: boolean;
}

export interface PlanInputs {
  readonly plan: AttentionPlan;
  readonly positions: Int32Array;
  readonly blockIds: Int32Array;
  readonly blockCount: number;
}

const contextTokens = 4_096;

/** Most rows of an item. */
export const itemRows = (heads: Heads): number => largeTiles * rowsPerTile(heads.queryHeads / heads.kvHeads);

/** Threads of a block of the kernel, and its shared memory. */
export const wgmmaThreads = warpgroupLaunch(1, 128).blockThreads;
export const wgmmaSharedBytes = (headDim: number): number => warpgroupLaunch(1, headDim).sharedBytes;

/** The tensor map that the kernel takes in place of the pool. */
export function putPoolMap(
  device: AttentionDevice,
  { headDim, blockTokens }: Heads,
  pool: DeviceBuffer,
  boxRows = Math.min(blockTokens, 128),
): DeviceBuffer {
  return device.put("pool map", encodeTensorMap(device.context, pool, headDim, boxRows));
}

/** The same of attention_packed_wgmma. */
export const packedWgmmaThreads = packedWarpgroupLaunch(1, 128).blockThreads;
export const packedWgmmaSharedBytes = (headDim: number): number => packedWarpgroupLaunch(1, headDim).sharedBytes;

/** Slices begin anywhere in their first block, blocks stand anywhere in the pool, offsets have both signs. */
export function buildPlan(random: Random, { heads, rows: specs, isAligned = false }: PlanCase): PlanInputs {
  const { blockTokens } = heads;
  const runs = new Map<number, { block: number; firstToken: number }>();
  const [rows, items, slices, offsets, merges]: number[][] = [[], [], [], [], []];
  const [positions, blockIds]: number[][] = [[], []];
  const addBlocks = (tokens: number) => {
    const [block, firstToken] = [blockIds.length, isAligned ? 0 : random.integer(0, blockTokens - 1)];
    const count = Math.ceil((firstToken + tokens) / blockTokens);
    for (let i = 0; i < count; i++) blockIds.push(blockIds.length);
    return { block, firstToken };
  };
  let partialCount = 0;
  for (const { rowCount, parts } of specs) {
    const firstRow = positions.length;
    for (let i = 0; i < rowCount; i++) positions.push(random.integer(0, contextTokens - 1));
    const isSplit = parts.length > 1;
    parts.forEach((part, p) => {
      const tokenCount = part.reduce((sum, { tokens }) => sum + tokens, 0);
      items.push(rows.length / 4, rowCount, slices.length / 8, part.length, part.length, tokenCount, 0, 0);
      for (let i = 0; i < rowCount; i++) {
        const merge = merges.length / 4 + i;
        rows.push(firstRow + i, isSplit ? partialCount + i * parts.length + p : -1, isSplit ? merge : -1, 0);
      }
      for (const {
        tokens,
        firstVisible = tokens,
        firstRow: first = 0,
        rowCount: count = rowCount - first,
        run,
      } of part) {
        const known = run === undefined ? undefined : runs.get(run);
        const { block, firstToken } = known ?? addBlocks(tokens);
        if (run !== undefined) runs.set(run, { block, firstToken });
        slices.push(block, firstToken, tokens, offsets.length, first, count, firstVisible, 0);
        for (let i = 0; i < count; i++) {
          offsets.push(positions[firstRow + first + i] - random.integer(1 - contextTokens, 2 * contextTokens - 1));
        }
      }
    });
    if (!isSplit) continue;
    for (let i = 0; i < rowCount; i++) merges.push(firstRow + i, partialCount + i * parts.length, parts.length, 0);
    partialCount += rowCount * parts.length;
  }
  const words = (list: readonly number[]) => Int32Array.from(list);
  return {
    plan: {
      rows: words(rows),
      smallItems: new Int32Array(0),
      largeItems: words(items),
      slices: words(slices),
      offsets: words(offsets),
      merges: words(merges),
      partialCount,
    },
    positions: words(positions),
    blockIds: Int32Array.from(random.shuffle(blockIds)),
    blockCount: blockIds.length,
  };
}

/** Rounded to bfloat16, as words and as numbers. */
export interface Halves {
  readonly words: Uint16Array<ArrayBuffer>;
  readonly values: Float32Array;
}

function halves(values: Float32Array): Halves {
  const words = new Uint16Array(values.length);
  roundToBfloat16(values, 1, words);
  return { words, values: new Float32Array(Uint32Array.from(words, (half) => half << 16).buffer) };
}

export function randomQueries(random: Random, { heads, inputs }: PlanCase, rowCount: number): Halves {
  const width = (heads.queryHeads + 2 * heads.kvHeads) * heads.headDim;
  const values = random.normals(rowCount * width, 2_000);
  if (inputs === "equal scores") values.fill(0);
  return halves(values);
}

/** NaN wherever no slice has a token. */
export function randomPool(random: Random, { heads, inputs }: PlanCase, built: PlanInputs): Halves {
  const { blockTokens, kvHeads, headDim } = heads;
  const headSize = blockTokens * headDim;
  const values = new Float32Array(built.blockCount * kvHeads * 2 * headSize).fill(Number.NaN);
  const { slices } = built.plan;
  for (let at = 0; at < slices.length; at += 8) {
    const [block, firstToken, tokenCount] = slices.subarray(at, at + 3);
    for (let place = firstToken; place < firstToken + tokenCount; place++) {
      const id = built.blockIds[block + Math.floor(place / blockTokens)];
      for (let part = 0; part < 2 * kvHeads; part++) {
        const start = (id * kvHeads * 2 + part) * headSize + (place % blockTokens) * headDim;
        const isFlat = inputs === "equal values" && part % 2 === 1;
        values.set(isFlat ? new Float32Array(headDim).fill(random.normal()) : random.normals(headDim, 2_000), start);
      }
    }
  }
  return halves(values);
}

/** (cos, sin) rows from -contextTokens to twice as many; the row of position 0 is `zero`. */
export function turnTable(rotaryDim: number): { table: Float32Array<ArrayBuffer>; zero: number } {
  const half = Math.max(2, rotaryDim / 2);
  const table = new Float32Array(3 * contextTokens * half * 2);
  for (let n = 0; n < 3 * contextTokens; n++) {
    for (let i = 0; i < half; i++) {
      const angle = (n - contextTokens) * 10_000 ** (-i / half);
      table[2 * (n * half + i)] = Math.cos(angle);
      table[2 * (n * half + i) + 1] = Math.sin(angle);
    }
  }
  return { table, zero: contextTokens };
}

/** Shapes of every group size; the first two tell a wrong product with K from a wrong one with V. */
export function planCases(random: Random, headDim: number): [name: string, PlanCase][] {
  const heads = (queryHeads: number, kvHeads: number, rotaryDim = headDim, blockTokens = 16): Heads => {
    return { queryHeads, kvHeads, headDim, rotaryDim, blockTokens };
  };
  const plain = { heads: heads(4, 1, 0), rows: [{ rowCount: 32, parts: [[{ tokens: 128 }]] }] };
  const cases: [string, PlanCase][] = [
    ["product with V alone", { ...plain, inputs: "equal scores" }],
    ["product with K alone", { ...plain, inputs: "equal values" }],
    ["one tile", plain],
    ["one tile, rotated", { ...plain, heads: heads(4, 1) }],
    ["many rows", manyRows(heads(8, 2), 300)],
    [
      "nothing to see",
      {
        heads: heads(4, 2),
        rows: [
          { rowCount: 3, parts: [[], [{ tokens: 9 }]] },
          { rowCount: 2, parts: [[]] },
        ],
      },
    ],
  ];
  for (const group of [1, 2, 4, 7, 8, 16, 32]) {
    const kvHeads = group > 4 ? 1 : 2;
    const rotaryDim = group === 2 ? headDim / 2 : group === 8 ? 0 : headDim;
    const blockTokens = group === 1 ? 8 : group === 7 ? 64 : group === 16 ? 256 : 16;
    cases.push([`group of ${group}`, mixed(random, heads(group * kvHeads, kvHeads, rotaryDim, blockTokens))]);
  }
  return cases;
}

/** Every row sees one shared slice; items are as full as they can be. */
function manyRows(heads: Heads, rowCount: number): PlanCase {
  const step = itemRows(heads);
  const counts = Array.from({ length: Math.ceil(rowCount / step) }, (_, i) => Math.min(step, rowCount - i * step));
  return { heads, rows: counts.map((count) => ({ rowCount: count, parts: [[{ tokens: 70 }, { tokens: 1 }]] })) };
}

/** A causal chunk behind fragments, single rows and tokens, rows that only some slices are for, and splits. */
function mixed(random: Random, heads: Heads): PlanCase {
  const most = itemRows(heads);
  const some = random.integer(2, most);
  const before = random.integer(1, 200);
  const tokens = (high: number) => ({ tokens: random.integer(1, high) });
  return {
    heads,
    rows: [
      { rowCount: most, parts: [[tokens(40), { tokens: 1 }, { tokens: before + most, firstVisible: before + 1 }]] },
      { rowCount: 1, parts: [[{ tokens: 1 }]] },
      { rowCount: 1, parts: [[tokens(300), tokens(300)]] },
      { rowCount: some, parts: [[{ tokens: 257 }], [tokens(130), { tokens: 1 }], [{ tokens: some, firstVisible: 1 }]] },
      {
        rowCount: most,
        parts: [
          [tokens(90), { tokens: 60, firstRow: some - 1, rowCount: 1 }],
          [{ tokens: 130, firstVisible: 1 - random.integer(0, most), rowCount: some }],
        ],
      },
    ],
  };
}
