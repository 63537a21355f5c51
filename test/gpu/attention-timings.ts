/**
 * The published trees of shared KV on a device: time of one layer's attention, with a cold second-level cache, over the
 * floor, that is each shared token's K and V, q and the result once at the rate of a copy, or the products at the rate
 * of a large one, whichever takes longer.
 */
import type { AttentionPlan } from "../../worker/attention/plan-format.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import type { Random } from "../native/random.ts";
import { type AttentionTree, type TreeBatch, treeBatch } from "../support/attention-trees.ts";
import { fromBfloat16, toBfloat16 } from "./attention-checks.ts";
import {
  type AttentionDevice,
  type Heads,
  type LargeKernelName,
  median,
  type PlanBuffers,
  type PlanKernelName,
  type PlanLaunch,
  packedSharedBytes,
  packedThreads,
  type SmallKernelName,
  tilesSharedBytes,
} from "./attention-device.ts";
import {
  packedWgmmaSharedBytes,
  packedWgmmaThreads,
  putPoolMap,
  wgmmaSharedBytes,
  wgmmaThreads,
} from "./wgmma-cases.ts";

export interface TreeSetup {
  readonly tree: AttentionTree;
  readonly heads: Heads;
  /** Each row has its nodes in an order of its own, at offsets of its own. */
  readonly ownOffsets: boolean;
}

export interface PlanVariant {
  readonly name: string;
  readonly plan: (batch: Batch) => AttentionPlan;
  readonly slots?: number;
  readonly blocksPerMultiprocessor?: number;
  readonly largeKernel?: LargeKernelName;
  readonly smallKernel?: SmallKernelName;
}

export interface TreeTiming {
  readonly name: string;
  readonly microseconds: number;
  readonly planMilliseconds: number;
  readonly plan: AttentionPlan;
}

export interface Rates {
  readonly bytesPerSecond: number;
  readonly flopPerSecond: number;
}

const offsetLimit = 8_192;
const flushBytes = 192 << 20;
const rounds = 5;

/** Random bfloat16, and the table of rotations: the same for all trees. */
export interface TreeInputs {
  readonly values: Uint16Array;
  readonly rotations: Float32Array;
}

export function treeInputs(random: Random, rotaryDim: number): TreeInputs {
  const half = rotaryDim / 2;
  const rotations = new Float32Array(2 * offsetLimit * half * 2);
  for (let i = 0; i < rotations.length; i += 2) {
    const angle = (Math.floor(i / 2 / half) - offsetLimit) * 1e6 ** (-((i / 2) % half) / half);
    rotations[i] = Math.cos(angle);
    rotations[i + 1] = Math.sin(angle);
  }
  return { values: toBfloat16(random.normals(1 << 21, Number.POSITIVE_INFINITY)), rotations };
}

export function floorMicroseconds({ tree, heads }: TreeSetup, rates: Rates): number {
  const { queryHeads, kvHeads, headDim } = heads;
  const { distinctTokens, seenTokens, batch } = treeBatch(tree, { blockTokens: heads.blockTokens, seed: 1 });
  const rowBytes = 2 * queryHeads * headDim * 2;
  const bytes = distinctTokens * kvHeads * 2 * headDim * 2 + batch.positions.length * rowBytes;
  const byFlop = (4 * headDim * queryHeads * seenTokens) / rates.flopPerSecond;
  return 1e6 * Math.max(bytes / rates.bytesPerSecond, byFlop);
}

function launchOfLarge(device: AttentionDevice, name: PlanKernelName, headDim: number): PlanLaunch {
  const { multiprocessorCount } = device;
  return name === "attention_tiles"
    ? { grid: 2 * multiprocessorCount, sharedBytes: tilesSharedBytes(headDim, 64) }
    : { grid: multiprocessorCount, sharedBytes: wgmmaSharedBytes(headDim), threads: wgmmaThreads };
}

/** One tree's memory on the device, and plans timed on it. */
export class TreeTimer {
  private readonly device: AttentionDevice;
  private readonly heads: Heads;
  private readonly made: TreeBatch;
  private readonly buffers: PlanBuffers;
  private readonly flush: () => void;
  private expected: Float32Array | undefined;

  constructor(device: AttentionDevice, inputs: TreeInputs, { tree, heads, ownOffsets }: TreeSetup) {
    const { blockTokens, kvHeads, queryHeads, headDim, rotaryDim } = heads;
    this.device = device;
    this.heads = heads;
    this.made = treeBatch(tree, { blockTokens, seed: 1, ...(ownOffsets ? { offsetLimit } : {}) });
    const { batch, blockCount } = this.made;
    const rows = batch.positions.length;
    const pool = device.space("pool", blockCount * kvHeads * 2 * blockTokens * headDim * 2);
    const qkv = device.space("qkv", rows * (queryHeads + 2 * kvHeads) * headDim * 2);
    const half = rotaryDim / 2;
    const maxPartials = 16 * rows + 4_096;
    this.buffers = {
      qkv,
      pool,
      rotations: device.put("rotations", inputs.rotations).slice(offsetLimit * half * 8),
      positions: device.put("positions", batch.positions),
      blockIds: device.put("block ids", batch.blockIds),
      out: device.space("out", rows * queryHeads * headDim * 2),
      partialOut: device.space("partial results", maxPartials * queryHeads * headDim * 4),
      partialSums: device.space("partial sums", maxPartials * queryHeads * 4),
      arrivals: device.space("arrivals", rows * kvHeads * 4),
    };
    for (const buffer of [pool, qkv]) device.repeat(buffer, inputs.values);
    device.fill(this.buffers.arrivals, 0);
    this.flush = device.flusher(flushBytes, true);
  }

