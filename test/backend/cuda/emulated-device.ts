/** A device for tests: memory is an ArrayBuffer, kernels are loops, and the order of what was launched is kept. */

import type {
  ComputeDevice,
  DeviceBuffer,
  HostArray,
  Launch,
  Recording,
  SideStream,
  StreamMark,
} from "../../../worker/backend/cuda/device/device.ts";
import { type KernelName, kernelSignatures } from "../../../worker/backend/cuda/device/kernels.ts";
import type { KvElement } from "../../../worker/backend/cuda/pool.ts";
import { type ArgumentsOf, PackedArguments, type Signature } from "../../../worker/native/cuda/arguments.ts";
import type { MatmulOperands, MatmulShape } from "../../../worker/native/cuda/cublaslt.ts";
import { emulatedBytesMatmul } from "./emulated-e4m3.ts";
import { emulate } from "./emulated-kernels.ts";
import { EmulatedMemory, zeros } from "./emulated-memory.ts";
import { waitsForPrevious } from "./kernel-waits.ts";

interface EmulatedMark extends StreamMark {
  /** Runs what was before the mark when this was called. */
  place(): () => void;
}

/** Work in order. It runs as late as can be: when a mark behind it is waited for. */
class EmulatedStream {
  private readonly queue: (() => void)[] = [];
  /** Works that have run since the start. */
  private ranCount = 0;

  put(work: () => void): void {
    this.queue.push(work);
  }

  mark(): EmulatedMark {
    let behind = 0;
    return {
      set: () => {
        behind = this.ranCount + this.queue.length;
      },
      reached: async () => this.runTo(behind),
      place: () => {
        const count = behind;
        return () => this.runTo(count);
      },
    };
  }

  runAll(): void {
    this.runTo(this.ranCount + this.queue.length);
  }

  private runTo(count: number): void {
    const works = this.queue.splice(0, Math.max(0, count - this.ranCount));
    this.ranCount += works.length;
    for (const work of works) work();
  }
}

export class EmulatedDevice implements ComputeDevice {
  hardware = "emulated";
  multiprocessorCount = 4;
  maxSharedBytesPerBlock = 232_448;
  hasWarpgroups = true;
  multipliesE4m3 = true;
  readonly memory: EmulatedMemory;
  /** Names of launches, products and copies that ran, in order; graph launches are what they hold. */
  readonly log: string[] = [];
  /** What the host called, a graph's launch as one call. */
  readonly calls: string[] = [];
  graphLaunches = 0;
  captures = 0;
  closed = false;
  private recording: (() => void)[] | undefined;

  /** @param scoreCap of the model, for which kernels are compiled */
  constructor(headDim: number, byteLength = 96 << 20, kvElement: KvElement = "bfloat16", scoreCap?: number) {
    this.memory = new EmulatedMemory(byteLength);
    this.memory.headDim = headDim;
    this.memory.kvElement = kvElement;
    this.memory.scoreCap = scoreCap;
  }

  freeBytes(): number {
    return this.memory.freeBytes;
  }

  allocate(name: string, byteLength: number): DeviceBuffer {
    return this.memory.allocate(name, byteLength);
  }

  allocateHost(_name: string, byteLength: number): Uint8Array<ArrayBuffer> {
    return new Uint8Array(zeros(byteLength));
  }

  prepare<Name extends KernelName>(name: Name, ...values: ArgumentsOf<(typeof kernelSignatures)[Name]>): Launch {
    // The real packing checks number and type of every argument.
    new PackedArguments(name, kernelSignatures[name] as Signature, values as unknown as ArgumentsOf<Signature>);
    return ({ grid, stream, overlapsPrevious }) => {
      if (overlapsPrevious && !waitsForPrevious(name))
        throw new Error(`${name} does not wait for the kernel before it`);
      for (const extent of grid) if (!(Number(extent) >= 1)) throw new RangeError(`grid ${grid} of "${name}"`);
      const work = () => emulate(this.memory, name, values as readonly unknown[], grid as readonly number[]);
      const side = stream && this.sides.get(stream);
      if (side === undefined) this.put(name, work);
      else side.put(work);
    };
  }

  packClusters(): void {
    // Clusters are nothing here.
  }

  allowSharedBytes(name: KernelName, bytes: number): void {
    // Loops have no shared memory, but what asks for too much on a device shows here too.
    if (bytes > this.maxSharedBytesPerBlock) throw new Error(`${name} takes ${bytes} bytes of shared memory`);
  }

