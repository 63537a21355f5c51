/** A plan's items, partial results and merges against attention written down from the batch alone, in float64. */
import { expect, test } from "bun:test";
import { WindowCutter } from "../../../worker/attention/batches/windowed.ts";
import { planItemWords, planSlice, planSliceWords } from "../../../worker/attention/plan-format.ts";
import { PackPlanner } from "../../../worker/attention/planner.ts";
import type { DeviceBuffer } from "../../../worker/backend/cuda/device/device.ts";
import type { Batch } from "../../../worker/contract/batch.ts";
import { batchOf, randomPieces } from "../../attention/world.ts";
import { Choices } from "../../sim/random.ts";
import { emulate } from "./emulated-kernels.ts";
import { EmulatedMemory } from "./emulated-memory.ts";

const headDim = 8;
const blockTokens = 4;
const scale = 0.5;
const poolBlocks = 8_192;
const contextTokens = 2_048;

interface Heads {
  readonly queryHeads: number;
  readonly kvHeads: number;
}

/** Everything that the kernels take, drawn at random. */
class Tensors {
  readonly memory = new EmulatedMemory(48 << 20);
  readonly qkv: DeviceBuffer;
  readonly pool: DeviceBuffer;
  readonly rotations: DeviceBuffer;
  /** Of some steps' heads. */
  readonly sinks: DeviceBuffer | null;
  private readonly heads: Heads;

  constructor(choices: Choices, heads: Heads, rowCount: number) {
    this.heads = heads;
    this.memory.headDim = headDim;
    const random = (count: number) => Float32Array.from({ length: count }, () => 4 * choices.next() - 2);
    this.qkv = this.putBfloat16("qkv", random(rowCount * (heads.queryHeads + 2 * heads.kvHeads) * headDim));
    // The pool repeats: what matters is which of its rows are read.
    const part = random(1_009);
    const poolCount = poolBlocks * heads.kvHeads * 2 * blockTokens * headDim;
    this.pool = this.putBfloat16(
      "pool",
      Float32Array.from({ length: poolCount }, (_, i) => part[i % part.length]),
    );
    const table = new Float32Array(3 * contextTokens * headDim);
    for (let i = 0; i < table.length; i += 2) {
      const [position, pair] = [Math.floor(i / headDim) - contextTokens, (i % headDim) / 2];
      [table[i], table[i + 1]] = [Math.cos(position * 10 ** -pair), Math.sin(position * 10 ** -pair)];
    }
    this.rotations = this.put("rotations", table).slice(contextTokens * headDim * 4);
    this.sinks = choices.chance(0.5) ? this.putBfloat16("sinks", random(heads.queryHeads)) : null;
  }

  /** What a head's sink adds to the sum of a row's weights. */
  sinkWeight(head: number): number {
    return this.sinks === null ? 0 : Math.exp(this.memory.bfloat16(this.sinks).get(head));
  }

  put(name: string, values: Int32Array | Float32Array): DeviceBuffer {
    const buffer = this.memory.allocate(name, values.byteLength);
    this.memory.uint8(buffer).set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
    return buffer;
  }

  private putBfloat16(name: string, values: Float32Array): DeviceBuffer {
    const buffer = this.memory.allocate(name, values.length * 2);
    this.memory.bfloat16(buffer).setRow(0, values);
    return buffer;
  }

  /** [headDim] of what one row sees of a token: its score and V. */
  token(row: number, head: number, position: number, slot: number): { score: number; value: Float32Array } {
    const { queryHeads, kvHeads } = this.heads;
    const q = this.memory.bfloat16(this.qkv).row((row * (queryHeads + 2 * kvHeads) + head) * headDim, headDim);
    const kvHead = Math.floor(head / (queryHeads / kvHeads));
    const block = Math.floor(slot / blockTokens) * kvHeads + kvHead;
    const at = (block * 2 * blockTokens + (slot % blockTokens)) * headDim;
    const pool = this.memory.bfloat16(this.pool);
    const [k, value] = [pool.row(at, headDim), pool.row(at + blockTokens * headDim, headDim)];
    let score = 0;
    for (let i = 0; i < headDim / 2; i++) {
      const angle = position * 10 ** -i;
      const [x, y] = [q[i], q[i + headDim / 2]];
      score += (x * Math.cos(angle) - y * Math.sin(angle)) * k[i];
      score += (y * Math.cos(angle) + x * Math.sin(angle)) * k[i + headDim / 2];
    }
    return { score: score * scale, value };
  }
}

