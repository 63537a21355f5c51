/**
 * Reads tensors from safetensors files onto the device, in several lanes at once. The runtime's threads read a lane's
 * next part into pinned memory (bfloat16 as it is, other types rounded) while the part before is copied to the device.
 */
import { type FileHandle, open } from "node:fs/promises";
import { ModelError } from "../../../model/model-error.ts";
import { dtypeBytes } from "../../../model/safetensors.ts";
import { applyScales, assertWeights, rowElements, type StoredTensor, widen } from "../../../model/stored-form.ts";
import { unpairRows } from "../../../model/tensor-layout.ts";
import type { ComputeDevice, DeviceBuffer, HostArray } from "../device/device.ts";
import type { TensorReader, TensorUpload } from "./weights.ts";

interface TensorPart {
  readonly tensor: StoredTensor;
  /** The part has `count` elements, from element `first` of the tensor on. */
  readonly first: number;
  readonly count: number;
  readonly target: DeviceBuffer;
  readonly scale: number;
  /** The elements are bytes, and stay what they are. */
  readonly asStored: boolean;
  readonly greatestByte: number;
}

export interface FileReaderOptions {
  /** The most elements of a part; where the rows of a head change their order, at least one head is read whole. */
  readonly partElements?: number;
  /** How many lanes read at once. */
  readonly laneCount?: number;
}

/** Elements that all lanes stage together, unless one tensor that is read whole has more. */
const mostStagedElements = 1 << 27;

/** A lane reads into one slot while the other is copied to the device. */
const slotsOfLane = 2;

export class FileReader implements TensorReader {
  readonly #partElements: number;
  readonly #laneCount: number;

  constructor({ partElements = 1 << 20, laneCount = 16 }: FileReaderOptions = {}) {
    this.#partElements = partElements;
    this.#laneCount = laneCount;
  }

  async upload(device: ComputeDevice, uploads: readonly TensorUpload[]): Promise<void> {
    const files = new Map<string, FileHandle>();
    try {
      for (const { tensor } of uploads) {
        assertWeights(tensor);
        if (!files.has(tensor.file)) files.set(tensor.file, await open(tensor.file, "r"));
      }
      await this.#runLanes(device, files, [...this.#parts(uploads)]);
    } finally {
      for (const file of files.values()) await file.close();
    }
  }

