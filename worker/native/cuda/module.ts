/** Compiled kernels on the device, and launches of them. */
import type { Pointer } from "bun:ffi";
import { assertInteger, openHandle } from "../library.ts";
import { type ArgumentsOf, PackedArguments, parameterBytes, type Signature } from "./arguments.ts";
import type { CudaContext } from "./context.ts";
import { cText } from "./driver.ts";
import { OverlappingLaunch } from "./launch-config.ts";
import type { CudaStream } from "./stream.ts";

/** Extent in x, y, z; omitted ones are 1. */
export type Extent = readonly [x: number, y?: number, z?: number];

/** The size of a launch: thread blocks in the grid, threads in a block. */
export interface LaunchShape {
  readonly grid: Extent;
  readonly block: Extent;
  /** Bytes of dynamic shared memory of a thread block; default 0. */
  readonly sharedBytes?: number;
  /**
   * The launch may begin while the kernel before it in the stream still runs. The kernel itself waits for that one on
   * the device before it reads or overwrites anything (griddepcontrol.wait). Needs compute capability 9.0; graphs keep
   * it.
   */
  readonly overlapsPrevious?: boolean;
}

// CUfunction_attribute of cuda.h.
const functionAttributes = {
  maxThreadsPerBlock: 0,
  staticSharedBytes: 1,
  maxDynamicSharedBytes: 8,
  clusterPolicy: 15,
} as const;

/** CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING of cuda.h; by default clusters are spread over multiprocessors. */
const balancedClusters = 2;

/** CUDA_ERROR_INVALID_VALUE: cuFuncGetParamInfo returns it for an index past the last parameter. */
const invalidValue = 1;

/** One loaded cubin. Its kernels are valid until it is closed. */
export class CudaModule {
  readonly #context: CudaContext;
  readonly #handle: Pointer;

  /** @throws CudaError when the cubin is for another architecture or damaged */
  constructor(context: CudaContext, cubin: Uint8Array) {
    this.#context = context;
    this.#handle = openHandle((out) => context.driver.call("cuModuleLoadData", out, cubin));
  }

