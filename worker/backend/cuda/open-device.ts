/** A CUDA device as `ComputeDevice`: one stream, every allocation kept until the device is closed. */
import type { ArgumentsOf, Signature } from "../../native/cuda/arguments.ts";
import { CubinCache } from "../../native/cuda/compile/cubin-cache.ts";
import { readKernelSources } from "../../native/cuda/compile/kernel-sources.ts";
import { architectureName, Nvrtc } from "../../native/cuda/compile/nvrtc.ts";
import { CudaContext } from "../../native/cuda/context.ts";
import { CublasLt, type MatmulOperands, type MatmulShape } from "../../native/cuda/cublaslt.ts";
import { CudaDriver, CudaError } from "../../native/cuda/driver.ts";
import { CudaEvent } from "../../native/cuda/event.ts";
import { captureGraph } from "../../native/cuda/graph.ts";
import {
  copyToDevice,
  copyToHost,
  DeviceArena,
  type DeviceBuffer,
  fillDevice,
  type HostArray,
  PinnedBuffer,
} from "../../native/cuda/memory.ts";
import { type CudaKernel, CudaModule } from "../../native/cuda/module.ts";
import { CudaStream } from "../../native/cuda/stream.ts";
import { encodeTensorMap } from "../../native/cuda/tensor-map.ts";
import type { ComputeDevice, Launch, Recording, SideStream, StreamMark } from "./device/device.ts";
import { type KernelName, kernelFile, kernelSignatures } from "./device/kernels.ts";
import { bytesText, type KvElement } from "./pool.ts";

/** Bytes of scratch memory; enough for every algorithm of cuBLASLt on Hopper. */
const matmulWorkspaceBytes = 32 << 20;

export interface OpenDeviceOptions {
  /** The device's index, the N of cuda:N. */
  readonly index: number;
  /** The model's head size, for which attention is compiled. */
  readonly headDim: number;
  /** The cap of the model's attention scores (see kernels/abi.h, SINKS AND CAPS); undefined: it has none. */
  readonly scoreCap?: number | undefined;
  /** What the KV pool holds, for which kernels are compiled; default: bfloat16. */
  readonly kvElement?: KvElement | undefined;
  /** Folder of the kernel sources; default: the project's own. */
  readonly kernelFolder?: string;
  /** Folders in which NVRTC and cuBLASLt are looked for, besides the loader's own. */
  readonly libraryFolders?: readonly string[];
  /** Where the driver is looked for; default: the machine's. */
  readonly driver?: CudaDriver;
  /** Folder of compiled kernels; default: the project's own. */
  readonly cubinFolder?: string;
}

/**
 * Opens the device and compiles the kernels that are not in the cache, which takes some seconds once.
 * @throws CudaUnavailable in one sentence when there is no usable driver, device or library
 */
export async function openDevice(options: OpenDeviceOptions): Promise<CudaDevice> {
  const context = new CudaContext(options.driver ?? new CudaDriver(), options.index);
  const device = new CudaDevice(context);
  try {
    await device.load(options);
    return device;
  } catch (error) {
    device.close();
    throw error;
  }
}

const isOutOfMemory = (error: unknown): boolean => error instanceof CudaError && error.isOutOfMemory;

type AnyKernel = CudaKernel<Signature>;

interface Closable {
  close(): void;
}

class EventMark implements StreamMark {
  readonly event: CudaEvent;
  readonly #stream: CudaStream;

  constructor(stream: CudaStream) {
    this.event = new CudaEvent(stream.context);
    this.#stream = stream;
  }

  set(): void {
    this.#stream.record(this.event);
  }

  reached(): Promise<void> {
    return this.event.completion();
  }

  close(): void {
    this.event.close();
  }
}

/** @throws TypeError when another kind of device made the mark */
function eventOf(mark: StreamMark): CudaEvent {
  if (!(mark instanceof EventMark)) throw new TypeError("the mark is of another device");
  return mark.event;
}