/**
 * The same step with places of its segments: each row's own run ends at the row's position, and other segments end before
 * that of the piece's first row.
 */
function placed(choices: Choices, batch: Batch): Batch {
  const { pieceRows, pieceSegments, positions, segmentTokenCounts, segmentOffsets } = batch;
  const starts: number[] = [];
  for (let piece = 0; piece + 1 < pieceRows.length; piece++) {
    const [first, last] = [positions[pieceRows[piece]], pieceSegments[piece + 1] - 1];
    for (let s = pieceSegments[piece]; s < last; s++) starts.push(first - segmentTokenCounts[s] - choices.int(0, 40));
    starts.push(positions[pieceRows[piece + 1] - 1] + 1 - segmentTokenCounts[last]);
  }
  return { ...batch, segmentPositions: Int32Array.from(starts, (start, s) => start - segmentOffsets[s]) };
}

/** Softmax over all that a row sees, by the contract of `Batch`, within a window where there is one. */
function expected(tensors: Tensors, batch: Batch, row: number, head: number, windowTokens: number): Float64Array {
  const piece = batch.pieceRows.findIndex((first, p) => first <= row && row < batch.pieceRows[p + 1]);
  const last = batch.pieceSegments[piece + 1] - 1;
  const out = new Float64Array(headDim);
  let total = tensors.sinkWeight(head);
  for (let s = batch.pieceSegments[piece]; s <= last; s++) {
    const hidden = s === last ? batch.pieceRows[piece + 1] - 1 - row : 0;
    const start = (batch.segmentPositions?.[s] ?? 0) + batch.segmentOffsets[s];
    for (let i = 0; i < batch.segmentTokenCounts[s] - hidden; i++) {
      if (batch.positions[row] - (start + i) >= windowTokens) continue;
      const token = batch.segmentFirstTokens[s] + i;
      const block = batch.blockIds[batch.segmentBlockStarts[s] + Math.floor(token / blockTokens)];
      const slot = block * blockTokens + (token % blockTokens);
      const { score, value } = tensors.token(row, head, batch.positions[row] - batch.segmentOffsets[s], slot);
      const weight = 2 ** score;
      total += weight;
      for (let d = 0; d < headDim; d++) out[d] += weight * value[d];
    }
  }
  return out.map((value) => value / total);
}

/** Runs a plan of the batch; answers [rows * queryHeads * headDim], and the counters that arrivals leave behind. */
function attend(tensors: Tensors, batch: Batch, heads: Heads, choices: Choices, windowTokens: number) {
  const { queryHeads, kvHeads } = heads;
  const { memory } = tensors;
  const planner = new PackPlanner({
    ...heads,
    group: queryHeads / kvHeads,
    headDim,
    blockTokens,
    multiprocessorCount: choices.pick([1, 16]),
    hasWarpgroups: false,
    packing: choices.chance(0.8),
    maxPartialRows: 1_000,
  });
  const cutter = new WindowCutter({ windowTokens, blockTokens, fewRows: planner.fewRows });
  const plan = planner.plan(windowTokens === Number.POSITIVE_INFINITY ? batch : cutter.cut(batch));
  const rowCount = batch.tokenIds.length;
  const lists = [batch.positions, plan.rows, plan.slices, plan.offsets, batch.blockIds, plan.merges];
  const [positions, rows, slices, offsets, blockIds, merges] = lists.map((list) => tensors.put("list", list));
  const out = memory.allocate("out", rowCount * queryHeads * headDim * 2);
  const partialOut = memory.allocate("partial results", plan.partialCount * queryHeads * headDim * 4);
  const partialSums = memory.allocate("partial sums", plan.partialCount * queryHeads * 4);
  const arrivals = tensors.put("arrivals", new Int32Array(rowCount * queryHeads));
  for (const [name, list] of [
    ["attention_tiles", plan.largeItems],
    ["attention_packed", plan.smallItems],
  ] as const) {
    const [items, count] = [list, Int32Array.of(list.length / planItemWords)].map((ints) => tensors.put("items", ints));
    const inputs = [
      tensors.qkv,
      tensors.pool,
      tensors.rotations,
      positions,
      rows,
      items,
      slices,
      offsets,
      blockIds,
      merges,
    ];
    const numbers = [queryHeads, kvHeads, headDim, blockTokens, scale];
    emulate(memory, name, [...inputs, count, ...numbers, out, partialOut, partialSums, arrivals, tensors.sinks], [1]);
  }
  const results = memory.bfloat16(out).row(0, rowCount * queryHeads * headDim);
  return { plan, results, left: memory.int32(arrivals) };
}

