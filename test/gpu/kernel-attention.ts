/**
 * Attention on the device against its twin: random steps of pieces, segments and offsets, whole and split over tokens.
 */

import { WindowCutter } from "../../worker/attention/batches/windowed.ts";
import { planItemWords } from "../../worker/attention/plan-format.ts";
import { PackPlanner } from "../../worker/attention/planner.ts";
import { launchesOf } from "../../worker/backend/cuda/attention.ts";
import type { DeviceBuffer } from "../../worker/backend/cuda/device/device.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import type { Random } from "../native/random.ts";
import { bfloat16Step, KernelTwin } from "./kernel-twin.ts";

const contextTokens = 2_048;
export interface AttentionCase {
  readonly headDim: number;
  readonly rotaryDim: number;
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly blockTokens: number;
  /** [rows, tokens of its own before them, seen segments] of each piece. */
  readonly pieces: readonly (readonly [rows: number, before: number, segments: number])[];
  /** That the plan is made for; 1: little is split. */
  readonly multiprocessorCount: number;
  /** Of layers that slide. */
  readonly windowTokens?: number;
  /** Whether heads have sinks. */
  readonly hasSinks?: boolean;
  /** For which the device's kernels are compiled. */
  readonly scoreCap?: number | undefined;
}

/**
 * A step whose segments lie in blocks scattered over the pool, begin inside blocks, and have offsets of both signs;
 * some are of the same blocks as one before.
 */
function randomBatch(random: Random, { pieces, blockTokens }: AttentionCase): Batch & { blockCount: number } {
  const [pieceRows, pieceSegments] = [[0], [0]];
  const [starts, firsts, counts, offsets, blockIds, positions]: number[][] = [[], [], [], [], [], []];
  /** Of each segment's first token: it stands there in the prompts of all who read it. */
  const segmentPositions: number[] = [];
  let blockCount = 0;
  const add = (first: number, count: number, offset: number): void => {
    starts.push(blockIds.length);
    firsts.push(first);
    counts.push(count);
    offsets.push(offset);
    for (let i = 0; i < Math.ceil((first + count) / blockTokens); i++) blockIds.push(blockCount++);
  };
  /** Another piece's segment again, at an offset of this one's. */
  const share = (offset: number): void => {
    const s = random.integer(0, counts.length - 1);
    const blocks = Math.ceil((firsts[s] + counts[s]) / blockTokens);
    for (const list of [firsts, counts]) list.push(list[s]);
    offsets.push(offset);
    starts.push(blockIds.length);
    blockIds.push(...blockIds.slice(starts[s], starts[s] + blocks));
  };
  for (const [rows, before, segments] of pieces) {
    const start = random.integer(0, contextTokens - before - rows);
    for (let s = 0; s < segments; s++) {
      const offset = random.integer(-contextTokens + 1, start);
      if (counts.length > 0 && random.integer(0, 1) === 0) share(offset);
      else add(random.integer(0, blockTokens - 1), random.integer(1, 90), offset);
    }
    for (let s = segmentPositions.length; s < counts.length; s++) {
      segmentPositions.push(start - counts[s] - random.integer(0, 30) - offsets[s]);
    }
    add(0, before + rows, 0);
    segmentPositions.push(start);
    for (let row = 0; row < rows; row++) positions.push(start + before + row);
    pieceRows.push(positions.length);
    pieceSegments.push(counts.length);
  }
  const places = random.shuffle(Array.from({ length: blockCount }, (_, id) => id));
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
    segmentPositions: Int32Array.from(segmentPositions),
    blockIds: Int32Array.from(blockIds, (id) => places[id]),
    logitRows: new Int32Array(0),
    blockCount,
  };
}

/** (cos, sin) rows from -context to 2 * context, and the row of position 0. */
export function putRotations(twin: KernelTwin, rotaryDim: number): DeviceBuffer {
  const half = rotaryDim / 2;
  const table = new Float32Array(3 * contextTokens * half * 2);
  for (let n = 0; n < 3 * contextTokens; n++) {
    for (let i = 0; i < half; i++) {
      const angle = (n - contextTokens) * 10_000 ** (-i / half);
      table[2 * (n * half + i)] = Math.cos(angle);
      table[2 * (n * half + i) + 1] = Math.sin(angle);
    }
  }
  const buffer = twin.put("rotations", table);
  return buffer.slice(contextTokens * half * 8);
}

/**
 * Rounding of the rotated q to bfloat16 moves a score of unit operands by about 2^-9, rounding of a weight moves it by
 * as much; four sigma of both, for values of unit scale.
 */
const attentionError = 0.015;

/**
 * @param rotation positions that the twin rotates every query of the first slice too far: a check that cannot fail is none
 */
