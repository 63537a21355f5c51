/**
 * The CUDA driver as bun:ffi sees it. Entry points carry the version suffix of the 64-bit ABI where `cuda.h` hides
 * it behind a macro. Handles and device addresses are numbers (user space has 47 bits); sizes are bytes.
 */
import { CString, type Library, type Pointer } from "bun:ffi";
import { assertInteger } from "../library.ts";
import { CudaUnavailable, libraryPaths, openFirstLibrary } from "./library-names.ts";

/** CUDA 12.4: the first driver that reports a kernel's parameters (cuFuncGetParamInfo). */
const oldestVersion = 12_040;

const probeSymbols = {
  cuInit: { args: ["u32"], returns: "i32" },
  cuDriverGetVersion: { args: ["ptr"], returns: "i32" },
} as const;

// Argument types; cuda.h explains each. u64: CUdeviceptr and size_t. ptr: handles, and memory that the call writes to.
const driverSymbols = {
  ...probeSymbols,
  cuGetErrorName: { args: ["i32", "ptr"], returns: "i32" },
  cuGetErrorString: { args: ["i32", "ptr"], returns: "i32" },
  cuDeviceGetCount: { args: ["ptr"], returns: "i32" },
  cuDeviceGet: { args: ["ptr", "i32"], returns: "i32" },
  cuDeviceGetName: { args: ["ptr", "i32", "i32"], returns: "i32" },
  cuDeviceTotalMem_v2: { args: ["ptr", "i32"], returns: "i32" },
  cuDeviceGetAttribute: { args: ["ptr", "i32", "i32"], returns: "i32" },
  cuDevicePrimaryCtxRetain: { args: ["ptr", "i32"], returns: "i32" },
  cuDevicePrimaryCtxRelease_v2: { args: ["i32"], returns: "i32" },
  cuCtxSetCurrent: { args: ["ptr"], returns: "i32" },
  cuMemGetInfo_v2: { args: ["ptr", "ptr"], returns: "i32" },
  cuMemAlloc_v2: { args: ["ptr", "u64"], returns: "i32" },
  cuMemFree_v2: { args: ["u64"], returns: "i32" },
  cuMemHostAlloc: { args: ["ptr", "u64", "u32"], returns: "i32" },
  cuMemFreeHost: { args: ["ptr"], returns: "i32" },
  cuMemcpyHtoDAsync_v2: { args: ["u64", "ptr", "u64", "ptr"], returns: "i32" },
  cuMemcpyDtoHAsync_v2: { args: ["ptr", "u64", "u64", "ptr"], returns: "i32" },
  cuMemsetD8Async: { args: ["u64", "u8", "u64", "ptr"], returns: "i32" },
  cuTensorMapEncodeTiled: {
    args: ["ptr", "i32", "u32", "u64", "ptr", "ptr", "ptr", "ptr", "i32", "i32", "i32", "i32"],
    returns: "i32",
  },
  cuStreamCreateWithPriority: { args: ["ptr", "u32", "i32"], returns: "i32" },
  cuStreamDestroy_v2: { args: ["ptr"], returns: "i32" },
  cuStreamWaitEvent: { args: ["ptr", "ptr", "u32"], returns: "i32" },
  cuStreamSynchronize: { args: ["ptr"], returns: "i32" },
  cuStreamBeginCapture_v2: { args: ["ptr", "i32"], returns: "i32" },
  cuStreamEndCapture: { args: ["ptr", "ptr"], returns: "i32" },
  cuEventCreate: { args: ["ptr", "u32"], returns: "i32" },
  cuEventRecord: { args: ["ptr", "ptr"], returns: "i32" },
  cuEventQuery: { args: ["ptr"], returns: "i32" },
  cuEventDestroy_v2: { args: ["ptr"], returns: "i32" },
  cuModuleLoadData: { args: ["ptr", "ptr"], returns: "i32" },
  cuModuleGetFunction: { args: ["ptr", "ptr", "ptr"], returns: "i32" },
  cuModuleUnload: { args: ["ptr"], returns: "i32" },
  cuFuncGetAttribute: { args: ["ptr", "i32", "ptr"], returns: "i32" },
  cuFuncSetAttribute: { args: ["ptr", "i32", "i32"], returns: "i32" },
  cuFuncGetParamInfo: { args: ["ptr", "u64", "ptr", "ptr"], returns: "i32" },
  cuLaunchKernelEx: { args: ["ptr", "ptr", "ptr", "ptr"], returns: "i32" },
  cuLaunchKernel: {
    args: ["ptr", "u32", "u32", "u32", "u32", "u32", "u32", "u32", "ptr", "ptr", "ptr"],
    returns: "i32",
  },
  cuGraphInstantiateWithFlags: { args: ["ptr", "ptr", "u64"], returns: "i32" },
  cuGraphUpload: { args: ["ptr", "ptr"], returns: "i32" },
  cuGraphLaunch: { args: ["ptr", "ptr"], returns: "i32" },
  cuGraphExecDestroy: { args: ["ptr"], returns: "i32" },
  cuGraphDestroy: { args: ["ptr"], returns: "i32" },
} as const;

export type DriverSymbols = Library<typeof driverSymbols>["symbols"];

/** A call that the driver or a CUDA library refused, or a fault on the device that a call reports. */
export class CudaError extends Error {
  override readonly name = "CudaError";
  /** The library's name of the error, such as CUDA_ERROR_OUT_OF_MEMORY. */
  readonly codeName: string;

