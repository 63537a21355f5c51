/**
 * What the backend needs of a device: memory, copies, launches and matrix products, all in one stream. An interface, so
 * that the order and the arguments of a step can be tested without a device (open-device.ts has the real one).
 */
import type { ArgumentsOf } from "../../../native/cuda/arguments.ts";
import type { MatmulOperands, MatmulShape } from "../../../native/cuda/cublaslt.ts";
import type { DeviceBuffer, HostArray } from "../../../native/cuda/memory.ts";
import type { Extent } from "../../../native/cuda/module.ts";
import type { KernelName, kernelSignatures } from "./kernels.ts";

export type { MatmulShape } from "../../../native/cuda/cublaslt.ts";
export type { HostArray } from "../../../native/cuda/memory.ts";
export { DeviceBuffer } from "../../../native/cuda/memory.ts";

/** How many thread blocks, and threads in one. */
export interface LaunchSize {
  readonly grid: Extent;
  readonly blockThreads: number;
  readonly sharedBytes?: number;
  /** May begin while the launch before it still runs; for kernels that wait themselves (kernels/cuda/common.cuh). */
  readonly overlapsPrevious?: boolean;
}

/** A kernel with its arguments, ready to be launched. */
export type Launch = (size: LaunchSize) => void;

export interface Recording {
  /** Runs again what was recorded. */
  launch(): void;
  close(): void;
}

/** A place in the stream. */
export interface StreamMark {
  /** Puts it behind all that is in the stream now. */
  set(): void;
  /** Resolves when all before it is done. @throws CudaError after a device fault */
  reached(): Promise<void>;
}

export interface ComputeDevice {
  readonly multiprocessorCount: number;
  /** Shared memory that one thread block can have when its kernel opts in. */
  readonly maxSharedBytesPerBlock: number;
  /** Does it multiply matrices by warpgroups (sm_90a)? */
  readonly hasWarpgroups: boolean;
  freeBytes(): number;
  /** One range of device memory, freed with the device. @throws Error in one sentence when there is not so much */
  allocate(name: string, byteLength: number): DeviceBuffer;
  /** Page-locked host memory, freed with the device. @throws Error in one sentence when there is not so much */
  allocateHost(name: string, byteLength: number): Uint8Array<ArrayBuffer>;
  prepare<Name extends KernelName>(name: Name, ...values: ArgumentsOf<(typeof kernelSignatures)[Name]>): Launch;
  /** Dynamic shared memory above 48 KiB that launches of the kernel will ask for. @throws Error beyond the limit */
  allowSharedBytes(name: KernelName, bytes: number): void;
  /**
   * A matrix of bfloat16 as its bulk copy engine takes it (worker/native/cuda/tensor-map.ts), in device memory. Where
   * `hasWarpgroups`.
   */
  putTensorMap(matrix: DeviceBuffer, width: number, boxRows: number): DeviceBuffer;
  matmul(shape: MatmulShape, operands: MatmulOperands): void;
  /** Pinned memory to the device, read when the stream comes to it. */
  copyIn(target: DeviceBuffer, source: HostArray): void;
  copyOut(target: HostArray, source: DeviceBuffer): void;
  fill(target: DeviceBuffer, value: number): void;
  /**
   * Records what `record` puts into the stream, without running it. Where there is no memory for a recording, each of its
   * launches calls `record` again.
   */
  capture(record: () => void): Recording;
  /** A mark of the device's own, at the stream's beginning; freed with the device. */
  mark(): StreamMark;
  /** Resolves when all that was put into the stream so far is done. @throws CudaError after a device fault */
  settled(): Promise<void>;
  close(): void;
}
