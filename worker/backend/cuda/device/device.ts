/**
 * What the backend needs of a device: memory, copies, launches and matrix products, all in one stream. It is an
 * interface, so that tests check the order and the arguments of a step without a device (open-device.ts has the real
 * one).
 */
import type { ArgumentsOf } from "../../../native/cuda/arguments.ts";
import type { MatmulOperands, MatmulShape } from "../../../native/cuda/cublaslt.ts";
import type { DeviceBuffer, HostArray } from "../../../native/cuda/memory.ts";
import type { Extent } from "../../../native/cuda/module.ts";
import type { KernelName, kernelSignatures } from "./kernels.ts";

export type { MatmulScales, MatmulShape } from "../../../native/cuda/cublaslt.ts";
export { blockScaleStride, scaleBlock } from "../../../native/cuda/cublaslt.ts";
export type { HostArray } from "../../../native/cuda/memory.ts";
export { DeviceBuffer } from "../../../native/cuda/memory.ts";

/** The size of a launch: how many thread blocks, and how many threads in each. */
export interface LaunchSize {
  readonly grid: Extent;
  readonly blockThreads: number;
  readonly sharedBytes?: number;
  /**
   * The launch may begin while the kernel before it still runs; only for kernels that wait themselves
   * (kernels/cuda/common.cuh).
   */
  readonly overlapsPrevious?: boolean;
  /** Where the launch goes instead of the stream of the steps. */
  readonly stream?: SideStream;
}

/** A kernel with its arguments, ready to be launched. */
export type Launch = (size: LaunchSize) => void;

export interface Recording {
  /** Runs the recorded launches again. */
  launch(): void;
  close(): void;
}

/** A place in the stream. */
export interface StreamMark {
  /** Puts the mark behind everything that is in the stream now. */
  set(): void;
  /** Resolves when everything before the mark is done. @throws CudaError after a device fault */
  reached(): Promise<void>;
}

/** A stream beside the one of the steps. */
export interface SideStream {
  copyIn(target: DeviceBuffer, source: HostArray): void;
  copyOut(target: HostArray, source: DeviceBuffer): void;
  /** What is put into this stream from now on begins when everything before the mark, of any stream, is done. */
  waitFor(mark: StreamMark): void;
  /** A new mark at this stream's beginning; the device owns and frees it. */
  mark(): StreamMark;
}

export interface ComputeDevice {
  /** The hardware's name: KV that other hardware computed may differ in its last bits. */
  readonly hardware: string;
  readonly multiprocessorCount: number;
  /** The most shared memory of one thread block, in bytes, for a kernel that opts in. */
  readonly maxSharedBytesPerBlock: number;
  /** Can it multiply matrices by warpgroups (sm_90a)? */
  readonly hasWarpgroups: boolean;
  /** Can it multiply matrices of 8-bit floats with scales (MatmulScales)? */
  readonly multipliesE4m3: boolean;
  freeBytes(): number;
  /**
   * Allocates one range of device memory, freed with the device. @throws Error in one sentence when there is too little
   */
  allocate(name: string, byteLength: number): DeviceBuffer;
  /**
   * Allocates page-locked host memory, freed with the device. @throws Error in one sentence when there is too little
   */
  allocateHost(name: string, byteLength: number): Uint8Array<ArrayBuffer>;
  prepare<Name extends KernelName>(name: Name, ...values: ArgumentsOf<(typeof kernelSignatures)[Name]>): Launch;
  /**
   * Allows launches of the kernel this much dynamic shared memory, above 48 KiB. @throws Error beyond the device's
   * limit
   */
  allowSharedBytes(name: KernelName, bytes: number): void;
  /**
   * Lets thread blocks of a cluster of this kernel share multiprocessors, so that as many clusters fit as thread blocks do.
   */
  packClusters(name: KernelName): void;
  /**
   * Describes a bfloat16 matrix to the bulk copy engine (worker/native/cuda/tensor-map.ts); the map lies in device
   * memory. Only where `hasWarpgroups`.
   */
  putTensorMap(matrix: DeviceBuffer, width: number, boxRows: number): DeviceBuffer;
  matmul(shape: MatmulShape, operands: MatmulOperands): void;
  /** Copies pinned memory to the device; the source is read when the stream reaches the copy. */
  copyIn(target: DeviceBuffer, source: HostArray): void;
  copyOut(target: HostArray, source: DeviceBuffer): void;
  fill(target: DeviceBuffer, value: number): void;
  /**
   * Records what `record` puts into the stream, without running it. Where there is no memory for a recording, each
   * launch calls `record` again instead.
   */
  capture(record: () => void): Recording;
  /** A new mark at the stream's beginning; the device owns and frees it. */
  mark(): StreamMark;
  /** Steps that begin from now on begin when everything before the mark, of any stream, is done. */
  waitFor(mark: StreamMark): void;
  /**
   * A new stream beside the one of the steps; the device owns and frees it.
   * @param isUrgent its kernels go before those of steps wherever there is room for a thread block
   */
  sideStream(isUrgent?: boolean): SideStream;
  /** Resolves when all that was put into the stream so far is done. @throws CudaError after a device fault */
  settled(): Promise<void>;
  close(): void;
}