  /**
   * A kernel by its C name (declare it `extern "C"`).
   * @param signature its parameters in order
   * @throws CudaError when the module has no such kernel, TypeError when its parameters are others
   */
  kernel<const Types extends Signature>(name: string, signature: Types): CudaKernel<Types> {
    const { driver } = this.#context;
    const call = `cuModuleGetFunction ("${name}")`;
    const handle = openHandle((out) =>
      driver.check(call, driver.symbols.cuModuleGetFunction(out, this.#handle, cText(name))),
    );
    return new CudaKernel(this.#context, handle, name, signature);
  }

  unload(): void {
    this.#context.driver.call("cuModuleUnload", this.#handle);
  }
}

export class CudaKernel<Types extends Signature = Signature> {
  readonly name: string;
  readonly signature: Types;
  readonly maxThreadsPerBlock: number;
  readonly staticSharedBytes: number;
  readonly #context: CudaContext;
  readonly #handle: Pointer;
  readonly #number = new Int32Array(1);
  readonly #overlapping = new OverlappingLaunch();
  /** The most dynamic shared memory that a launch can ask for, in bytes. */
  #maxSharedBytes: number;

  constructor(context: CudaContext, handle: Pointer, name: string, signature: Types) {
    this.#context = context;
    this.#handle = handle;
    this.name = name;
    this.signature = signature;
    this.#assertParameters();
    this.maxThreadsPerBlock = this.#attribute("maxThreadsPerBlock");
    this.staticSharedBytes = this.#attribute("staticSharedBytes");
    this.#maxSharedBytes = this.#attribute("maxDynamicSharedBytes");
  }

  /** Lets launches ask for more than the default 48 KiB. @throws RangeError beyond the device's limit */
  setMaxSharedBytes(bytes: number): void {
    const { driver, device } = this.#context;
    const greatest = device.maxSharedBytesPerBlock - this.staticSharedBytes;
    assertInteger(`dynamic shared bytes of "${this.name}"`, bytes, 0, greatest);
    const { maxDynamicSharedBytes } = functionAttributes;
    const status = driver.symbols.cuFuncSetAttribute(this.#handle, maxDynamicSharedBytes, bytes);
    driver.check(`cuFuncSetAttribute ("${this.name}")`, status);
    this.#maxSharedBytes = bytes;
  }

  /**
   * Lets thread blocks of a cluster share multiprocessors: spread out, of clusters of four fewer fit at a time than there is
   * space for. Nothing where there are no clusters.
   */
  packClusters(): void {
    const { driver, device } = this.#context;
    if (device.computeCapability < 90) return;
    const status = driver.symbols.cuFuncSetAttribute(this.#handle, functionAttributes.clusterPolicy, balancedClusters);
    driver.check(`cuFuncSetAttribute ("${this.name}")`, status);
  }

  /** Packs arguments for launches of this kernel; they can be reused for any number of launches. */
  pack(...values: ArgumentsOf<Types>): PackedArguments<Types> {
    return new PackedArguments(this.name, this.signature, values);
  }

  /** Puts a launch into the stream. @throws RangeError when the shape does not fit the kernel */
  launch(stream: CudaStream, shape: LaunchShape, packed: PackedArguments<Types>): void {
    const [gridX, gridY = 1, gridZ = 1] = shape.grid;
    const [blockX, blockY = 1, blockZ = 1] = shape.block;
    const sharedBytes = shape.sharedBytes ?? 0;
    const { name } = this;
    assertInteger(`grid x of "${name}"`, gridX, 1, 2 ** 31 - 1);
    assertInteger(`grid y of "${name}"`, gridY, 1, 65_535);
    assertInteger(`grid z of "${name}"`, gridZ, 1, 65_535);
    assertInteger(`block x of "${name}"`, blockX, 1, 1024);
    assertInteger(`block y of "${name}"`, blockY, 1, 1024);
    assertInteger(`block z of "${name}"`, blockZ, 1, 64);
    assertInteger(`threads in a block of "${name}"`, blockX * blockY * blockZ, 1, this.maxThreadsPerBlock);
    assertInteger(`sharedBytes of "${name}"`, sharedBytes, 0, this.#maxSharedBytes);
    if (packed.signature !== this.signature) throw new TypeError(`the arguments are not packed for "${name}"`);
    const { driver, device } = this.#context;
    const parameters = packed.address as Pointer;
    if (shape.overlapsPrevious && device.computeCapability >= 90) {
      this.#overlapping.set([gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes], stream.handle);
      const { cuLaunchKernelEx } = driver.symbols;
      const status = cuLaunchKernelEx(this.#overlapping.address, this.#handle, parameters, null);
      if (status !== 0) driver.check(`cuLaunchKernelEx ("${name}")`, status);
      return;
    }
    const status = driver.symbols.cuLaunchKernel(
      this.#handle,
      gridX,
      gridY,
      gridZ,
      blockX,
      blockY,
      blockZ,
      sharedBytes,
      stream.handle,
      parameters,
      null,
    );
    if (status !== 0) driver.check(`cuLaunchKernel ("${name}")`, status);
  }

  #attribute(attribute: keyof typeof functionAttributes): number {
    const { driver } = this.#context;
    const status = driver.symbols.cuFuncGetAttribute(this.#number, functionAttributes[attribute], this.#handle);
    driver.check(`cuFuncGetAttribute ("${this.name}")`, status);
    return this.#number[0] ?? 0;
  }

  /** Compares the signature with the parameters that the compiler wrote into the cubin. */
  #assertParameters(): void {
    const { driver } = this.#context;
    const offset = new BigUint64Array(1);
    const size = new BigUint64Array(1);
    const actual: number[] = [];
    for (;;) {
      const status = driver.symbols.cuFuncGetParamInfo(this.#handle, actual.length, offset, size);
      if (status === invalidValue) break;
      driver.check(`cuFuncGetParamInfo ("${this.name}")`, status);
      actual.push(Number(size[0]));
    }
    const declared = this.signature.map(parameterBytes);
    if (actual.length === declared.length && actual.every((bytes, index) => bytes === declared[index])) return;
    const words = (sizes: readonly number[]) => `(${sizes.join(", ")})`;
    const sizes = `${words(actual)}, the declared ones ${words(declared)}`;
    throw new TypeError(`parameters of kernel "${this.name}" have bytes ${sizes}`);
  }
}
