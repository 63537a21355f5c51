/** The primary context of one device, in which everything else on the device is made. One per process. */
import { openHandle } from "../library.ts";
import { type CudaDriver, type DeviceProperties, readDeviceProperties } from "./driver.ts";
import { CudaUnavailable } from "./library-names.ts";

/** Ampere: the first architecture with bfloat16 matrix products and with asynchronous copies to shared memory. */
const oldestCapability = 80;

export class CudaContext {
  readonly driver: CudaDriver;
  readonly device: DeviceProperties;
  #closed = false;

  /**
   * Retains the device's primary context and makes it the current one of this thread.
   * @throws CudaUnavailable when there is no such device or it is too old, CudaError when the driver refuses
   */
  constructor(driver: CudaDriver, deviceIndex: number) {
    this.driver = driver;
    this.device = readDeviceProperties(driver, deviceIndex);
    assertCapability(this.device);
    const context = openHandle((out) => driver.call("cuDevicePrimaryCtxRetain", out, this.device.handle));
    driver.call("cuCtxSetCurrent", context);
  }

  freeBytes(): number {
    const free = new BigUint64Array(1);
    const total = new BigUint64Array(1);
    this.driver.call("cuMemGetInfo_v2", free, total);
    return Number(free[0]);
  }

  /** Releases the context; memory and modules in it that were not freed are freed with it. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.driver.call("cuDevicePrimaryCtxRelease_v2", this.device.handle);
  }
}

/** @throws CudaUnavailable */
export function assertCapability({ index, name, computeCapability }: DeviceProperties): void {
  if (computeCapability >= oldestCapability) return;
  const [has, needed] = [computeCapability, oldestCapability].map((value) => (value / 10).toFixed(1));
  throw new CudaUnavailable(`cuda:${index} (${name}) has compute capability ${has}, Spangate needs ${needed} or newer`);
}
