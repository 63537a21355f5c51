/** Attention on the device against its twin: random steps of pieces, segments and offsets, whole and split over tokens. */
import type { Batch } from "../../worker/backend/backend.ts";
import { workShapeOf } from "../../worker/backend/cuda/attention.ts";
import type { DeviceBuffer } from "../../worker/backend/cuda/device.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import { itemWords, mergeWords, WorkPlanner } from "../../worker/backend/cuda/work-items.ts";
import type { Random } from "../native/random.ts";
import { bfloat16Step, KernelTwin } from "./kernel-twin.ts";

const threads = 128;
const contextTokens = 2_048;
/** Place of its offset in a slice's words. */
const offsetOfSlice = 3;

export interface AttentionCase {
  readonly headDim: number;
  readonly rotaryDim: number;
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly blockTokens: number;
  /** [rows, tokens of its own before them, seen segments] of each piece. */
  readonly pieces: readonly (readonly [rows: number, before: number, segments: number])[];
  /** More items than this come of splitting; 1: nothing is split. */
  readonly itemTarget: number;
}

/** Dynamic shared memory that is enough for both kernels (kernels/cuda/attention_prefill.cu). */
export const attentionSharedBytes = (headDim: number): number => 384 * 2 * (headDim + 8);

/** A step whose segments lie in blocks scattered over the pool, begin inside blocks, and have offsets of both signs. */
export function randomBatch(random: Random, { pieces, blockTokens }: AttentionCase): Batch & { blockCount: number } {
  const [pieceRows, pieceSegments] = [[0], [0]];
  const [starts, firsts, counts, offsets, blockIds, positions]: number[][] = [[], [], [], [], [], []];
  const add = (first: number, count: number, offset: number): void => {
    starts.push(blockIds.length);
    firsts.push(first);
    counts.push(count);
    offsets.push(offset);
    for (let i = 0; i < Math.ceil((first + count) / blockTokens); i++) blockIds.push(blockIds.length);
  };
  for (const [rows, before, segments] of pieces) {
    const start = random.integer(0, contextTokens - before - rows);
    for (let s = 0; s < segments; s++) {
      add(random.integer(0, blockTokens - 1), random.integer(1, 90), random.integer(-contextTokens + 1, start));
    }
    add(0, before + rows, 0);
    for (let row = 0; row < rows; row++) positions.push(start + before + row);
    pieceRows.push(positions.length);
    pieceSegments.push(counts.length);
  }
  const blockCount = blockIds.length;
  const rows = new Int32Array(positions.length);
  return {
    tokenIds: rows,
    positions: Int32Array.from(positions),
    slots: rows,
    pieceRows: Int32Array.from(pieceRows),
    pieceSegments: Int32Array.from(pieceSegments),
    segmentBlockStarts: Int32Array.from(starts),
    segmentFirstTokens: Int32Array.from(firsts),
    segmentTokenCounts: Int32Array.from(counts),
    segmentOffsets: Int32Array.from(offsets),
    blockIds: Int32Array.from(random.shuffle(blockIds)),
    logitRows: new Int32Array(0),
    blockCount,
  };
}

/** (cos, sin) rows from -context to 2 * context, and the row of position 0. */
export function putTurns(twin: KernelTwin, rotaryDim: number): DeviceBuffer {
  const half = rotaryDim / 2;
  const table = new Float32Array(3 * contextTokens * half * 2);
  for (let n = 0; n < 3 * contextTokens; n++) {
    for (let i = 0; i < half; i++) {
      const angle = (n - contextTokens) * 10_000 ** (-i / half);
      table[2 * (n * half + i)] = Math.cos(angle);
      table[2 * (n * half + i) + 1] = Math.sin(angle);
    }
  }
  const buffer = twin.put("turns", table);
  return buffer.slice(contextTokens * half * 8);
}

/**
 * Rounding of the turned q to bfloat16 moves a score of unit operands by about 2^-9, rounding of a weight moves it by
 * as much; four sigma of both, for values of unit scale.
 */
const attentionError = 0.015;

