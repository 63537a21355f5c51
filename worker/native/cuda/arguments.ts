/**
 * A kernel's arguments in memory that the driver reads at a launch. They are packed once and cost a launch nothing
 * more; a captured graph keeps the values that they had at the capture.
 */
import { ptr } from "bun:ffi";
import { assertInteger } from "../library.ts";
import { DeviceBuffer } from "./memory.ts";

/** A struct that is passed by value; the size is its `sizeof`. */
export interface StructType {
  readonly structBytes: number;
}

/** "ptr" is a device buffer, or null for an optional parameter. */
export type ParameterType = "i32" | "u32" | "i64" | "u64" | "f32" | "ptr" | StructType;

export type Signature = readonly ParameterType[];

export type ArgumentOf<Type extends ParameterType> = Type extends "i32" | "u32" | "f32"
  ? number
  : Type extends "i64" | "u64"
    ? number | bigint
    : Type extends "ptr"
      ? DeviceBuffer | null
      : Uint8Array;

export type ArgumentsOf<Types extends Signature> = { readonly [Index in keyof Types]: ArgumentOf<Types[Index]> };

const scalarBytes = { i32: 4, u32: 4, f32: 4, i64: 8, u64: 8, ptr: 8 } as const;

/** `sizeof` of a parameter. */
export function parameterBytes(type: ParameterType): number {
  return typeof type === "string" ? scalarBytes[type] : type.structBytes;
}

/** At least the alignment of any parameter. */
const slotAlignment = 16;

export class PackedArguments<Types extends Signature = Signature> {
  readonly signature: Types;
  /** Address of an array with the address of each argument: `kernelParams` of cuLaunchKernel. */
  readonly address: number;
  readonly #name: string;
  readonly #view: DataView;
  readonly #offsets: readonly number[];
  /** Keeps the memory behind `address` alive. */
  readonly #addresses: BigUint64Array;

  /**
   * @param name the kernel's name, for error messages
   * @throws RangeError or TypeError naming the argument that does not fit its type
   */
  constructor(name: string, signature: Types, values: ArgumentsOf<Types>) {
    if (values.length !== signature.length) {
      throw new RangeError(`"${name}" takes ${signature.length} arguments, not ${values.length}`);
    }
    const offsets: number[] = [];
    let byteLength = 0;
    for (const type of signature) {
      offsets.push(byteLength);
      byteLength += Math.ceil(parameterBytes(type) / slotAlignment) * slotAlignment;
    }
    // One spare slot, as an empty buffer has no address. An ArrayBuffer made here never moves, unlike a small typed
    // array's.
    const memory = new ArrayBuffer(byteLength + slotAlignment);
    const base = ptr(memory);
    this.signature = signature;
    this.#name = name;
    this.#view = new DataView(memory);
    this.#offsets = offsets;
    this.#addresses = new BigUint64Array(new ArrayBuffer((signature.length + 1) * 8));
    offsets.forEach((offset, index) => {
      this.#addresses[index] = BigInt(base + offset);
      this.#write(index, values[index]);
    });
    this.address = ptr(this.#addresses);
  }

  #write(index: number, value: unknown): void {
    const type = this.signature[index] as ParameterType;
    write(`argument ${index} of "${this.#name}"`, this.#view, this.#offsets[index] ?? 0, type, value);
  }
}

function write(name: string, view: DataView, offset: number, type: ParameterType, value: unknown): void {
  if (typeof type !== "string") return writeStruct(name, view, offset, type.structBytes, value);
  switch (type) {
    case "i32":
      return view.setInt32(offset, integer(name, value, -(2 ** 31), 2 ** 31 - 1), true);
    case "u32":
      return view.setUint32(offset, integer(name, value, 0, 2 ** 32 - 1), true);
    case "i64":
      return view.setBigInt64(offset, bigInteger(name, value, -(2n ** 63n), 2n ** 63n - 1n), true);
    case "u64":
      return view.setBigUint64(offset, bigInteger(name, value, 0n, 2n ** 64n - 1n), true);
    case "f32":
      if (typeof value !== "number" || Number.isNaN(value))
        throw new TypeError(`${name} must be a number, not ${value}`);
      return view.setFloat32(offset, value, true);
    case "ptr":
      if (value !== null && !(value instanceof DeviceBuffer)) throw new TypeError(`${name} must be a device buffer`);
      return view.setBigUint64(offset, BigInt(value?.pointer ?? 0), true);
  }
}

function integer(name: string, value: unknown, low: number, high: number): number {
  if (typeof value !== "number") throw new TypeError(`${name} must be a number, not ${value}`);
  assertInteger(name, value, low, high);
  return value;
}

function bigInteger(name: string, value: unknown, low: bigint, high: bigint): bigint {
  if (typeof value !== "bigint" && !Number.isSafeInteger(value)) {
    throw new TypeError(`${name} must be a safe integer or a bigint, not ${value}`);
  }
  const exact = BigInt(value as number | bigint);
  if (exact < low || exact > high) throw new RangeError(`${name} must be from ${low} to ${high}, not ${exact}`);
  return exact;
}

function writeStruct(name: string, view: DataView, offset: number, structBytes: number, value: unknown): void {
  if (!(value instanceof Uint8Array) || value.byteLength !== structBytes) {
    throw new TypeError(`${name} must be a Uint8Array of ${structBytes} bytes`);
  }
  new Uint8Array(view.buffer).set(value, offset);
}
