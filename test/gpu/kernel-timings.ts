/**
 * How long kernels take in the shapes of an 8B model (32 query heads, 8 KV heads of 128, hidden 4,096), beside the
 * least that the device can do: bytes over its copy rate, operations over its rate of matrix products. Each is
 * recorded as a graph of launches over as many inputs as do not fit into the cache, and the median of its runs counts.
 */
import { planItemWords } from "../../worker/attention/plan-format.ts";
import { PackPlanner } from "../../worker/attention/planner.ts";
import { launchesOf } from "../../worker/backend/cuda/attention.ts";
import type { DeviceBuffer } from "../../worker/backend/cuda/device/device.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import { CudaEvent } from "../../worker/native/cuda/event.ts";
import { batchOf, type PieceSpec } from "../attention/world.ts";
import type { Random } from "../native/random.ts";
import { copyOnDevice, millisecondsBetween } from "./driver-calls.ts";

export const model = {
  queryHeads: 32,
  kvHeads: 8,
  headDim: 128,
  hidden: 4096,
  ffn: 12_288,
  vocabSize: 151_936,
} as const;
const blockTokens = 64;
const poolTokens = 131_072;
const tokenBytes = 2 * model.kvHeads * model.headDim * 2;

export interface Rates {
  readonly bytesPerSecond: number;
  readonly flopPerSecond: number;
}

export interface Timing {
  readonly name: string;
  readonly microseconds: number;
  readonly floorMicroseconds: number;
  /** What the floor is made of. */
  readonly bound: "bytes" | "operations";
}

export class KernelTimer {
  readonly timings: Timing[] = [];
  readonly device: CudaDevice;
  readonly rates: Rates;
  private readonly start: CudaEvent;
  private readonly end: CudaEvent;

  constructor(device: CudaDevice, rates: Rates) {
    this.device = device;
    this.rates = rates;
    this.start = new CudaEvent(device.context, { timing: true });
    this.end = new CudaEvent(device.context, { timing: true });
  }

  /** Median milliseconds of a recorded run of `count` launches, divided by it. */
  async milliseconds(count: number, put: (index: number) => void, rounds = 9): Promise<number> {
    put(0);
    const graph = this.device.capture(() => {
      for (let i = 0; i < count; i++) put(i);
    });
    graph.launch();
    const times: number[] = [];
    for (let round = 0; round < rounds; round++) {
      this.device.stream.record(this.start);
      graph.launch();
      this.device.stream.record(this.end);
      await this.end.completion();
      times.push(millisecondsBetween(this.start, this.end) / count);
    }
    graph.close();
    return times.sort((a, b) => a - b)[rounds >> 1];
  }

  async time(name: string, cost: { bytes: number; flop: number }, count: number, put: (index: number) => void) {
    const microseconds = 1000 * (await this.milliseconds(count, put));
    const byBytes = (cost.bytes / this.rates.bytesPerSecond) * 1e6;
    const byFlop = (cost.flop / this.rates.flopPerSecond) * 1e6;
    const floorMicroseconds = Math.max(byBytes, byFlop);
    this.timings.push({ name, microseconds, floorMicroseconds, bound: byBytes >= byFlop ? "bytes" : "operations" });
  }
}

/** Random bfloat16 or float32 all over a buffer: a few megabytes drawn, the rest copied from them. */
export function fillRandom(
  device: CudaDevice,
  random: Random,
  target: DeviceBuffer,
  type: "bfloat16" | "float32",
): void {
  const count = 1 << 21;
  const normals = random.normals(count, Number.POSITIVE_INFINITY);
  const words = type === "float32" ? normals : Uint16Array.from(new Uint32Array(normals.buffer), (bits) => bits >>> 16);
  const bytes = new Uint8Array(words.buffer, 0, Math.min(words.byteLength, target.byteLength));
  const staging = device.allocateHost("random", bytes.byteLength);
  staging.set(bytes);
  device.copyIn(target.slice(0, bytes.byteLength), staging);
  for (let done = bytes.byteLength; done < target.byteLength; ) {
    const size = Math.min(done, target.byteLength - done);
    copyOnDevice(device.stream, target.slice(done, size), target.slice(0, size));
    done += size;
  }
}

interface Piece {
  readonly rows: number;
  /** Tokens of its own run, its rows the last of them. */
  readonly tokens: number;
  /** Token counts of the segments that it sees whole. */
  readonly sees: readonly number[];
}

/** Pieces over blocks that no two share. */
function timedBatch(pieces: readonly Piece[]): Batch & { tokensRead: number; pairs: number } {
  let [blockCount, tokensRead, pairs] = [0, 0, 0];
  const specs = pieces.map(({ rows: rowCount, tokens, sees }): PieceSpec => {
    const segments = [...sees, tokens].map((count) => {
      const first = blockCount;
      blockCount += Math.ceil(count / blockTokens);
      tokensRead += count;
      pairs += rowCount * count;
      const blockIds = Array.from({ length: blockCount - first }, (_, block) => first + block);
      return { blockIds, firstToken: 0, tokens: count, offset: 0 };
    });
    pairs -= (rowCount * (rowCount - 1)) / 2;
    return { rowCount, segments };
  });
  return { ...batchOf(specs), tokensRead, pairs };
}

const repeat = <Value>(count: number, value: Value): Value[] => Array.from({ length: count }, () => value);
const documents = repeat(32, 2_857);

