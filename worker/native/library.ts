/**
 * The CPU kernel library as bun:ffi sees it, and the checks around every call. bun:ffi silently takes undefined and NaN
 * for 0 and wraps integers that are out of range. So numbers are checked before a call and the status after it. Nothing
 * outside this folder imports bun:ffi.
 */
import { CString, dlopen, type Library, type Pointer, toArrayBuffer } from "bun:ffi";

/** A native call refused its arguments or failed. */
export class KernelError extends Error {
  override readonly name = "KernelError";
}

// The comments in kernels/abi.h say what each argument is.
const symbols = {
  spg_strerror: { args: ["i32"], returns: "ptr" },
  spg_open: { args: ["i32", "i32", "ptr"], returns: "i32" },
  spg_close: { args: ["ptr"], returns: "void" },
  spg_hold_threads: { args: ["ptr", "i32"], returns: "i32" },
  spg_isa_of: { args: ["ptr"], returns: "i32" },
  spg_pool_open: { args: ["ptr", "ptr", "ptr", "ptr", "ptr", "ptr"], returns: "i32" },
  spg_pool_close: { args: ["ptr"], returns: "void" },
  spg_pool_data: { args: ["ptr"], returns: "ptr" },
  spg_pool_bytes: { args: ["ptr"], returns: "i64" },
  spg_pool_resident_bytes: { args: ["ptr"], returns: "i64" },
  spg_step_begin: {
    args: [
      ...(["ptr", "ptr", "ptr", "i32", "ptr", "ptr", "ptr", "i32"] as const),
      ...(["ptr", "ptr", "ptr", "ptr", "ptr", "i32", "ptr", "i32"] as const),
    ],
    returns: "i32",
  },
  spg_attention: { args: ["ptr", "i32", "ptr", "i32", "ptr", "ptr", "ptr"], returns: "i32" },
  spg_write_kv: { args: ["ptr", "i32", "ptr", "i32", "ptr"], returns: "i32" },
  spg_attend: { args: ["ptr", "i32", "ptr", "i32", "ptr", "ptr"], returns: "i32" },
  spg_copy_tokens: { args: ["ptr", "ptr", "ptr", "ptr", "i32"], returns: "i32" },
  spg_deviations: { args: ["ptr", "i32", "ptr", "i32", "ptr", "ptr"], returns: "i32" },
  spg_pool_opens_blocks: { args: ["ptr"], returns: "i32" },
  spg_pool_open_blocks: {
    args: ["ptr", "ptr", "ptr", "i32", "ptr", "i64", "i32", "ptr", "i32", "ptr"],
    returns: "i32",
  },
  spg_pool_open_file_blocks: {
    args: ["ptr", "ptr", "ptr", "i32", "i32", "i64", "i64", "i32", "ptr", "i32", "ptr"],
    returns: "i32",
  },
  spg_file_at_hand: { args: ["i32", "i64", "i64"], returns: "i32" },
  spg_sparse_open: { args: ["ptr", "i32", "i32", "i32"], returns: "i32" },
  spg_shadow_bytes: { args: ["ptr"], returns: "i64" },
  spg_shadow_data: { args: ["ptr", "i32", "i32", "i32"], returns: "ptr" },
  spg_shadow_blocks: { args: ["ptr", "ptr", "i32"], returns: "i32" },
  spg_step_choices: {
    args: [
      ...(["ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "i32"] as const),
      ...(["ptr", "ptr", "ptr", "ptr", "ptr", "i32", "ptr", "i32"] as const),
    ],
    returns: "i32",
  },
  spg_sparse_counts: { args: ["ptr", "i32", "ptr"], returns: "i32" },
  spg_sparse_list: { args: ["ptr", "i32", "i32", "i32", "ptr"], returns: "i32" },
  spg_predict_query: { args: ["ptr", "i32", "i32", "i32", "ptr"], returns: "i32" },
  spg_matrix_open: { args: ["ptr", "i32", "i32", "i32", "i32", "ptr"], returns: "i32" },
  spg_matrix_close: { args: ["ptr"], returns: "void" },
  spg_matrix_bytes: { args: ["ptr"], returns: "i64" },
  spg_matrix_fill: { args: ["ptr", "ptr", "i32", "i32", "i32", "i32"], returns: "i32" },
  spg_matrix_fill_e4m3: { args: ["ptr", "ptr", "ptr", "i32", "i32", "i32", "i32"], returns: "i32" },
  spg_matrix_fill_mx4: { args: ["ptr", "ptr", "ptr", "i32", "i32", "i32", "i32"], returns: "i32" },
  spg_experts_open: { args: ["ptr", "ptr", "ptr", "i32", "ptr"], returns: "i32" },
  spg_experts_close: { args: ["ptr"], returns: "void" },
  spg_experts_bias: { args: ["ptr", "i32", "ptr", "ptr"], returns: "i32" },
  spg_experts_gate: {
    args: ["ptr", "i32", "i32", "ptr", "ptr", "ptr", "i32", "ptr", "f32", "i32", "i32", "ptr", "i32"],
    returns: "i32",
  },
  spg_experts_add: {
    args: ["ptr", "i32", "i32", "ptr", "ptr", "ptr", "f32", "i32", "ptr", "i32", "ptr", "i32"],
    returns: "i32",
  },
  spg_multiply: {
    args: ["ptr", "ptr", "i32", "i32", "ptr", "ptr", "f32", "i32", "i32", "f32", "ptr", "ptr", "ptr", "i32", "ptr"],
    returns: "i32",
  },
  spg_norm_rows: {
    args: ["ptr", "ptr", "i32", "i32", "i32", "ptr", "f32", "i32", "f32", "ptr", "i32"],
    returns: "i32",
  },
  spg_greatest: { args: ["ptr", "ptr", "i32", "i32", "ptr"], returns: "i32" },
  spg_sequence_open: { args: ["ptr", "ptr"], returns: "i32" },
  spg_sequence_close: { args: ["ptr"], returns: "void" },
  spg_sequence_product: {
    args: ["ptr", "ptr", "i32", "i32", "ptr", "f32", "i32", "i32", "f32", "ptr", "i32", "i32"],
    returns: "i32",
  },
  spg_sequence_norm: {
    args: ["ptr", "i32", "i32", "i32", "i32", "ptr", "f32", "i32", "f32", "i32", "i32"],
    returns: "i32",
  },
  spg_sequence_attention: { args: ["ptr", "i32", "ptr", "ptr"], returns: "i32" },
  spg_sequence_run: {
    args: ["ptr", "i32", "i32", "i32", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr"],
    returns: "i32",
  },
  spg_embed_rows: { args: ["ptr", "ptr", "i32", "i32", "i32", "ptr", "i32", "ptr"], returns: "i32" },
} as const;

export type KernelSymbols = Library<typeof symbols>["symbols"];

export interface KernelLibrary {
  readonly symbols: KernelSymbols;
  /** @throws KernelError unless `status` is 0 */
  check(call: string, status: number): void;
}

/** Loads the shared library that kernels/build.ts made. */
export function loadKernelLibrary(path: string): KernelLibrary {
  const { symbols: native } = dlopen(path, symbols);
  const reasonOf = (status: number): string => {
    const text = native.spg_strerror(status);
    return text === null ? "unknown status" : new CString(asPointer(text)).toString();
  };
  return {
    symbols: native,
    check(call, status) {
      if (status !== 0) throw new KernelError(`${call}: ${reasonOf(status)}`);
    },
  };
}

/** Calls `open` with space for one pointer and returns the pointer that it wrote. */
export function openHandle(open: (out: BigUint64Array) => void): Pointer {
  const out = new BigUint64Array(1);
  open(out);
  return Number(out[0]) as Pointer;
}

/** bun:ffi returns addresses as numbers (as bigints above 2^53, which user space does not reach). */
export const asPointer = (address: Pointer | bigint): Pointer => Number(address) as Pointer;

/** Native memory as an ArrayBuffer that does not own it: invalid once the owner has freed it. */
export const viewMemory = (address: Pointer, byteLength: number): ArrayBuffer => toArrayBuffer(address, 0, byteLength);

/** @throws RangeError naming `name` unless `value` is an integer in [low, high] */
export function assertInteger(name: string, value: number, low: number, high: number): void {
  if (!Number.isInteger(value) || value < low || value > high) {
    throw new RangeError(`${name} must be an integer from ${low} to ${high}, not ${value}`);
  }
}

/** @throws RangeError naming `name` unless `array` has `length` elements */
export function assertSameLength(name: string, array: ArrayLike<unknown>, length: number): void {
  if (array.length !== length) throw new RangeError(`${name} must have ${length} elements, not ${array.length}`);
}

/** @throws RangeError naming `name` unless `array` has at least `length` elements */
export function assertLength(name: string, array: { readonly length: number }, length: number): void {
  if (!(array.length >= length)) {
    throw new RangeError(`${name} must have at least ${length} elements, not ${array.length}`);
  }
}