  async #runLanes(device: ComputeDevice, files: ReadonlyMap<string, FileHandle>, parts: TensorPart[]): Promise<void> {
    const queue = parts.values();
    const slotElements = parts.reduce((most, { count }) => Math.max(most, count), this.#partElements);
    const mostLanes = Math.max(1, Math.floor(mostStagedElements / slotElements));
    const lanes = Math.min(this.#laneCount, parts.length, mostLanes);
    const slotBytes = slotElements * 2;
    const pinned = device.allocateHost("weights on their way", lanes * slotsOfLane * slotBytes);
    const run = async (lane: number): Promise<void> => {
      const slots = Array.from({ length: slotsOfLane }, (_, slot) => {
        const first = (lane * slotsOfLane + slot) * slotBytes;
        return { staging: new Uint16Array(pinned.buffer, first, slotElements), copied: device.mark() };
      });
      let next = 0;
      for (const part of queue) {
        const { staging, copied } = slots[next];
        next = (next + 1) % slotsOfLane;
        const file = files.get(part.tensor.file);
        if (file === undefined) throw new Error(`${part.tensor.file} is not open`);
        await copied.reached();
        device.copyIn(part.target, await readPart(file, part, staging));
        copied.set();
      }
      for (const { copied } of slots) await copied.reached();
    };
    // Every lane must have ended before the files are closed and the pinned memory is used again.
    const results = await Promise.allSettled(Array.from({ length: lanes }, (_, lane) => run(lane)));
    const failed = results.find((result) => result.status === "rejected");
    if (failed !== undefined) throw failed.reason;
  }

  *#parts(uploads: readonly TensorUpload[]): Generator<TensorPart> {
    for (const { tensor, target, scale, asStored = false, greatestByte = 255 } of uploads) {
      const size = asStored ? 1 : 2;
      const total = target.byteLength / size;
      const most = elementsAtOnce(tensor, this.#partElements);
      for (let first = 0; first < total; first += most) {
        const count = Math.min(most, total - first);
        const part = target.slice(first * size, count * size);
        yield { tensor, first, count, target: part, scale, asStored, greatestByte };
      }
    }
  }
}

/**
 * The most elements that are read at once. Rows are reordered only within their head, so whole heads are read; what is
 * transposed is read whole.
 */
function elementsAtOnce({ shape, pairedRows, stack }: StoredTensor, most: number): number {
  if (stack?.transposed) return shape.reduce((product, extent) => product * extent, 1);
  if (pairedRows === undefined) return most;
  const headElements = pairedRows.headDim * rowElements(shape);
  return Math.max(Math.floor(most / headElements), 1) * headElements;
}

/** What goes to the device, in the memory of `staging`. */
async function readPart(file: FileHandle, part: TensorPart, staging: Uint16Array<ArrayBuffer>): Promise<HostArray> {
  const { tensor, first, count, asStored, greatestByte } = part;
  if (!asStored) {
    await readBfloat16(file, part, staging);
    return staging.subarray(0, count);
  }
  const bytes = new Uint8Array(staging.buffer, staging.byteOffset, count);
  await readAll(file, tensor, bytes, first);
  const bad = greatestByte < 255 ? bytes.findIndex((byte) => byte > greatestByte) : -1;
  if (bad < 0) return bytes;
  const what = `scale ${first + bad} of a tensor in mxfp4 is ${bytes[bad]}`;
  throw new ModelError(`${tensor.file}: ${what}, and on a GPU scales are at most ${greatestByte}`);
}

async function readBfloat16(file: FileHandle, part: TensorPart, out: Uint16Array<ArrayBuffer>): Promise<void> {
  const { tensor, first, count, scale } = part;
  const size = dtypeBytes[tensor.dtype];
  const isDirect = tensor.dtype === "BF16" && scale === 1;
  const bytes = isDirect ? new Uint8Array(out.buffer, out.byteOffset, count * 2) : new Uint8Array(count * size);
  await readAll(file, tensor, bytes, first * size);
  if (!isDirect) {
    const values = widen(tensor.dtype, bytes);
    applyScales(values, tensor, first);
    roundToBfloat16(values, scale, out);
  }
  const { pairedRows, shape, stack } = tensor;
  if (pairedRows) unpairRows(out.slice(0, count), rowElements(shape), pairedRows, out);
  if (stack?.transposed) transpose(out.slice(0, count), shape[0], out);
}

/** @param stored [columns, rows]. @param out [rows, columns] */
function transpose(stored: Uint16Array, rows: number, out: Uint16Array): void {
  const columns = stored.length / rows;
  for (let column = 0; column < columns; column++) {
    for (let row = 0; row < rows; row++) out[row * columns + column] = stored[column * rows + row];
  }
}

/** @param at the first byte, counted from the tensor's */
async function readAll(file: FileHandle, tensor: StoredTensor, bytes: Uint8Array, at: number): Promise<void> {
  const position = tensor.start + at;
  let done = 0;
  while (done < bytes.length) {
    const { bytesRead } = await file.read(bytes, done, bytes.length - done, position + done);
    if (bytesRead === 0) throw new ModelError(`${tensor.file}: ends ${bytes.length - done} bytes too early`);
    done += bytesRead;
  }
}

/** Rounds to the nearest bfloat16, ties to even; NaN stays NaN. */
export function roundToBfloat16(values: Float32Array, scale: number, out: Uint16Array): void {
  const scaled = scale === 1 ? values : values.map((value) => value * scale);
  const words = new Uint32Array(scaled.buffer, scaled.byteOffset, scaled.length);
  for (let i = 0; i < words.length; i++) out[i] = bfloat16Of(words[i]);
}

/** The same of one value, from the 32 bits of a float32 to 16. */
export function bfloat16Of(word: number): number {
  const isNan = (word & 0x7fffffff) > 0x7f800000;
  return isNan ? (word >>> 16) | 0x40 : (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
}
