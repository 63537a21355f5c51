/** Device memory of the emulated device: one flat address space, and typed views of it by address. */
import { DeviceBuffer } from "../../../worker/backend/cuda/device/device.ts";
import type { KvElement } from "../../../worker/backend/cuda/pool.ts";
import { bfloat16Of } from "../../../worker/backend/cuda/weights/tensor-reader.ts";

/** The first address: an address below it is a mistake, null among them. */
const base = 4_096;

const wasmPageBytes = 65_536;

/**
 * Zeros of which the machine has a page only once it is touched: most of what a backend allocates is for steps and
 * weights larger than any test has. An ArrayBuffer's own are all written when it is made; memory of a WebAssembly
 * module is not, and there is of it what is a whole number of its pages.
 */
export function zeros(byteLength: number): ArrayBuffer {
  const pages = byteLength / wasmPageBytes;
  if (!Number.isInteger(pages)) return new ArrayBuffer(byteLength);
  return new WebAssembly.Memory({ initial: pages, maximum: pages }).buffer;
}

export class EmulatedMemory {
  readonly bytes: ArrayBuffer;
  /** Attention is compiled for it. */
  headDim = 0;
  /** So is it for a cap of scores. */
  scoreCap: number | undefined;
  /** What a KV pool holds; all kernels are compiled for it. */
  kvElement: KvElement = "bfloat16";
  private used = base;

  constructor(byteLength: number) {
    this.bytes = zeros(byteLength);
  }

  get freeBytes(): number {
    return this.bytes.byteLength - this.used;
  }

  allocate(name: string, byteLength: number): DeviceBuffer {
    if (byteLength > this.freeBytes) throw new Error(`out of memory for "${name}"`);
    const buffer = new DeviceBuffer(name, this.used, byteLength);
    this.used += Math.ceil(byteLength / 256) * 256;
    // What is read before it is written shows: 0xffff is a NaN as bfloat16, and as float32.
    this.uint8(buffer).fill(0xff);
    return buffer;
  }

  int32(buffer: DeviceBuffer): Int32Array {
    return new Int32Array(this.bytes, buffer.pointer, Math.floor(buffer.byteLength / 4));
  }

  float32(buffer: DeviceBuffer): Float32Array {
    return new Float32Array(this.bytes, buffer.pointer, Math.floor(buffer.byteLength / 4));
  }

  bfloat16(buffer: DeviceBuffer): Bfloat16Array {
    return new Bfloat16Array(new Uint16Array(this.bytes, buffer.pointer, Math.floor(buffer.byteLength / 2)));
  }

  uint8(buffer: DeviceBuffer): Uint8Array {
    return new Uint8Array(this.bytes, buffer.pointer, buffer.byteLength);
  }
}

/** A float32 and its bits. */
const value = new Float32Array(1);
const word = new Uint32Array(value.buffer);

/** Reads and writes float numbers in memory that holds bfloat16; out of range throws. */
export class Bfloat16Array {
  readonly halves: Uint16Array;

  constructor(halves: Uint16Array) {
    this.halves = halves;
  }

  get(index: number): number {
    this.#assertWithin("read", index, 1);
    word[0] = this.halves[index] << 16;
    return value[0];
  }

  set(index: number, written: number): void {
    this.#assertWithin("write", index, 1);
    value[0] = written;
    this.halves[index] = bfloat16Of(word[0]);
  }

  setRow(start: number, values: Float32Array): void {
    this.#assertWithin("write", start, values.length);
    for (let i = 0; i < values.length; i++) {
      value[0] = values[i];
      this.halves[start + i] = bfloat16Of(word[0]);
    }
  }

  /** `count` values from `start` on, as float32. */
  row(start: number, count: number): Float32Array {
    this.#assertWithin("read", start, count);
    const values = new Float32Array(count);
    for (let i = 0; i < count; i++) {
      word[0] = this.halves[start + i] << 16;
      values[i] = value[0];
    }
    return values;
  }

  #assertWithin(access: string, start: number, count: number): void {
    const { length } = this.halves;
    if (!(start >= 0 && start + count <= length)) {
      throw new RangeError(`${access} of ${count} values at ${start} of ${length}`);
    }
  }
}