  get batch(): Batch {
    return this.made.batch;
  }

  /** @throws Error when the plan gives another result than the first one that was timed */
  time(variant: PlanVariant): TreeTiming {
    const { device } = this;
    const startMs = performance.now();
    const plan = variant.plan(this.made.batch);
    const planMilliseconds = performance.now() - startMs;
    const launches = this.launches(variant, plan);
    const run = () => {
      for (const launch of launches) launch();
    };
    device.fill(this.buffers.out, 0xff);
    run();
    this.assertEqual(variant.name);
    const microseconds = median(rounds, () => {
      this.flush();
      return device.microseconds(run);
    });
    return { name: variant.name, microseconds, planMilliseconds, plan };
  }

  /** The same in a graph of many runs, each behind a flush, less a graph of the flushes alone. */
  graphMicroseconds(variant: PlanVariant): number {
    return this.graphOf(variant, this.flush);
  }

  run(variant: PlanVariant): void {
    for (const launch of this.launches(variant, variant.plan(this.made.batch))) launch();
    this.device.stream.synchronize();
  }

  /** Without a flush. */
  warmMicroseconds(variant: PlanVariant): number {
    return this.graphOf(variant, () => undefined);
  }

  /** Behind a flush and a run of the first item alone: code and addresses are known, data are not. */
  primedMicroseconds(variant: PlanVariant): number {
    const plan = variant.plan(this.made.batch);
    const rows = plan.rows.map((word, i) => (i % 4 === 1 || i % 4 === 2 ? -1 : word));
    const [smallItems, largeItems] = [plan.smallItems.subarray(0, 8), plan.largeItems.subarray(0, 8)];
    const small = { ...plan, rows, smallItems, largeItems };
    const first = this.launches(variant, small);
    return this.graphOf(variant, () => {
      this.flush();
      for (const launch of first) launch();
    });
  }

  private graphOf(variant: PlanVariant, before: () => void): number {
    const { device } = this;
    const count = 10;
    const launches = this.launches(variant, variant.plan(this.made.batch));
    const graphs = [[], launches].map((list) =>
      device.record(() => {
        for (let i = 0; i < count; i++) {
          before();
          for (const launch of list) launch();
        }
      }),
    );
    const times = graphs.map((graph) => median(7, () => device.microseconds(() => graph.launch(device.stream))));
    for (const graph of graphs) graph.close();
    return (times[1] - times[0]) / count;
  }

  private launches(variant: PlanVariant, plan: AttentionPlan): (() => void)[] {
    const { device, heads, buffers } = this;
    const of = (name: PlanKernelName, size: PlanLaunch) => {
      const boxRows = { attention_wgmma: undefined, attention_packed_wgmma: 16 }[name as string];
      const hasMap = name.endsWith("wgmma");
      const pool = hasMap ? putPoolMap(device, heads, buffers.pool, boxRows) : buffers.pool;
      return device.prepare(name, heads, { ...buffers, pool }, plan, size);
    };
    const perMultiprocessor = variant.blocksPerMultiprocessor ?? 2;
    const launches: (() => void)[] = [];
    if (plan.largeItems.length > 0) {
      const name = variant.largeKernel ?? "attention_tiles";
      launches.push(of(name, launchOfLarge(device, name, heads.headDim)));
    }
    if (plan.smallItems.length > 0) {
      const grid = perMultiprocessor * device.multiprocessorCount;
      const name = variant.smallKernel ?? "attention_packed";
      const sharedBytes =
        name === "attention_packed"
          ? packedSharedBytes(heads.headDim, variant.slots ?? 3)
          : packedWgmmaSharedBytes(heads.headDim);
      const isPlain = name === "attention_packed";
      const size = { grid, sharedBytes, threads: isPlain ? packedThreads : packedWgmmaThreads };
      launches.push(of(name, size));
    }
    return launches;
  }

  private assertEqual(name: string): void {
    const rows = this.made.batch.positions.length;
    const halves = new Uint16Array(rows * this.heads.queryHeads * this.heads.headDim);
    const out = fromBfloat16(this.device.read(this.buffers.out, halves));
    const { expected } = this;
    if (expected === undefined) {
      if (out.some(Number.isNaN)) throw new Error(`${name}: values that nobody wrote`);
      this.expected = out;
      return;
    }
    // Both rounded to bfloat16, weights and q too, in another order of sums.
    for (let i = 0; i < out.length; i++) {
      if (!(Math.abs(out[i] - expected[i]) <= 0.02 + 2 ** -6 * Math.abs(expected[i]))) {
        throw new Error(`${name}: value ${i} is ${out[i]}, not ${expected[i]}`);
      }
    }
  }
}
