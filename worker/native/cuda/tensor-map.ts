/**
 * Describes a matrix in device memory to the bulk copy engine (cuTensorMapEncodeTiled). Kernels name boxes of it, which
 * arrive in shared memory with the 128-byte swizzle. Compute capability 9.0 and later.
 */
import { ptr } from "bun:ffi";
import { assertInteger } from "../library.ts";
import type { CudaContext } from "./context.ts";
import type { DeviceBuffer } from "./memory.ts";

export const tensorMapBytes = 128;
/** Alignment of a map in bytes, on the host and on the device. */
const mapAlignment = 64;

// Enumerators of cuda.h.
const dataTypeBfloat16 = 9;
const interleaveNone = 0;
const swizzle128 = 3;
const promotion256 = 3;
const fillNone = 0;

/** Columns of a box: 128 bytes, as the swizzle requires. */
const boxColumns = 64;
const mostBoxRows = 256;

/**
 * @param matrix rows of `width` bfloat16 one after the other, as many as the buffer holds
 * @param boxRows rows of a box of 64 columns
 * @returns 128 bytes for kernels, valid as long as the matrix stays where it is
 * @throws RangeError when the sizes fit no map, CudaError when the driver refuses
 */
export function encodeTensorMap(
  { driver }: CudaContext,
  matrix: DeviceBuffer,
  width: number,
  boxRows: number,
): Uint8Array<ArrayBuffer> {
  assertInteger("width of a tensor map", width, boxColumns, 2 ** 16);
  if (width % boxColumns !== 0) throw new RangeError(`width ${width} of a tensor map is no multiple of ${boxColumns}`);
  assertInteger("rows of a tensor map's box", boxRows, 1, mostBoxRows);
  const rowBytes = 2 * width;
  const rows = Math.floor(matrix.byteLength / rowBytes);
  assertInteger("rows of a tensor map", rows, 1, 2 ** 31 - 1);
  const memory = new ArrayBuffer(tensorMapBytes + mapAlignment);
  const skip = (mapAlignment - (ptr(memory) % mapAlignment)) % mapAlignment;
  const status = driver.symbols.cuTensorMapEncodeTiled(
    ptr(memory, skip),
    dataTypeBfloat16,
    2,
    BigInt(matrix.pointer),
    BigUint64Array.of(BigInt(width), BigInt(rows)),
    BigUint64Array.of(BigInt(rowBytes)),
    Uint32Array.of(boxColumns, boxRows),
    Uint32Array.of(1, 1),
    interleaveNone,
    swizzle128,
    promotion256,
    fillNone,
  );
  driver.check("cuTensorMapEncodeTiled", status);
  return new Uint8Array(memory, skip, tensorMapBytes);
}
