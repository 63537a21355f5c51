/** A CUDA device as `ComputeDevice`: one stream, every allocation kept until the device is closed. */
import type { ArgumentsOf, Signature } from "../../native/cuda/arguments.ts";
import { CudaContext } from "../../native/cuda/context.ts";
import { CubinCache } from "../../native/cuda/cubin-cache.ts";
import { CublasLt, type MatmulOperands, type MatmulShape } from "../../native/cuda/cublaslt.ts";
import { CudaDriver } from "../../native/cuda/driver.ts";
import { CudaEvent } from "../../native/cuda/event.ts";
import { captureGraph } from "../../native/cuda/graph.ts";
import { readKernelSources } from "../../native/cuda/kernel-sources.ts";
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
import { architectureName, Nvrtc } from "../../native/cuda/nvrtc.ts";
import { CudaStream } from "../../native/cuda/stream.ts";
import type { ComputeDevice, Launch, Recording } from "./device.ts";
import { type KernelName, kernelFile, kernelSignatures } from "./kernels.ts";

/** Enough for every algorithm of cuBLASLt on Hopper. */
const matmulWorkspaceBytes = 32 << 20;

export interface OpenDeviceOptions {
  /** N of cuda:N. */
  readonly index: number;
  /** The model's: attention is compiled for it. */
  readonly headDim: number;
  /** Default: the project's own. */
  readonly kernelFolder?: string;
  /** Where NVRTC and cuBLASLt are looked for besides the loader's own folders. */
  readonly libraryFolders?: readonly string[];
}

/**
 * Compiles what is not in the cache, which takes some seconds once.
 * @throws CudaUnavailable in one sentence when there is no usable driver, device or library
 */
export async function openDevice(options: OpenDeviceOptions): Promise<CudaDevice> {
  const driver = new CudaDriver();
  const context = new CudaContext(driver, options.index);
  const folders = options.libraryFolders;
  const nvrtc = new Nvrtc(driver.version, { folders });
  const architecture = architectureName(context.device.computeCapability);
  const target = { architecture, driverVersion: driver.version, compilerVersion: nvrtc.version };
  const cache = new CubinCache();
  const modules = new Map<string, CudaModule>();
  for (const source of readKernelSources({ folder: options.kernelFolder, defines: { HEAD_DIM: options.headDim } })) {
    modules.set(source.name, new CudaModule(context, await cache.load(source, target, nvrtc)));
  }
  return new CudaDevice(context, modules, folders);
}

type AnyKernel = CudaKernel<Signature>;

export class CudaDevice implements ComputeDevice {
  readonly context: CudaContext;
  readonly stream: CudaStream;
  readonly #modules: ReadonlyMap<string, CudaModule>;
  readonly #kernels = new Map<KernelName, AnyKernel>();
  readonly #arenas: DeviceArena[] = [];
  readonly #pinned: PinnedBuffer[] = [];
  readonly #matmuls: CublasLt;
  readonly #done: CudaEvent;

  /** @param modules by file name */
  constructor(context: CudaContext, modules: ReadonlyMap<string, CudaModule>, libraryFolders?: readonly string[]) {
    this.context = context;
    this.stream = new CudaStream(context);
    this.#modules = modules;
    this.#done = new CudaEvent(context);
    const workspace = this.allocate("matrix products", matmulWorkspaceBytes);
    this.#matmuls = new CublasLt(context, workspace, { folders: libraryFolders });
  }

  get multiprocessorCount(): number {
    return this.context.device.multiprocessorCount;
  }

  freeBytes(): number {
    return this.context.memoryInfo().freeBytes;
  }

  allocate(name: string, byteLength: number): DeviceBuffer {
    const arena = new DeviceArena(this.context, name, byteLength);
    this.#arenas.push(arena);
    return arena.allocate(name, byteLength);
  }

  allocateHost(name: string, byteLength: number): Uint8Array<ArrayBuffer> {
    const buffer = new PinnedBuffer(this.context, name, byteLength);
    this.#pinned.push(buffer);
    return buffer.bytes;
  }

  prepare<Name extends KernelName>(name: Name, ...values: ArgumentsOf<(typeof kernelSignatures)[Name]>): Launch {
    const kernel = this.#kernel(name);
    const packed = kernel.pack(...(values as unknown as ArgumentsOf<Signature>));
    return ({ grid, blockThreads, sharedBytes }) =>
      kernel.launch(this.stream, { grid, block: [blockThreads], sharedBytes }, packed);
  }

  allowSharedBytes(name: KernelName, bytes: number): void {
    this.#kernel(name).setMaxSharedBytes(bytes);
  }

  matmul(shape: MatmulShape, operands: MatmulOperands): void {
    this.#matmuls.matmul(this.stream, shape, operands);
  }

  /** Measures candidates for a product and keeps the fastest. */
  tune(shape: MatmulShape, operandSets: readonly MatmulOperands[]): void {
    this.#matmuls.tune(this.stream, shape, operandSets);
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
    const graph = captureGraph(this.stream, record);
    graph.upload(this.stream);
    return { launch: () => graph.launch(this.stream), close: () => graph.close() };
  }

  settled(): Promise<void> {
    this.stream.record(this.#done);
    return this.#done.completion();
  }

  /** Frees everything; the device must be done. */
  close(): void {
    this.#matmuls.close();
    for (const module of this.#modules.values()) module.unload();
    for (const arena of this.#arenas) arena.close();
    for (const pinned of this.#pinned) pinned.close();
    this.#done.close();
    this.stream.close();
    this.context.close();
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
