/** A plan's items, partial results and merges against attention written down from the batch alone, in float64. */
import { expect, test } from "bun:test";
import { planItemWords } from "../../../worker/attention/plan-format.ts";
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

/** Softmax over all that a row sees, by the contract of `Batch`. */
function expected(tensors: Tensors, batch: Batch, row: number, head: number): Float64Array {
  const piece = batch.pieceRows.findIndex((first, p) => first <= row && row < batch.pieceRows[p + 1]);
  const last = batch.pieceSegments[piece + 1] - 1;
  const out = new Float64Array(headDim);
  let total = 0;
  for (let s = batch.pieceSegments[piece]; s <= last; s++) {
    const hidden = s === last ? batch.pieceRows[piece + 1] - 1 - row : 0;
    for (let i = 0; i < batch.segmentTokenCounts[s] - hidden; i++) {
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
function attend(tensors: Tensors, batch: Batch, heads: Heads, choices: Choices) {
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
  const plan = planner.plan(batch);
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
    emulate(memory, name, [...inputs, count, ...numbers, out, partialOut, partialSums, arrivals], [1]);
  }
  const results = memory.bfloat16(out).row(0, rowCount * queryHeads * headDim);
  return { plan, results, left: memory.int32(arrivals) };
}

test("random steps: every row gets the softmax over what it sees, and no counter stays behind", () => {
  let merged = 0;
  for (let seed = 0; seed < 14; seed++) {
    const choices = new Choices(seed);
    const kvHeads = choices.int(1, 2);
    const heads = { kvHeads, queryHeads: kvHeads * choices.pick([1, 3, 4, 20]) };
    const sizes = { blockTokens, documents: 3, maxBlocks: choices.pick([2, 60]), maxRows: 90, maxSegments: 3 };
    const batch = batchOf(randomPieces(choices, { ...sizes, pieces: choices.int(1, 8) }));
    const tensors = new Tensors(choices, heads, batch.tokenIds.length);
    const { plan, results, left } = attend(tensors, batch, heads, choices);
    merged += plan.merges.length;
    for (let row = 0; row < batch.tokenIds.length; row += choices.int(1, 5)) {
      const head = choices.int(0, heads.queryHeads - 1);
      const own = results.subarray((row * heads.queryHeads + head) * headDim).subarray(0, headDim);
      const values = expected(tensors, batch, row, head);
      for (let d = 0; d < headDim; d++) {
        const error = Math.abs(own[d] - values[d]);
        if (!(error <= 2 ** -8 * Math.abs(values[d]) + 1e-3)) throw new Error(`seed ${seed}, row ${row}: ${error}`);
      }
    }
    expect(left.some((count) => count !== 0)).toBe(false);
  }
  expect(merged).toBeGreaterThan(0);
}, 30_000);
