/** CUlaunchConfig of cuda.h with one attribute: a launch that may begin while the one before it still runs. */
import { type Pointer, ptr } from "bun:ffi";

/** sizeof and offsets on 64-bit machines: seven u32, the stream, a pointer to the attributes, and their count. */
const config = { bytes: 56, stream: 32, attributes: 40, attributeCount: 48 } as const;
const attribute = { bytes: 72, value: 8 } as const;

/** CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
const programmaticSerialization = 6;

/** Memory that cuLaunchKernelEx reads during the call; one object serves any number of launches. */
export class OverlappingLaunch {
  readonly address: Pointer;
  readonly #view: DataView;
  /** Keeps the memory alive that the configuration points to. */
  readonly #attribute: DataView;

  constructor() {
    this.#attribute = new DataView(new ArrayBuffer(attribute.bytes));
    this.#attribute.setUint32(0, programmaticSerialization, true);
    this.#attribute.setInt32(attribute.value, 1, true);
    this.#view = new DataView(new ArrayBuffer(config.bytes));
    this.#view.setBigUint64(config.attributes, BigInt(ptr(this.#attribute.buffer as ArrayBuffer)), true);
    this.#view.setUint32(config.attributeCount, 1, true);
    this.address = ptr(this.#view.buffer as ArrayBuffer);
  }

  /** @param extents grid x, y, z, block x, y, z and bytes of dynamic shared memory */
  set(extents: readonly number[], stream: Pointer): void {
    extents.forEach((extent, index) => {
      this.#view.setUint32(index * 4, extent, true);
    });
    this.#view.setBigUint64(config.stream, BigInt(stream), true);
  }
}