  /** The map holds where the matrix stands; width and box are checked as the driver would. */
  putTensorMap(matrix: DeviceBuffer, width: number, boxRows: number): DeviceBuffer {
    if (width % 64 !== 0 || boxRows < 1 || boxRows > 256) throw new RangeError(`box of 64 by ${boxRows} of ${width}`);
    const map = this.memory.allocate("tensor map", 128);
    this.memory.int32(map).set([matrix.pointer, matrix.byteLength]);
    return map;
  }

  matmul(shape: MatmulShape, operands: MatmulOperands): void {
    const { input, weights, output } = operands;
    if (shape.scales !== undefined) {
      return this.put("matmul", () => emulatedBytesMatmul(this.memory, shape, operands));
    }
    const { rows, inWidth, outWidth, outputType } = shape;
    this.put("matmul", () => {
      const [x, w] = [this.memory.bfloat16(input), this.memory.bfloat16(weights)];
      const columns = Array.from({ length: outWidth }, (_, o) => w.row(o * inWidth, inWidth));
      const [floats, halves] = [this.memory.float32(output), this.memory.bfloat16(output)];
      for (let row = 0; row < rows; row++) {
        const values = x.row(row * inWidth, inWidth);
        columns.forEach((column, o) => {
          let sum = 0;
          for (let i = 0; i < inWidth; i++) sum += values[i] * column[i];
          if (outputType === "float32") floats[row * outWidth + o] = sum;
          else halves.set(row * outWidth + o, sum);
        });
      }
    });
  }

  copyIn(target: DeviceBuffer, source: HostArray): void {
    // The device reads host memory when it comes to it: later than now, so a buffer that is used again too soon shows.
    this.put("copyIn", () => this.readHost(target, source));
  }

  copyOut(target: HostArray, source: DeviceBuffer): void {
    this.put("copyOut", () => this.writeHost(target, source));
  }

  fill(target: DeviceBuffer, value: number): void {
    this.put("fill", () => void this.memory.uint8(target).fill(value));
  }

  capture(record: () => void): Recording {
    const recording: (() => void)[] = [];
    this.captures += 1;
    this.recording = recording;
    try {
      record();
    } finally {
      this.recording = undefined;
    }
    return {
      launch: () => {
        this.graphLaunches += 1;
        this.calls.push("graph");
        for (const work of recording) this.stream.put(work);
      },
      close: () => recording.splice(0),
    };
  }

  private readonly stream = new EmulatedStream();
  private readonly sides = new WeakMap<SideStream, EmulatedStream>();

  mark(): EmulatedMark {
    return this.stream.mark();
  }

  waitFor(mark: StreamMark): void {
    this.stream.put((mark as EmulatedMark).place());
  }

  sideStream(): SideStream {
    const stream = new EmulatedStream();
    const side: SideStream = {
      copyIn: (target, source) => stream.put(() => this.readHost(target, source)),
      copyOut: (target, source) => stream.put(() => this.writeHost(target, source)),
      waitFor: (mark) => stream.put((mark as EmulatedMark).place()),
      mark: () => stream.mark(),
    };
    this.sides.set(side, stream);
    return side;
  }

  /** Work runs only now: what a launch reads of the host must still be there. */
  async settled(): Promise<void> {
    this.stream.runAll();
  }

  private readHost(target: DeviceBuffer, source: HostArray): void {
    if (source.byteLength > target.byteLength) throw new RangeError(`${source.byteLength} bytes into "${target.name}"`);
    this.memory.uint8(target).set(new Uint8Array(source.buffer, source.byteOffset, source.byteLength));
  }

  private writeHost(target: HostArray, source: DeviceBuffer): void {
    if (target.byteLength > source.byteLength) throw new RangeError(`${target.byteLength} bytes of "${source.name}"`);
    const bytes = this.memory.uint8(source).subarray(0, target.byteLength);
    new Uint8Array(target.buffer, target.byteOffset, target.byteLength).set(bytes);
  }

  close(): void {
    this.closed = true;
  }

  private put(name: string, work: () => void): void {
    const logged = () => {
      this.log.push(name);
      work();
    };
    if (this.recording !== undefined) {
      this.recording.push(logged);
      return;
    }
    this.calls.push(name);
    this.stream.put(logged);
  }
}
