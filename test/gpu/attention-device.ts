/** The kernels of attention plans on a device: their memory, launches and times, with nothing around them. */
import type { AttentionPlan } from "../../worker/attention/plan-format.ts";
import type { KvElement } from "../../worker/backend/cuda/pool.ts";
import type { ArgumentsOf } from "../../worker/native/cuda/arguments.ts";
import { readKernelSources } from "../../worker/native/cuda/compile/kernel-sources.ts";
import { architectureName, type CudaSource, Nvrtc } from "../../worker/native/cuda/compile/nvrtc.ts";
import { CudaContext } from "../../worker/native/cuda/context.ts";
import { CublasLt } from "../../worker/native/cuda/cublaslt.ts";
import { CudaDriver } from "../../worker/native/cuda/driver.ts";
import { CudaEvent } from "../../worker/native/cuda/event.ts";
import { type CudaGraph, captureGraph } from "../../worker/native/cuda/graph.ts";
import {
  copyToDevice,
  copyToHost,
  DeviceArena,
  type DeviceBuffer,
  fillDevice,
  type HostArray,
} from "../../worker/native/cuda/memory.ts";
import { type CudaKernel, CudaModule } from "../../worker/native/cuda/module.ts";
import { CudaStream } from "../../worker/native/cuda/stream.ts";
import { copyOnDevice, millisecondsBetween } from "./driver-calls.ts";

/** PLAN_PARAMETERS of kernels/cuda/attention/attention_plan.cuh. */
const planSignature = [
  ...(["ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr"] as const),
  ...(["i32", "i32", "i32", "i32", "f32", "ptr", "ptr", "ptr", "ptr", "ptr"] as const),
] as const;

export type PlanKernelName = SmallKernelName | LargeKernelName;
export type SmallKernelName = "attention_packed" | "attention_packed_wgmma";
export type LargeKernelName = "attention_tiles" | "attention_wgmma";
type PlanKernel = CudaKernel<typeof planSignature>;

const streamSource: CudaSource = {
  name: "stream.cu",
  headers: {},
  options: [],
  text: `
extern "C" __global__ void copy_words(const uint4 *from, uint4 *to, long long count) {
  const long long step = (long long)gridDim.x * blockDim.x;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    const uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
    to[i] = a, to[i + step] = b, to[i + 2 * step] = c, to[i + 3 * step] = d;
  }
  for (; i < count; i += step) to[i] = from[i];
}

extern "C" __global__ void fill_words(uint4 *to, long long count, unsigned int value) {
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
    to[i] = make_uint4(value, value, value, value);
}

extern "C" __global__ void read_words(const uint4 *from, long long count, unsigned int *never) {
  const long long step = (long long)gridDim.x * blockDim.x;
  unsigned int sum = 0;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 x = from[i];
    sum += x.x ^ x.y ^ x.z ^ x.w;
  }
  if (sum == 0x9e3779b9) *never = sum;
}
`,
};

export interface Heads {
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly rotaryDim: number;
  readonly blockTokens: number;
}

/** Everything that the kernels read and write, on the device. */
export interface PlanBuffers {
  readonly qkv: DeviceBuffer;
  readonly pool: DeviceBuffer;
  /** At position 0. */
  readonly rotations: DeviceBuffer;
  readonly positions: DeviceBuffer;
  readonly blockIds: DeviceBuffer;
  readonly out: DeviceBuffer;
  readonly partialOut: DeviceBuffer;
  readonly partialSums: DeviceBuffer;
  readonly arrivals: DeviceBuffer;
}

/** Warps that compute, and as many that copy for them. */
export const packedThreads = 256;

/** Bytes of shared memory: see the kernels. */
export function packedSharedBytes(headDim: number, slots: number): number {
  return 4 * slots * 32 * 2 * (headDim + 8);
}
export function tilesSharedBytes(headDim: number, tokens: number): number {
  return (128 + 4 * tokens) * 2 * (headDim + 8);
}