  /** @param code the library's own number (CUresult, nvrtcResult, cublasStatus_t) */
  constructor(call: string, code: number, codeName: string, text: string) {
    super(`${call}: ${codeName} (${code})${text === "" ? "" : `: ${text}`}`);
    this.codeName = codeName;
  }

  get isOutOfMemory(): boolean {
    return this.codeName === "CUDA_ERROR_OUT_OF_MEMORY";
  }
}

/** The CUresult of a query whose work is still running. */
const notReady = 600;

/** 12040 -> "12.4" */
export function versionText(version: number): string {
  return `${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;
}

export interface DriverOptions {
  /** Libraries to try, in this order; default: libcuda.so.1, libcuda.so. */
  readonly libraryNames?: readonly string[];
}

export class CudaDriver {
  readonly symbols: DriverSymbols;
  /** The CUDA version that the driver supports, as 13000 for 13.0. */
  readonly version: number;
  readonly deviceCount: number;

  /** @throws CudaUnavailable when there is no driver, it is too old, or it finds no device */
  constructor(options: DriverOptions = {}) {
    const paths = libraryPaths(options.libraryNames ?? ["libcuda.so.1", "libcuda.so"]);
    const probe = openFirstLibrary("no NVIDIA driver", paths, probeSymbols);
    const number = new Int32Array(1);
    const version = probe.symbols.cuDriverGetVersion(number) === 0 ? (number[0] ?? 0) : 0;
    if (version < oldestVersion) {
      const needed = `Spangate needs ${versionText(oldestVersion)} or newer`;
      throw new CudaUnavailable(`the NVIDIA driver is too old: it supports CUDA ${versionText(version)}, ${needed}`);
    }
    this.version = version;
    this.symbols = openFirstLibrary("no NVIDIA driver", paths, driverSymbols).symbols;
    try {
      this.call("cuInit", 0);
      this.call("cuDeviceGetCount", number);
    } catch (error) {
      throw new CudaUnavailable(`no usable NVIDIA device: ${error instanceof Error ? error.message : String(error)}`);
    }
    this.deviceCount = number[0] ?? 0;
  }

  /** Calls a function of the driver; for calls that are not made in every step. @throws CudaError unless it gives 0 */
  call<Name extends keyof DriverSymbols>(name: Name, ...values: Parameters<DriverSymbols[Name]>): void {
    const native = this.symbols[name] as (...values: unknown[]) => number;
    this.check(name, native(...values));
  }

  /** @throws CudaError unless `status` is 0 */
  check(call: string, status: number): void {
    if (status !== 0) throw this.#errorOf(call, status);
  }

  /**
   * Tells which of its two answers a query gave: true for done, false for still running.
   * @throws CudaError for any other status
   */
  isDone(call: string, status: number): boolean {
    if (status === notReady) return false;
    this.check(call, status);
    return true;
  }

  #errorOf(call: string, status: number): CudaError {
    const { cuGetErrorName, cuGetErrorString } = this.symbols;
    const text = new BigUint64Array(1);
    const read = (status: number): string => (status === 0 && text[0] ? cString(Number(text[0])) : "");
    const codeName = read(cuGetErrorName(status, text)) || "unknown CUDA error";
    return new CudaError(call, status, codeName, read(cuGetErrorString(status, text)));
  }
}

/** Reads a C string in the library's memory. */
export const cString = (address: number): string => new CString(address as Pointer).toString();

/** Makes a C string of a text. */
export function cText(text: string): Uint8Array {
  if (text.includes("\0")) throw new RangeError("a text for native code must not hold NUL");
  return new TextEncoder().encode(`${text}\0`);
}

export interface DeviceProperties {
  readonly index: number;
  /** The driver's number of the device (CUdevice). */
  readonly handle: number;
  readonly name: string;
  /** Compute capability times ten: 90 is 9.0. */
  readonly computeCapability: number;
  readonly multiprocessorCount: number;
  /** The most shared memory of one thread block, in bytes, for a kernel that opts in. */
  readonly maxSharedBytesPerBlock: number;
}

// CUdevice_attribute of cuda.h.
const attributes = {
  multiprocessorCount: 16,
  majorVersion: 75,
  minorVersion: 76,
  maxSharedBytesPerBlock: 97,
} as const;

/** @throws CudaUnavailable when there is no device of that index */
export function readDeviceProperties(driver: CudaDriver, index: number): DeviceProperties {
  assertInteger("device index", index, 0, 2 ** 31 - 1);
  if (index >= driver.deviceCount) {
    const found = driver.deviceCount === 1 ? "1 device" : `${driver.deviceCount} devices`;
    throw new CudaUnavailable(`cuda:${index} does not exist: the NVIDIA driver finds ${found}`);
  }
  const number = new Int32Array(1);
  driver.call("cuDeviceGet", number, index);
  const handle = number[0] ?? 0;
  const read = (attribute: keyof typeof attributes): number => {
    driver.call("cuDeviceGetAttribute", number, attributes[attribute], handle);
    return number[0] ?? 0;
  };
  const name = new Uint8Array(256);
  driver.call("cuDeviceGetName", name, name.length, handle);
  return {
    index,
    handle,
    name: new TextDecoder().decode(name.subarray(0, name.indexOf(0))),
    computeCapability: read("majorVersion") * 10 + read("minorVersion"),
    multiprocessorCount: read("multiprocessorCount"),
    maxSharedBytesPerBlock: read("maxSharedBytesPerBlock"),
  };
}
