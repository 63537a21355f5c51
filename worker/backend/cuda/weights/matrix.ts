/** A matrix of weights on the device. */
import type { DeviceBuffer } from "../device/device.ts";
import type { MatrixScales } from "./e4m3.ts";

/** [outWidth, inWidth] */
export interface Matrix {
  readonly values: DeviceBuffer;
  readonly outWidth: number;
  readonly inWidth: number;
  /** Set where the values are e4m3; else they are bfloat16. */
  readonly scales?: MatrixScales;
}