class CudaSideStream implements SideStream {
  readonly handle: CudaStream;
  readonly #own: (mark: EventMark) => EventMark;

  constructor(stream: CudaStream, own: (mark: EventMark) => EventMark) {
    this.handle = stream;
    this.#own = own;
  }

  copyIn(target: DeviceBuffer, source: HostArray): void {
    copyToDevice(this.handle, target, source);
  }

  copyOut(target: HostArray, source: DeviceBuffer): void {
    copyToHost(this.handle, target, source);
  }

  waitFor(mark: StreamMark): void {
    this.handle.waitFor(eventOf(mark));
  }

  mark(): StreamMark {
    return this.#own(new EventMark(this.handle));
  }
}

export class CudaDevice implements ComputeDevice {
  readonly context: CudaContext;
  readonly stream: CudaStream;
  /** Compiled modules, by file name. */
  readonly #modules = new Map<string, CudaModule>();
  readonly #kernels = new Map<KernelName, AnyKernel>();
  readonly #done: CudaEvent;
  #matmuls: CublasLt | undefined;
  /** What `close` frees, in the order in which it was made. */
  readonly #owned: Closable[] = [];

  /** From this call on it owns the context, and closes it when opening fails. */
  constructor(context: CudaContext) {
    this.context = this.#own(context);
    try {
      this.stream = this.#own(new CudaStream(context));
      this.#done = this.#own(new CudaEvent(context));
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /** Loads kernels and libraries; nothing can be launched before. */
  async load(options: OpenDeviceOptions): Promise<void> {
    const { headDim, scoreCap = 0, kvElement, kernelFolder, libraryFolders: folders, cubinFolder } = options;
    const defines = { HEAD_DIM: headDim, SCORE_CAP: scoreCap, KV_MX8: kvElement === "mx8" ? 1 : 0 };
    const { driver, device } = this.context;
    const nvrtc = new Nvrtc(driver.version, { folders });
    const architecture = architectureName(device.computeCapability);
    const target = { architecture, driverVersion: driver.version, compilerVersion: nvrtc.version };
    const cache = new CubinCache(cubinFolder);
    for (const source of readKernelSources({ folder: kernelFolder, defines })) {
      const module = new CudaModule(this.context, await cache.load(source, target, nvrtc));
      this.#own({ close: () => module.unload() });
      this.#modules.set(source.name, module);
    }
    const workspace = this.allocate("matrix products", matmulWorkspaceBytes);
    this.#matmuls = this.#own(new CublasLt(this.context, workspace, { folders }));
  }

  get hardware(): string {
    return this.context.device.name;
  }

  get multiprocessorCount(): number {
    return this.context.device.multiprocessorCount;
  }

  get maxSharedBytesPerBlock(): number {
    return this.context.device.maxSharedBytesPerBlock;
  }

  get hasWarpgroups(): boolean {
    return this.context.device.computeCapability === 90;
  }

  get multipliesE4m3(): boolean {
    return this.hasWarpgroups && this.#matmuls?.hasScales === true;
  }

  freeBytes(): number {
    return this.context.freeBytes();
  }

  allocate(name: string, byteLength: number): DeviceBuffer {
    const free = () => `${bytesText(this.freeBytes())} of device memory are free`;
    const arena = this.#take(name, byteLength, free, () => new DeviceArena(this.context, name, byteLength));
    return arena.allocate(name, byteLength);
  }

  allocateHost(name: string, byteLength: number): Uint8Array<ArrayBuffer> {
    const why = () => "the system gives no more page-locked memory";
    return this.#take(name, byteLength, why, () => new PinnedBuffer(this.context, name, byteLength)).bytes;
  }

  prepare<Name extends KernelName>(name: Name, ...values: ArgumentsOf<(typeof kernelSignatures)[Name]>): Launch {
    const kernel = this.#kernel(name);
    const packed = kernel.pack(...(values as unknown as ArgumentsOf<Signature>));
    return ({ grid, blockThreads, sharedBytes, overlapsPrevious, stream }) => {
      const queue = stream instanceof CudaSideStream ? stream.handle : this.stream;
      kernel.launch(queue, { grid, block: [blockThreads], sharedBytes, overlapsPrevious }, packed);
    };
  }

  allowSharedBytes(name: KernelName, bytes: number): void {
    if (bytes > this.maxSharedBytesPerBlock) {
      const has = `${this.#name} has ${this.maxSharedBytesPerBlock}`;
      throw new Error(`${name} takes ${bytes} bytes of shared memory in a thread block, ${has}`);
    }
    this.#kernel(name).setMaxSharedBytes(bytes);
  }

  packClusters(name: KernelName): void {
    this.#kernel(name).packClusters();
  }

  putTensorMap(matrix: DeviceBuffer, width: number, boxRows: number): DeviceBuffer {
    const map = encodeTensorMap(this.context, matrix, width, boxRows);
    const staging = this.allocateHost(`map of ${matrix.name}`, map.byteLength);
    const target = this.allocate(`map of ${matrix.name}`, map.byteLength);
    staging.set(map);
    this.copyIn(target, staging);
    return target;
  }

  matmul(shape: MatmulShape, operands: MatmulOperands): void {
    if (this.#matmuls === undefined) throw new Error("the device's libraries are not loaded");
    this.#matmuls.matmul(this.stream, shape, operands);
  }

  copyIn(target: DeviceBuffer, source: HostArray): void {
    copyToDevice(this.stream, target, source);
  }

  copyOut(target: HostArray, source: DeviceBuffer): void {
    copyToHost(this.stream, target, source);
  }

  fill(target: DeviceBuffer, value: number): void {
    fillDevice(this.stream, target, value);
  }

  capture(record: () => void): Recording {
    try {
      const graph = captureGraph(this.stream, record);
      try {
        graph.upload(this.stream);
      } catch (error) {
        graph.close();
        throw error;
      }
      return { launch: () => graph.launch(this.stream), close: () => graph.close() };
    } catch (error) {
      if (!isOutOfMemory(error)) throw error;
      return { launch: record, close: () => undefined };
    }
  }

  mark(): StreamMark {
    return this.#own(new EventMark(this.stream));
  }

  waitFor(mark: StreamMark): void {
    this.stream.waitFor(eventOf(mark));
  }

  sideStream(isUrgent = false): SideStream {
    return new CudaSideStream(this.#own(new CudaStream(this.context, isUrgent)), (thing) => this.#own(thing));
  }

  settled(): Promise<void> {
    this.stream.record(this.#done);
    return this.#done.completion();
  }

  /** Frees everything; no work may be left on the device. */
  close(): void {
    for (const thing of this.#owned.splice(0).reverse()) thing.close();
  }

  get #name(): string {
    const { index, name } = this.context.device;
    return `cuda:${index} (${name})`;
  }

  #own<Thing extends Closable>(thing: Thing): Thing {
    this.#owned.push(thing);
    return thing;
  }

  /** @param why text that ends the error's sentence when there is too little memory */
  #take<Memory extends Closable>(name: string, byteLength: number, why: () => string, make: () => Memory): Memory {
    try {
      return this.#own(make());
    } catch (error) {
      if (!isOutOfMemory(error)) throw error;
      throw new Error(`${this.#name} is out of memory: "${name}" takes ${bytesText(byteLength)}, ${why()}`);
    }
  }

  #kernel(name: KernelName): AnyKernel {
    const known = this.#kernels.get(name);
    if (known !== undefined) return known;
    const module = this.#modules.get(kernelFile(name));
    if (module === undefined) throw new Error(`kernels/cuda has no ${kernelFile(name)}`);
    const kernel = module.kernel<Signature>(name, kernelSignatures[name]);
    this.#kernels.set(name, kernel);
    return kernel;
  }
}