/** @param windowOf how many tokens a window has @returns rows that several items hold, and slices with a late beginning */
function checkRandomSteps(seeds: number, windowOf: (choices: Choices) => number) {
  let [merged, late] = [0, 0];
  for (let seed = 0; seed < seeds; seed++) {
    const choices = new Choices(seed);
    const kvHeads = choices.int(1, 2);
    const heads = { kvHeads, queryHeads: kvHeads * choices.pick([1, 3, 4, 20]) };
    const sizes = { blockTokens, documents: 3, maxBlocks: choices.pick([2, 60]), maxRows: 90, maxSegments: 3 };
    const batch = placed(choices, batchOf(randomPieces(choices, { ...sizes, pieces: choices.int(1, 8) })));
    const tensors = new Tensors(choices, heads, batch.tokenIds.length);
    const windowTokens = windowOf(choices);
    const { plan, results, left } = attend(tensors, batch, heads, choices, windowTokens);
    merged += plan.merges.length;
    for (let at = planSlice.rowCount; at < plan.slices.length; at += planSliceWords) late += plan.slices[at] >> 16;
    for (let row = 0; row < batch.tokenIds.length; row += choices.int(1, 5)) {
      const head = choices.int(0, heads.queryHeads - 1);
      const own = results.subarray((row * heads.queryHeads + head) * headDim).subarray(0, headDim);
      const values = expected(tensors, batch, row, head, windowTokens);
      for (let d = 0; d < headDim; d++) {
        const error = Math.abs(own[d] - values[d]);
        if (!(error <= 2 ** -8 * Math.abs(values[d]) + 1e-3)) throw new Error(`seed ${seed}, row ${row}: ${error}`);
      }
    }
    expect(left.some((count) => count !== 0)).toBe(false);
  }
  return { merged, late };
}

test("random steps: every row gets the softmax over what it sees, and no counter stays behind", () => {
  const { merged, late } = checkRandomSteps(14, () => Number.POSITIVE_INFINITY);
  expect(merged).toBeGreaterThan(0);
  expect(late).toBe(0);
}, 60_000);

test("rows of one long piece lose a token each, wherever the window, an item and a part of it begin", () => {
  const choices = new Choices(4);
  const heads = { kvHeads: 1, queryHeads: 20 };
  for (let windowTokens = 1; windowTokens < 44; windowTokens++) {
    // Items of eight rows, of which the last is not whole, over a span and a run; of a long span they are cut in parts.
    const tokens = windowTokens < 40 ? 17 : 1_300;
    const width = windowTokens < 40 ? windowTokens : 1_200 + windowTokens;
    const blocks = Array.from({ length: Math.ceil((tokens + 2) / blockTokens) }, (_, i) => 400 - i);
    const span = { blockIds: blocks, firstToken: 2, tokens, offset: 5 };
    const own = { blockIds: Array.from({ length: 11 }, (_, i) => 20 + i), firstToken: 0, tokens: 41, offset: 0 };
    const batch = placed(choices, batchOf([{ rowCount: 30, segments: [span, own] }]));
    const tensors = new Tensors(choices, heads, batch.tokenIds.length);
    const { results } = attend(tensors, batch, heads, choices, width);
    for (let row = 0; row < batch.tokenIds.length; row++) {
      const values = expected(tensors, batch, row, 3, width);
      const found = results.subarray((row * heads.queryHeads + 3) * headDim).subarray(0, headDim);
      const error = Math.max(...values.map((value, d) => Math.abs(found[d] - value)));
      if (!(error <= 0.02)) throw new Error(`window ${windowTokens}, row ${row}: ${error}`);
    }
  }
}, 60_000);

test("random steps of layers that slide: every row sees the last tokens of its own prompt", () => {
  const { merged, late } = checkRandomSteps(20, (choices) => choices.pick([1, 2, 7, 16, 50, 120, 600]));
  expect(merged).toBeGreaterThan(0);
  expect(late).toBeGreaterThan(0);
}, 60_000);