export async function checkAttention(
  device: CudaDevice,
  random: Random,
  shape: AttentionCase,
  rotation = 0,
): Promise<string> {
  const { headDim, rotaryDim, queryHeads, kvHeads, blockTokens } = shape;
  const batch = randomBatch(random, shape);
  const rowCount = batch.positions.length;
  const { small, large, largeKernel } = launchesOf(device, headDim);
  const planner = new PackPlanner({
    group: queryHeads / kvHeads,
    kvHeads,
    headDim,
    blockTokens,
    multiprocessorCount: shape.multiprocessorCount,
    hasWarpgroups: false,
    packing: true,
    maxPartialRows: 4_096,
  });
  const { windowTokens, scoreCap, hasSinks } = shape;
  const cut = windowTokens && new WindowCutter({ windowTokens, blockTokens, fewRows: planner.fewRows }).cut(batch);
  const plan = planner.plan(cut || batch);
  const twin = new KernelTwin(device, 48 << 20, headDim);
  twin.memory.scoreCap = scoreCap;
  const width = (queryHeads + 2 * kvHeads) * headDim;
  const normals = (count: number) => random.normals(count, Number.POSITIVE_INFINITY);
  const qkv = twin.putBfloat16("qkv", normals(rowCount * width));
  const pool = twin.putBfloat16("pool", normals(batch.blockCount * kvHeads * 2 * blockTokens * headDim));
  const rotations = putRotations(twin, rotaryDim);
  const out = twin.space("out", rowCount * queryHeads * headDim * 2);
  const partialOut = twin.space("partial results", plan.partialCount * queryHeads * headDim * 4 + 4);
  const partialSums = twin.space("partial sums", plan.partialCount * queryHeads * 4 + 4);
  const arrivals = twin.put("arrivals", new Int32Array(rowCount * queryHeads));
  // Some heads give their sink nearly all of what they see, some nearly nothing.
  const sinks = hasSinks
    ? twin.putBfloat16(
        "sinks",
        random.normals(queryHeads).map((x) => 4 * x),
      )
    : null;
  const lists = [batch.positions, plan.rows, plan.slices, plan.offsets, batch.blockIds, plan.merges];
  const [positions, rows, slices, offsets, blockIds, merges] = lists.map((list) => twin.put("list", list));
  const kernels = [
    { name: largeKernel, items: plan.largeItems, size: large },
    { name: "attention_packed", items: plan.smallItems, size: { ...small, grid: [7] } },
  ] as const;
  const prepared = kernels.map(({ name, items, size }) => {
    // Each block of the packed kernel reads an item before it knows how many there are.
    const room = new Int32Array(items.length + 8 * 8);
    room.set(items);
    const count = twin.put("count", Int32Array.of(items.length / planItemWords));
    return { name, size, items: twin.put("items", room), count, isNeeded: items.length > 0 };
  });
  twin.upload();
  twin.memory.int32(offsets)[0] -= rotation;
  const scale = Math.LOG2E / Math.sqrt(headDim);
  for (const { name, items, count, size, isNeeded } of prepared) {
    if (!isNeeded) continue;
    const inputs = [qkv, pool, rotations, positions, rows, items, slices, offsets, blockIds, merges, count];
    const numbers = [queryHeads, kvHeads, rotaryDim, blockTokens, scale];
    device.allowSharedBytes(name, size.sharedBytes ?? 0);
    twin.launch(name, [...inputs, ...numbers, out, partialOut, partialSums, arrivals, sinks], size);
  }
  const words = await twin.compare([
    { buffer: out, type: "bfloat16", relative: bfloat16Step, absolute: attentionError },
    { buffer: partialOut, type: "float32", relative: bfloat16Step, absolute: attentionError },
    { buffer: partialSums, type: "float32", relative: 0, absolute: attentionError },
  ]);
  return `${rowCount} rows, ${plan.partialCount} partial: ${words}`;
}

/** Head sizes with full and partial rotation, group sizes that divide no tile, blocks of 4 to 64 tokens. */
export function attentionCases(headDim: number): AttentionCase[] {
  const decode = [1, 1, 1, 1, 1].map((rows, i) => [rows, 17 * i * i, i] as const);
  return [
    { headDim, rotaryDim: headDim, queryHeads: 8, kvHeads: 2, blockTokens: 16, pieces: decode, multiprocessorCount: 1 },
    {
      headDim,
      rotaryDim: headDim,
      queryHeads: 7,
      kvHeads: 1,
      blockTokens: 64,
      pieces: decode,
      multiprocessorCount: 40,
    },
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
      multiprocessorCount: 1,
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
      multiprocessorCount: 24,
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
      multiprocessorCount: 1,
    },
  ];
}
