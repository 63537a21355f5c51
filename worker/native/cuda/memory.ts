/** Device memory in arenas, pinned host memory, and checked copies between them. */
import { toArrayBuffer } from "bun:ffi";
import { assertInteger, openHandle } from "../library.ts";
import type { CudaContext } from "./context.ts";
import type { CudaStream } from "./stream.ts";

/** Buffers in an arena are aligned to this many bytes, which suffices for vector loads, cuBLASLt and bulk copies. */
const deviceAlignment = 256;

const alignUp = (bytes: number, alignment: number): number => Math.ceil(bytes / alignment) * alignment;

/** A range of device memory; the arena that it came from owns it. */
export class DeviceBuffer {
  readonly name: string;
  /** Device address. */
  readonly pointer: number;
  readonly byteLength: number;

  constructor(name: string, pointer: number, byteLength: number) {
    this.name = name;
    this.pointer = pointer;
    this.byteLength = byteLength;
  }

  /** A part of this buffer. @throws RangeError when it does not lie within */
  slice(byteOffset: number, byteLength = this.byteLength - byteOffset, name = this.name): DeviceBuffer {
    assertRange(this.name, this.byteLength, byteOffset, byteLength);
    return new DeviceBuffer(name, this.pointer + byteOffset, byteLength);
  }
}

/** One allocation of the driver, handed out from its start. Only the arena as a whole is freed. */
export class DeviceArena {
  readonly name: string;
  readonly byteLength: number;
  readonly #context: CudaContext;
  readonly #pointer: number;
  #usedBytes = 0;
  #closed = false;

  /** @throws CudaError, for instance when memory is short (`isOutOfMemory`) */
  constructor(context: CudaContext, name: string, byteLength: number) {
    assertInteger(`bytes of arena "${name}"`, byteLength, 1, Number.MAX_SAFE_INTEGER);
    const { driver } = context;
    const call = `cuMemAlloc_v2 (${byteLength} bytes for arena "${name}")`;
    this.name = name;
    this.byteLength = byteLength;
    this.#context = context;
    this.#pointer = openHandle((out) => driver.check(call, driver.symbols.cuMemAlloc_v2(out, byteLength)));
  }

  get leftBytes(): number {
    return this.byteLength - this.#usedBytes;
  }

  /** The next `byteLength` bytes, not cleared. @throws RangeError when fewer are left */
  allocate(name: string, byteLength: number): DeviceBuffer {
    if (this.#closed) throw new Error(`arena "${this.name}" is closed`);
    assertInteger(`bytes of "${name}"`, byteLength, 0, Number.MAX_SAFE_INTEGER);
    if (byteLength > this.leftBytes) {
      const left = `${this.leftBytes} of ${this.byteLength} bytes`;
      throw new RangeError(`arena "${this.name}" has ${left} left, "${name}" needs ${byteLength}`);
    }
    const buffer = new DeviceBuffer(name, this.#pointer + this.#usedBytes, byteLength);
    this.#usedBytes = Math.min(this.byteLength, this.#usedBytes + alignUp(byteLength, deviceAlignment));
    return buffer;
  }

  /** Frees the memory; the device must be done with it. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#context.driver.call("cuMemFree_v2", this.#pointer);
  }
}

/** Page-locked host memory: the device copies to and from it while the host goes on. Initially zero. */
export class PinnedBuffer {
  /** The whole memory; not valid after `close`. */
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly #context: CudaContext;
  readonly #address: ReturnType<typeof openHandle>;
  #closed = false;

  constructor(context: CudaContext, name: string, byteLength: number) {
    assertInteger(`bytes of pinned buffer "${name}"`, byteLength, 1, 2 ** 32);
    const { driver } = context;
    const call = `cuMemHostAlloc (${byteLength} bytes for "${name}")`;
    this.#context = context;
    this.#address = openHandle((out) => driver.check(call, driver.symbols.cuMemHostAlloc(out, byteLength, 0)));
    this.bytes = new Uint8Array(toArrayBuffer(this.#address, 0, byteLength));
    this.bytes.fill(0);
  }

  /** Frees the memory; arrays over it must not be used any more. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#context.driver.call("cuMemFreeHost", this.#address);
  }
}

/**
 * Host memory of a copy. It is read or written when the stream reaches the copy; if it is not pinned, during the call.
 */
export type HostArray = Uint8Array | Uint16Array | Int32Array | Uint32Array | Float32Array | BigUint64Array;

/**
 * Puts a copy of all of `source` into the stream. The caller keeps `source` alive and unchanged until the stream has
 * reached the copy; memory that is not pinned is copied by the driver before the call returns.
 */
export function copyToDevice(stream: CudaStream, target: DeviceBuffer, source: HostArray, targetOffset = 0): void {
  assertRange(target.name, target.byteLength, targetOffset, source.byteLength);
  if (source.byteLength === 0) return;
  const { symbols } = stream.context.driver;
  const address = target.pointer + targetOffset;
  const status = symbols.cuMemcpyHtoDAsync_v2(address, source, source.byteLength, stream.handle);
  if (status !== 0) stream.context.driver.check(`cuMemcpyHtoDAsync_v2 (to "${target.name}")`, status);
}

/** Puts a copy that fills `target` into the stream; `target` is valid once the stream has passed it. */
export function copyToHost(stream: CudaStream, target: HostArray, source: DeviceBuffer, sourceOffset = 0): void {
  assertRange(source.name, source.byteLength, sourceOffset, target.byteLength);
  if (target.byteLength === 0) return;
  const { symbols } = stream.context.driver;
  const address = source.pointer + sourceOffset;
  const status = symbols.cuMemcpyDtoHAsync_v2(target, address, target.byteLength, stream.handle);
  if (status !== 0) stream.context.driver.check(`cuMemcpyDtoHAsync_v2 (from "${source.name}")`, status);
}

/** Sets every byte of `target` to `value` (default 0) when the stream reaches it. */
export function fillDevice(stream: CudaStream, target: DeviceBuffer, value = 0): void {
  assertInteger("value", value, 0, 255);
  if (target.byteLength === 0) return;
  const { symbols } = stream.context.driver;
  const status = symbols.cuMemsetD8Async(target.pointer, value, target.byteLength, stream.handle);
  if (status !== 0) stream.context.driver.check(`cuMemsetD8Async ("${target.name}")`, status);
}

function assertRange(name: string, byteLength: number, offset: number, count: number): void {
  const isWithin = Number.isInteger(offset) && Number.isInteger(count) && offset >= 0 && count >= 0;
  if (!isWithin || offset + count > byteLength) {
    throw new RangeError(`${count} bytes at ${offset} do not lie within "${name}" of ${byteLength} bytes`);
  }
}