export class AttentionDevice {
  readonly context = new CudaContext(new CudaDriver(), 0);
  readonly stream = new CudaStream(this.context);
  private readonly arenas: DeviceArena[] = [];
  private readonly kernels = new Map<string, PlanKernel>();
  private readonly nvrtc: Nvrtc;
  private readonly folders: readonly string[];
  private readonly streams: CudaModule;
  private readonly start = new CudaEvent(this.context, { timing: true });
  private readonly end = new CudaEvent(this.context, { timing: true });

  constructor(folders: readonly string[]) {
    this.folders = folders;
    this.nvrtc = new Nvrtc(this.context.driver.version, { folders });
    this.streams = new CudaModule(this.context, this.compile(streamSource));
  }

  get hasWarpgroups(): boolean {
    return this.context.device.computeCapability === 90;
  }

  get multiprocessorCount(): number {
    return this.context.device.multiprocessorCount;
  }

  private compile(source: CudaSource): Uint8Array {
    return this.nvrtc.compile(source, architectureName(this.context.device.computeCapability));
  }

  /** Compiled at the first use. */
  kernel(name: PlanKernelName, headDim: number, kvElement: KvElement = "bfloat16"): PlanKernel {
    const key = `${name} ${headDim} ${kvElement}`;
    const known = this.kernels.get(key);
    if (known !== undefined) return known;
    const defines = { HEAD_DIM: headDim, KV_MX8: kvElement === "mx8" ? 1 : 0 };
    const sources = readKernelSources({ folder: "kernels/cuda", defines });
    const source = sources.find((one) => one.name === `${name}.cu`);
    if (source === undefined) throw new Error(`kernels/cuda has no ${name}.cu`);
    const kernel = new CudaModule(this.context, this.compile(source)).kernel(name, planSignature);
    kernel.setMaxSharedBytes(this.context.device.maxSharedBytesPerBlock - kernel.staticSharedBytes);
    this.kernels.set(key, kernel);
    return kernel;
  }

  space(name: string, byteLength: number): DeviceBuffer {
    const arena = new DeviceArena(this.context, name, Math.max(16, byteLength));
    this.arenas.push(arena);
    return arena.allocate(name, Math.max(16, byteLength));
  }

  put(name: string, values: HostArray, room = 0): DeviceBuffer {
    const buffer = this.space(name, Math.max(values.byteLength, room));
    copyToDevice(this.stream, buffer, values);
    return buffer;
  }

  fill(buffer: DeviceBuffer, value: number): void {
    fillDevice(this.stream, buffer, value);
  }

  /** What the buffer holds when everything before has run. */
  read<Values extends HostArray>(buffer: DeviceBuffer, into: Values): Values {
    copyToHost(this.stream, into, buffer);
    this.stream.synchronize();
    return into;
  }

  /** Frees all buffers. */
  clear(): void {
    this.stream.synchronize();
    for (const arena of this.arenas.splice(0)) arena.close();
  }

  /** Random bfloat16 all over a large buffer: some megabytes, and the rest copied from them. */
  repeat(target: DeviceBuffer, values: Uint16Array): void {
    const bytes = Math.min(values.byteLength, target.byteLength);
    copyToDevice(this.stream, target, values.subarray(0, bytes / 2));
    for (let done = bytes; done < target.byteLength; ) {
      const size = Math.min(done, target.byteLength - done);
      copyOnDevice(this.stream, target.slice(done, size), target.slice(0, size));
      done += size;
    }
  }

