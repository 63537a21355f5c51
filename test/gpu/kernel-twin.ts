/**
 * One address space twice: emulated here (test/backend/cuda) and real on the device. A launch runs in both, from the
 * same bytes, and then all memory is compared: outputs within a tolerance, everything else bit for bit. Memory that
 * nobody wrote is NaN on both sides, so an output left out shows, and so does a write where none belongs.
 */
import type {
  ComputeDevice,
  DeviceBuffer,
  HostArray,
  LaunchSize,
  MatmulShape,
} from "../../worker/backend/cuda/device/device.ts";
import type { KernelName } from "../../worker/backend/cuda/device/kernels.ts";
import type { KvElement } from "../../worker/backend/cuda/pool.ts";
import type { MatmulOperands } from "../../worker/native/cuda/cublaslt.ts";
import { emulatedBytesMatmul } from "../backend/cuda/emulated-e4m3.ts";
import { emulate } from "../backend/cuda/emulated-kernels.ts";
import { EmulatedMemory } from "../backend/cuda/emulated-memory.ts";
import { fromE4m3 } from "../model/quantised-folder.ts";

/** Where results may differ, and by how much: |device - twin| <= absolute + relative * |twin|. */
export interface Output {
  readonly buffer: DeviceBuffer;
  readonly type: "bfloat16" | "float32" | "e4m3";
  readonly relative: number;
  readonly absolute: number;
}

/** Half a unit in the last place of bfloat16, twice: both sides round, and may fall to different sides. */
export const bfloat16Step = 2 ** -7;

/** What of a device is used; only products need the last. */
export type TwinDevice = Pick<ComputeDevice, "allocate" | "allocateHost" | "copyIn" | "copyOut" | "settled"> & {
  readonly prepare: unknown;
  readonly matmul?: ComputeDevice["matmul"];
};

export class KernelTwin {
  readonly memory: EmulatedMemory;
  private readonly device: TwinDevice;
  private readonly real: DeviceBuffer;
  private readonly staging: Uint8Array<ArrayBuffer>;

  constructor(device: TwinDevice, byteLength: number, headDim: number, kvElement: KvElement = "bfloat16") {
    this.device = device;
    this.memory = new EmulatedMemory(byteLength);
    this.memory.headDim = headDim;
    this.memory.kvElement = kvElement;
    this.real = device.allocate("twin", byteLength);
    this.staging = device.allocateHost("twin", byteLength);
  }

  /** Memory of both sides with these contents. */
  put(name: string, values: Int32Array | Float32Array | Uint16Array | Uint8Array): DeviceBuffer {
    const buffer = this.memory.allocate(name, values.byteLength);
    this.memory.uint8(buffer).set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
    return buffer;
  }

  /** The same, rounded to bfloat16. */
  putBfloat16(name: string, values: Float32Array): DeviceBuffer {
    const buffer = this.memory.allocate(name, values.length * 2);
    this.memory.bfloat16(buffer).setRow(0, values);
    return buffer;
  }

  space(name: string, byteLength: number): DeviceBuffer {
    return this.memory.allocate(name, byteLength);
  }

  /** What stands in memory now goes to the device. */
  upload(): void {
    this.staging.set(new Uint8Array(this.memory.bytes));
    this.device.copyIn(this.real, this.staging);
  }

  launch(name: KernelName, values: readonly unknown[], size: LaunchSize): void {
    const here = values.map((value) => (isBuffer(value) ? this.real.slice(value.pointer, value.byteLength) : value));
    const prepare = this.device.prepare as (name: KernelName, ...values: unknown[]) => (size: LaunchSize) => void;
    prepare.call(this.device, name, ...here)(size);
    emulate(this.memory, name, values, size.grid as readonly number[]);
  }

  matmul(shape: MatmulShape, { input, weights, output, scales }: MatmulOperands): void {
    const here = (buffer: DeviceBuffer) => this.real.slice(buffer.pointer, buffer.byteLength);
    if (this.device.matmul === undefined) throw new Error("this device multiplies no matrices");
    this.device.matmul(shape, {
      input: here(input),
      weights: here(weights),
      output: here(output),
      ...(scales && { scales: { input: here(scales.input), weights: here(scales.weights) } }),
    });
    emulatedBytesMatmul(this.memory, shape, { input, weights, output, ...(scales && { scales }) });
  }

  /** Runs what is no launch of one kernel on the device, given where buffers are there, and in the twin. */
  both(
    onDevice: (real: (buffer: DeviceBuffer) => DeviceBuffer) => void,
    onTwin: (memory: EmulatedMemory) => void,
  ): void {
    onDevice((buffer) => this.real.slice(buffer.pointer, buffer.byteLength));
    onTwin(this.memory);
  }

  /** What a buffer holds on the device. */
  async read(buffer: DeviceBuffer): Promise<Uint8Array> {
    this.device.copyOut(this.staging as HostArray, this.real);
    await this.device.settled();
    return this.staging.slice(buffer.pointer, buffer.pointer + buffer.byteLength);
  }

  /**
   * @param scratch what the device alone writes, as its twin has no use for it
   * @returns the greatest differences. @throws Error naming the first place that is wrong
   */
  async compare(outputs: readonly Output[], scratch: readonly DeviceBuffer[] = []): Promise<string> {
    this.device.copyOut(this.staging as HostArray, this.real);
    await this.device.settled();
    const words = outputs.map((output) => this.compareOutput(output));
    const [ours, theirs] = [new Uint8Array(this.memory.bytes), this.staging];
    for (const buffer of [...outputs.map((output) => output.buffer), ...scratch]) {
      theirs.set(ours.subarray(buffer.pointer, buffer.pointer + buffer.byteLength), buffer.pointer);
    }
    if (Buffer.compare(ours, theirs) !== 0) {
      throw new Error(`the device wrote at ${ours.findIndex((byte, i) => byte !== theirs[i])}, where nothing belongs`);
    }
    return words.join(", ");
  }

  private compareOutput({ buffer, type, relative, absolute }: Output): string {
    const here = this.view(this.memory.bytes, buffer, type);
    const there = this.view(this.staging.buffer, buffer, type, this.staging.byteOffset);
    let worst = 0;
    for (let i = 0; i < here.length; i++) {
      const [wanted, got] = [here[i], there[i]];
      if (Object.is(wanted, got) || (Number.isNaN(wanted) && Number.isNaN(got))) continue;
      const difference = Math.abs(wanted - got);
      if (!(difference <= absolute + relative * Math.abs(wanted))) {
        throw new Error(`${buffer.name}[${i}] is ${got} on the device, ${wanted} in its twin`);
      }
      worst = Math.max(worst, difference / (absolute + relative * Math.abs(wanted)));
    }
    return `${buffer.name} ${worst.toFixed(2)} of the tolerance`;
  }

  private view(bytes: ArrayBuffer, buffer: DeviceBuffer, type: Output["type"], offset = 0): Float32Array {
    const start = offset + buffer.pointer;
    if (type === "e4m3") return Float32Array.from(new Uint8Array(bytes, start, buffer.byteLength), fromE4m3);
    if (type === "float32") return new Float32Array(bytes, start, buffer.byteLength / 4);
    const halves = new Uint16Array(bytes, start, buffer.byteLength / 2);
    return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
  }
}

function isBuffer(value: unknown): value is DeviceBuffer {
  return typeof value === "object" && value !== null && "pointer" in value;
}
