/** Heads of q, k and v in the emulated device: their rotations, and their places in the KV pool. */
import type { DeviceBuffer } from "../../../worker/backend/cuda/device/device.ts";
import { decodeMx8Row, encodeMx8Row } from "../../support/gpu-mx8.ts";
import type { EmulatedMemory } from "./emulated-memory.ts";

/** Arguments as `prepare` got them. */
export type Values = readonly unknown[];

function rotate(head: Float32Array, rotations: Float32Array, rotaryDim: number): void {
  const half = rotaryDim / 2;
  for (let i = 0; i < half; i++) {
    const [cos, sin] = [rotations[2 * i], rotations[2 * i + 1]];
    const [x, y] = [head[i], head[i + half]];
    head[i] = x * cos - y * sin;
    head[i + half] = y * cos + x * sin;
  }
}

/** Rows of rotations around position 0: the table begins `context` rows before its origin. */
export class Rotations {
  private readonly memory: EmulatedMemory;
  private readonly origin: DeviceBuffer;

  constructor(memory: EmulatedMemory, origin: DeviceBuffer) {
    this.memory = memory;
    this.origin = origin;
  }

  rotate(head: Float32Array, position: number, rotaryDim: number): void {
    const rowBytes = rotaryDim * 4;
    const start = this.origin.pointer + position * rowBytes;
    rotate(head, new Float32Array(this.memory.bytes, start, rotaryDim), rotaryDim);
  }
}

export interface HeadPlace {
  readonly kvHeads: number;
  readonly headDim: number;
  readonly blockTokens: number;
}

/** A layer's part of the KV pool, in bfloat16 or in mx8. */
export class EmulatedPool {
  readonly #memory: EmulatedMemory;
  readonly #buffer: DeviceBuffer;
  readonly #place: HeadPlace;

  constructor(memory: EmulatedMemory, buffer: DeviceBuffer, place: HeadPlace) {
    this.#memory = memory;
    this.#buffer = buffer;
    this.#place = place;
  }

  /** K or V of one token and head. */
  row(slot: number, head: number, isKey: boolean): Float32Array {
    const memory = this.#memory;
    if (memory.kvElement === "mx8") return decodeMx8Row(memory.uint8(this.#buffer), this.#place, slot, head, isKey);
    return memory.bfloat16(this.#buffer).row(this.#offset(slot, head, isKey), this.#place.headDim);
  }

  setRow(slot: number, head: number, isKey: boolean, values: Float32Array): void {
    const memory = this.#memory;
    if (memory.kvElement === "mx8") encodeMx8Row(memory.uint8(this.#buffer), this.#place, slot, head, isKey, values);
    else memory.bfloat16(this.#buffer).setRow(this.#offset(slot, head, isKey), values);
  }

  #offset(slot: number, head: number, isKey: boolean): number {
    const { blockTokens, headDim } = this.#place;
    return keyOffset(this.#place, slot, head) + (isKey ? 0 : blockTokens * headDim);
  }
}

export function keyOffset({ kvHeads, headDim, blockTokens }: HeadPlace, slot: number, head: number): number {
  const block = Math.floor(slot / blockTokens) * kvHeads + head;
  return (block * 2 * blockTokens + (slot % blockTokens)) * headDim;
}