const steps: readonly (readonly [name: string, pieces: readonly Piece[]])[] = [
  ["prefill 1,024", [{ rows: 1_024, tokens: 1_024, sees: [] }]],
  ["prefill 8,192", [{ rows: 8_192, tokens: 8_192, sees: [] }]],
  ["prefill 64 over 32 documents", [{ rows: 64, tokens: 64, sees: documents }]],
  ["decode 1 at 1,024", [{ rows: 1, tokens: 1_024, sees: [] }]],
  ["decode 1 at 32,768", [{ rows: 1, tokens: 32_768, sees: [] }]],
  ["decode 1 over 32 documents", [{ rows: 1, tokens: 64, sees: documents }]],
  ["decode 8 at 1,024", repeat(8, { rows: 1, tokens: 1_024, sees: [] })],
  ["decode 40 at 1,024", repeat(40, { rows: 1, tokens: 1_024, sees: [] })],
  ["decode 64 at 1,024", repeat(64, { rows: 1, tokens: 1_024, sees: [] })],
];

export async function timeAttention(timer: KernelTimer, random: Random): Promise<void> {
  const { device } = timer;
  const { queryHeads, kvHeads, headDim } = model;
  const space = (name: string, bytes: number) => device.allocate(name, bytes);
  const pool = space("pool", poolTokens * tokenBytes);
  const qkv = space("qkv", 8_192 * (queryHeads + 2 * kvHeads) * headDim * 2);
  for (const buffer of [pool, qkv]) fillRandom(device, random, buffer, "bfloat16");
  const frequencies = putInts(
    device,
    new Int32Array(Float32Array.from({ length: 64 }, (_, i) => 1e6 ** (-i / 64)).buffer),
  );
  const factor = new Uint8Array(Float64Array.of(1).buffer);
  const rotations = space("rotations", 32_768 * headDim * 4);
  const fill = device.prepare("fill_rope_table", frequencies, headDim / 2, 0, 32_768, factor, rotations);
  fill({ grid: [264], blockThreads: 256 });
  const out = space("out", 8_192 * queryHeads * headDim * 2);
  const { small, large, largeKernel } = launchesOf(device, headDim);
  const planner = new PackPlanner({
    group: queryHeads / kvHeads,
    kvHeads,
    headDim,
    blockTokens,
    multiprocessorCount: device.multiprocessorCount,
    hasWarpgroups: false,
    packing: true,
    maxPartialRows: 4_096,
  });
  const partialOut = space("partial results", 4_096 * queryHeads * headDim * 4);
  const partialSums = space("partial sums", 4_096 * queryHeads * 4);
  const arrivals = putInts(device, new Int32Array(8_192 * kvHeads));
  for (const [name, { sharedBytes = 0 }] of [
    ["attention_packed", small],
    [largeKernel, large],
  ] as const) {
    device.allowSharedBytes(name, sharedBytes);
  }
  for (const [name, pieces] of steps) {
    const batch = timedBatch(pieces);
    const plan = planner.plan(batch);
    const usedBlocks = batch.blockIds.length;
    const copies = Math.max(1, Math.min(16, Math.floor(poolTokens / blockTokens / usedBlocks)));
    const lists = [batch.positions, plan.rows, plan.slices, plan.offsets, batch.blockIds, plan.merges];
    const [positions, rows, slices, offsets, ids, merges] = lists.map((list) => putInts(device, list));
    const kvOf = (copy: number) => pool.slice(copy * usedBlocks * blockTokens * tokenBytes);
    const scale = Math.LOG2E / Math.sqrt(headDim);
    const prepare = (kernel: "attention_packed" | typeof largeKernel, list: Int32Array) => {
      // Each block of the packed kernel reads an item before it knows how many there are.
      const room = new Int32Array(list.length + planItemWords * 1_024);
      room.set(list);
      const [items, count] = [room, Int32Array.of(list.length / planItemWords)].map((ints) => putInts(device, ints));
      const heads = [queryHeads, kvHeads, headDim, blockTokens] as const;
      const results = [out, partialOut, partialSums, arrivals, null] as const;
      return (kv: DeviceBuffer) => {
        const inputs = [qkv, kv, rotations, positions, rows, items, slices, offsets, ids, merges, count] as const;
        return device.prepare(kernel, ...inputs, ...heads, scale, ...results);
      };
    };
    const ofSmall = prepare("attention_packed", plan.smallItems);
    const ofLarge = prepare(largeKernel, plan.largeItems);
    const launches = Array.from({ length: copies }, (_, copy) => ({
      small: ofSmall(kvOf(copy)),
      large: ofLarge(kvOf(copy)),
    }));
    const rowBytes = batch.positions.length * queryHeads * headDim * 4;
    const cost = { bytes: batch.tokensRead * tokenBytes + rowBytes, flop: 4 * headDim * queryHeads * batch.pairs };
    await timer.time(name, cost, Math.max(copies, 4), (index) => {
      const launch = launches[index % copies];
      if (plan.largeItems.length > 0) launch.large(large);
      if (plan.smallItems.length > 0) launch.small(small);
    });
  }
}

export function putInts(device: CudaDevice, values: Int32Array): DeviceBuffer {
  const staging = device.allocateHost("list", values.byteLength + 16);
  staging.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
  const buffer = device.allocate("list", values.byteLength + 16);
  device.copyIn(buffer, staging);
  return buffer;
}
