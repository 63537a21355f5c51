/** Device memory of the emulated device: one flat address space, and typed views of it by address. */
import { DeviceBuffer } from "../../../worker/backend/cuda/device/device.ts";
import { roundToBfloat16 } from "../../../worker/backend/cuda/weights/tensor-reader.ts";

/** The first address: an address below it is a mistake, null among them. */
const base = 4_096;

export class EmulatedMemory {
  readonly bytes: ArrayBuffer;
  /** Attention is compiled for it. */
  headDim = 0;
  private used = base;

  constructor(byteLength: number) {
    this.bytes = new ArrayBuffer(byteLength);
    // What is read before it is written shows: 0xffff is a NaN as bfloat16, and as float32.
    new Uint8Array(this.bytes).fill(0xff);
  }

  get freeBytes(): number {
    return this.bytes.byteLength - this.used;
  }

  allocate(name: string, byteLength: number): DeviceBuffer {
    if (byteLength > this.freeBytes) throw new Error(`out of memory for "${name}"`);
    const buffer = new DeviceBuffer(name, this.used, byteLength);
    this.used += Math.ceil(byteLength / 256) * 256;
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

/** Reads and writes float numbers in memory that holds bfloat16; out of range throws. */
export class Bfloat16Array {
  readonly halves: Uint16Array;
  private readonly word = new Uint32Array(1);
  private readonly value = new Float32Array(this.word.buffer);
  private readonly half = new Uint16Array(1);

  constructor(halves: Uint16Array) {
    this.halves = halves;
  }

  get(index: number): number {
    if (index < 0 || index >= this.halves.length) throw new RangeError(`read at ${index} of ${this.halves.length}`);
    this.word[0] = this.halves[index] << 16;
    return this.value[0];
  }

  set(index: number, value: number): void {
    if (index < 0 || index >= this.halves.length) throw new RangeError(`write at ${index} of ${this.halves.length}`);
    this.value[0] = value;
    roundToBfloat16(this.value, 1, this.half);
    this.halves[index] = this.half[0];
  }

  setRow(start: number, values: Float32Array): void {
    for (const [i, value] of values.entries()) this.set(start + i, value);
  }

  /** `count` values from `start` on, as float32. */
  row(start: number, count: number): Float32Array {
    return Float32Array.from({ length: count }, (_, i) => this.get(start + i));
  }
}