  /** A launch of one kernel over the items of a plan. */
  prepare(name: PlanKernelName, heads: Heads, buffers: PlanBuffers, plan: AttentionPlan, size: PlanLaunch): () => void {
    const kernel = this.kernel(name, heads.headDim, size.kvElement);
    const items = name.startsWith("attention_packed") ? plan.smallItems : plan.largeItems;
    // The packed kernel reads an item for each of its blocks before it knows how many there are.
    const lists = [
      this.put("rows", plan.rows),
      this.put("items", items, 32 * (size.grid + 1)),
      this.put("slices", plan.slices),
      this.put("offsets", plan.offsets),
    ] as const;
    const values: ArgumentsOf<typeof planSignature> = [
      buffers.qkv,
      buffers.pool,
      buffers.rotations,
      buffers.positions,
      ...lists,
      buffers.blockIds,
      this.put("merges", plan.merges),
      this.put("item count", Int32Array.of(items.length / 8)),
      heads.queryHeads,
      heads.kvHeads,
      heads.rotaryDim,
      heads.blockTokens,
      Math.LOG2E / Math.sqrt(heads.headDim),
      buffers.out,
      buffers.partialOut,
      buffers.partialSums,
      buffers.arrivals,
      null,
    ];
    const packed = kernel.pack(...values);
    const shape = { grid: [size.grid], block: [size.threads ?? 128], sharedBytes: size.sharedBytes } as const;
    return () => kernel.launch(this.stream, shape, packed);
  }

  /** Fills the second-level cache with other memory; `clean`: nothing of it waits to be written back. */
  flusher(bytes: number, isClean: boolean): () => void {
    const [written, other] = [this.space("flush", bytes), this.space("flush", bytes)];
    this.fill(other, 1);
    const fill = this.streams.kernel("fill_words", ["ptr", "i64", "u32"]);
    const read = this.streams.kernel("read_words", ["ptr", "i64", "ptr"]);
    const shape = { grid: [4 * this.multiprocessorCount], block: [512] } as const;
    const fillValues = fill.pack(written, bytes / 16, 7);
    const readValues = read.pack(other, bytes / 16, written);
    return () => {
      fill.launch(this.stream, shape, fillValues);
      if (isClean) read.launch(this.stream, shape, readValues);
    };
  }

  record(run: () => void): CudaGraph {
    const graph = captureGraph(this.stream, run);
    graph.upload(this.stream);
    return graph;
  }

  /** Microseconds of what `run` puts into the stream. */
  microseconds(run: () => void): number {
    this.stream.record(this.start);
    run();
    this.stream.record(this.end);
    return 1000 * millisecondsBetween(this.start, this.end);
  }

  /** Bytes read and written per second by a copy of 2 GiB, and FLOP per second of a product of 8,192 cubed. */
  rates(random: Uint16Array): { bytesPerSecond: number; flopPerSecond: number } {
    const bytes = 2 ** 31;
    const [from, to] = [this.space("from", bytes), this.space("to", bytes)];
    this.repeat(from, random);
    const copy = this.streams.kernel("copy_words", ["ptr", "ptr", "i64"]);
    const values = copy.pack(from, to, bytes / 16);
    const times = [4, 8, 16, 64].map((blocks) => {
      const shape = { grid: [blocks * this.multiprocessorCount], block: [512] } as const;
      return median(9, () => this.microseconds(() => copy.launch(this.stream, shape, values)));
    });
    times.push(median(9, () => this.microseconds(() => copyOnDevice(this.stream, to, from))));
    console.log(`copies ${times.map((time) => ((2 * bytes) / time / 1e6).toFixed(2)).join(", ")} TB/s`);
    const copyTime = Math.min(...times);
    const products = new CublasLt(this.context, this.space("products", 32 << 20), { folders: this.folders });
    const side = 8_192;
    const matrix = (index: number) => from.slice(index * side * side * 2, side * side * 2);
    const product = { rows: side, outWidth: side, inWidth: side, outputType: "bfloat16" } as const;
    const operands = { input: matrix(0), weights: matrix(1), output: to.slice(0, side * side * 2) };
    const productTime = median(9, () => this.microseconds(() => products.matmul(this.stream, product, operands)));
    products.close();
    this.clear();
    return { bytesPerSecond: (2 * bytes * 1e6) / copyTime, flopPerSecond: (2 * side ** 3 * 1e6) / productTime };
  }
}

export interface PlanLaunch {
  readonly grid: number;
  readonly sharedBytes: number;
  readonly threads?: number;
  /** What the pool holds; default: bfloat16. */
  readonly kvElement?: KvElement;
}

export function median(count: number, measure: () => number): number {
  const values = Array.from({ length: count }, measure).sort((a, b) => a - b);
  return values[count >> 1];
}