/** @param turn positions that the twin turns every query of the first slice too far: a check that cannot fail is none */
export async function checkAttention(
  device: CudaDevice,
  random: Random,
  shape: AttentionCase,
  turn = 0,
): Promise<string> {
  const { headDim, rotaryDim, queryHeads, kvHeads, blockTokens } = shape;
  const batch = randomBatch(random, shape);
  const rowCount = batch.positions.length;
  const plan = {
    ...workShapeOf({ headCount: queryHeads, kvHeadCount: kvHeads }, 1, blockTokens),
    itemTarget: shape.itemTarget,
  };
  const planShape = { ...plan, few: { ...plan.few, minPartTokens: 16 }, many: { ...plan.many, minPartTokens: 48 } };
  const lists = new WorkPlanner(planShape).plan(batch);
  const twin = new KernelTwin(device, 48 << 20, headDim);
  const width = (queryHeads + 2 * kvHeads) * headDim;
  const normals = (count: number) => random.normals(count, Number.POSITIVE_INFINITY);
  const qkv = twin.putBfloat16("qkv", normals(rowCount * width));
  const pool = twin.putBfloat16("pool", normals(batch.blockCount * kvHeads * 2 * blockTokens * headDim));
  const turns = putTurns(twin, rotaryDim);
  const out = twin.space("out", rowCount * queryHeads * headDim * 2);
  const partialOut = twin.space("partial results", lists.partialCount * queryHeads * headDim * 4 + 4);
  const partialSums = twin.space("partial sums", lists.partialCount * queryHeads * 4 + 4);
  const [slices, blockIds, positions] = [lists.slices, batch.blockIds, batch.positions].map((list) =>
    twin.put("list", list),
  );
  const launches = [
    ["attention_decode", lists.fewItems, 7],
    ["attention_prefill", lists.manyItems, kvHeads * (lists.manyItems.length / itemWords)],
  ] as const;
  const prepared = launches.map(([name, items, blocks]) => ({
    name,
    blocks,
    items: twin.put("items", items),
    count: twin.put("count", Int32Array.of(items.length / itemWords)),
    isNeeded: items.length > 0,
  }));
  const merges = twin.put("merges", lists.merges);
  const mergeCount = twin.put("merge count", Int32Array.of(lists.merges.length / mergeWords));
  twin.upload();
  twin.memory.int32(slices)[offsetOfSlice] -= turn;
  const scale = Math.LOG2E / Math.sqrt(headDim);
  for (const { name, items, count, blocks, isNeeded } of prepared) {
    if (!isNeeded) continue;
    const lists = [qkv, pool, turns, items, slices, blockIds, positions, count];
    const values = [...lists, queryHeads, kvHeads, rotaryDim, blockTokens, scale, out, partialOut, partialSums];
    device.allowSharedBytes(name, attentionSharedBytes(headDim));
    twin.launch(name, values, { grid: [blocks], blockThreads: threads, sharedBytes: attentionSharedBytes(headDim) });
  }
  if (lists.merges.length > 0) {
    const grid = [lists.merges.length / mergeWords, Math.ceil(queryHeads / 4)] as const;
    const values = [partialOut, partialSums, merges, mergeCount, queryHeads, headDim, out];
    twin.launch("merge_partials", values, { grid, blockThreads: threads });
  }
  const words = await twin.compare([
    { buffer: out, type: "bfloat16", relative: bfloat16Step, absolute: attentionError },
    { buffer: partialOut, type: "float32", relative: bfloat16Step, absolute: attentionError },
    { buffer: partialSums, type: "float32", relative: 0, absolute: attentionError },
  ]);
  return `${rowCount} rows, ${lists.merges.length / mergeWords} merged: ${words}`;
}

/** Head sizes with full and partial rotation, group sizes that divide no tile, blocks of 4 to 64 tokens. */
export function attentionCases(headDim: number): AttentionCase[] {
  const decode = [1, 1, 1, 1, 1].map((rows, i) => [rows, 17 * i * i, i] as const);
  return [
    { headDim, rotaryDim: headDim, queryHeads: 8, kvHeads: 2, blockTokens: 16, pieces: decode, itemTarget: 1 },
    { headDim, rotaryDim: headDim, queryHeads: 7, kvHeads: 1, blockTokens: 64, pieces: decode, itemTarget: 40 },
    {
      headDim,
      rotaryDim: 8 * Math.floor(headDim / 16),
      queryHeads: 3,
      kvHeads: 3,
      blockTokens: 4,
      pieces: [
        [70, 0, 0],
        [1, 40, 2],
        [17, 30, 1],
      ],
      itemTarget: 1,
    },
    {
      headDim,
      rotaryDim: headDim,
      queryHeads: 8,
      kvHeads: 2,
      blockTokens: 16,
      pieces: [
        [45, 60, 2],
        [3, 5, 1],
        [1, 90, 3],
      ],
      itemTarget: 12,
    },
    {
      headDim,
      rotaryDim: 0,
      queryHeads: 5,
      kvHeads: 1,
      blockTokens: 32,
      pieces: [
        [30, 9, 1],
        [2, 3, 0],
      ],
      itemTarget: 1,
    },
  ];
}
