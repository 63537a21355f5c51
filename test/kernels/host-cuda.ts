/**
 * A device whose kernels are those of kernels/cuda, compiled as code of the host (cuda_host.h): slow, and without a GPU.
 * For kernels whose instructions are listed here; thread blocks are alone, and see no cluster.
 */
import { dlopen, type FFIFunction, type Pointer, ptr, toArrayBuffer } from "bun:ffi";
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { cacheFolder } from "../../places/places.ts";
import { DeviceBuffer, type HostArray, type Launch } from "../../worker/backend/cuda/device/device.ts";
import { type KernelName, kernelFile, kernelSignatures } from "../../worker/backend/cuda/device/kernels.ts";
import { readKernelSources } from "../../worker/native/cuda/compile/kernel-sources.ts";
import type { CudaSource } from "../../worker/native/cuda/compile/nvrtc.ts";

/** The device's own instructions, and what the host has in their place. */
const instructions: readonly (readonly [device: RegExp, host: string])[] = [
  [/asm\("cvt\.rn\.f16\.f32[^;]*;"[^;]*\);/g, "bits = host::half_of(x);"],
  [
    /asm\("\{\\n\.reg \.b32 x;\\ncvt\.rn\.f16x2[\s\S]*?\)\);/g,
    "pair = unsigned(to_finite_half(high)) << 16 | to_finite_half(low);",
  ],
  [/asm\("cvt\.f32\.f16[^;]*;"[^;]*\);/g, "x = host::of_half(bits);"],
  [/asm\("ex2\.approx[^;]*;"[^;]*\);/g, "y = exp2f(x);"],
  [
    /asm volatile\(\s*"mma\.sync\.aligned\.m16n8k32[^;]*;"[^;]*\);/g,
    "host::multiply_codes(sums, codes, first, second);",
  ],
  [/asm\("cvt\.rn\.bf16x2[^;]*;"[^;]*\);/g, "pair = host::bf16_of(high) << 16 | host::bf16_of(low);"],
  [/asm volatile\("ldmatrix[^;]*x4\.shared[^;]*;"[^;]*\);/g, "host::load_matrices(to, row, false);"],
  [/asm volatile\("ldmatrix[^;]*x4\.trans[^;]*;"[^;]*\);/g, "host::load_matrices(to, row, true);"],
  [/asm volatile\(\s*"mma\.sync\.aligned\.m16n8k16[^;]*;"[^;]*\);/g, "host::multiply_bf16(sum, a, b0, b1);"],
  [
    /asm volatile\("cp\.async\.cg\.shared\.global \[%0\], \[%1\], 16, %2[^;]*;"[^;]*\);/g,
    "host::copy(host::at(to), from, valid ? 16 : 0);",
  ],
  [/asm volatile\("cp\.async\.cg\.shared\.global\.L2[^;]*;"[^;]*\);/g, "host::copy(host::at(to), from, 16);"],
  [/asm volatile\("cp\.async\.cg\.shared\.global \[%0\], \[%1\], 16;"[^;]*\);/g, "host::copy(host::at(to), from, 16);"],
  [/asm volatile\("cp\.async\.ca\.shared\.global \[%0\], \[%1\], 4;"[^;]*\);/g, "memcpy(host::at(to), from, 4);"],
  [/asm volatile\("cp\.async\.(?:commit_group|wait_group)[^;]*;"[^;]*\);/g, ""],
  [/asm\("createpolicy[^;]*;"[^;]*\);/g, "policy = 0;"],
  [/asm\("mov\.u32 %0, %%dynamic_smem_size;"[^;]*\);/g, "bytes = host::dynamicBytes;"],
  [/extern __shared__ __align__\(16\) ([\w ]+?) (\w+)\[\];/g, "$1 *$2 = host::dynamic_shared<$1>();"],
];
const asOfHost = (text: string): string =>
  instructions.reduce((words, [device, host]) => words.replaceAll(device, host), text);

/** The text with its headers in place of their names, each once. */
function whole({ text, headers }: CudaSource, seen = new Set<string>()): string {
  return text.replaceAll(/^#include "(.*)"$/gm, (_, name: string) => {
    if (seen.has(name)) return "";
    seen.add(name);
    return whole({ text: headers[name] ?? "", headers, name, options: [] }, seen);
  });
}

const types = { ptr: "char *", i32: "int32_t", u32: "uint32_t", f32: "float", i64: "int64_t" } as const;

/** A function that launches a kernel with arguments of eight bytes each, or by address. */
function caller(name: KernelName): string {
  const values = kernelSignatures[name].map((kind, index) => {
    if (typeof kind !== "string") return `*reinterpret_cast<const MovedBlocks *>(values[${index}])`;
    return `host_value<${types[kind]}>(values[${index}])`;
  });
  return `extern "C" void run_${name}(const uint64_t *values, const uint32_t *grid, int blockThreads, uint32_t sharedBytes) {
  host::launch(grid, blockThreads, sharedBytes, [values] { ${name}(${values.join(", ")}); });
}`;
}

const value = `
/* An argument of any type of a parameter: pointers convert to that of the parameter. */
struct HostPointer { char *at; template <class T> operator T *() const { return reinterpret_cast<T *>(at); } };
template <class T> struct HostValue { static T of(uint64_t bits) { T x; memcpy(&x, &bits, sizeof(T)); return x; } };
template <> struct HostValue<char *> { static HostPointer of(uint64_t bits) { return {reinterpret_cast<char *>(bits)}; } };
template <class T> static auto host_value(uint64_t bits) { return HostValue<T>::of(bits); }
`;

type Run = (values: BigUint64Array, grid: Uint32Array, blockThreads: number, sharedBytes: number) => void;

/** Compiled once for the text and the head size. @throws Error with the compiler's words */
function compile(name: KernelName, headDim: number): Run {
  const source = readKernelSources({ defines: { HEAD_DIM: headDim } }).find((one) => one.name === kernelFile(name));
  if (source === undefined) throw new Error(`kernels/cuda has no ${kernelFile(name)}`);
  const text = `#include "${join(import.meta.dir, "cuda_host.h")}"\n${asOfHost(whole(source))}\n${value}\n${caller(name)}\n`;
  const header = Bun.hash(readFileSync(join(import.meta.dir, "cuda_host.h")));
  const key = Bun.hash(`${text} ${headDim} ${header}`).toString(16);
  const path = join(cacheFolder(), `host-${name}-${key}.so`);
  if (!existsSync(path)) {
    mkdirSync(cacheFolder(), { recursive: true });
    const part = `${path}.${crypto.randomUUID()}`;
    writeFileSync(`${part}.cpp`, text);
    // Compiling takes longer than all that the tests run, which -O2 would make a tenth faster.
    const options = ["-O1", "-std=c++17", "-fPIC", "-shared", "-w", "-ffp-contract=off", "-mf16c", "-U_FORTIFY_SOURCE"];
    const { exitCode, stderr } = Bun.spawnSync(["g++", ...options, `-DHEAD_DIM=${headDim}`, "-o", part, `${part}.cpp`]);
    if (exitCode !== 0) throw new Error(`${stderr}`);
    renameSync(part, path);
  }
  const signature = { args: ["ptr", "ptr", "i32", "u32"], returns: "void" } as const satisfies FFIFunction;
  return dlopen(path, { [`run_${name}`]: signature }).symbols[`run_${name}`] as unknown as Run;
}

/** What a test of kernels wants of a device (test/gpu/kernel-twin.ts). */
export class HostCudaDevice {
  readonly multiprocessorCount = 2;
  readonly #headDim: number;
  readonly #compiled = new Map<KernelName, Run>();
  /** Kept, as addresses into them are handed out. */
  readonly #memory: Uint8Array[] = [];

  constructor(headDim: number) {
    this.#headDim = headDim;
  }

  allocate(name: string, byteLength: number): DeviceBuffer {
    const bytes = this.allocateHost(name, byteLength + alignment);
    const address = Math.ceil(ptr(bytes) / alignment) * alignment;
    return new DeviceBuffer(name, address, byteLength);
  }

  allocateHost(_name: string, byteLength: number): Uint8Array<ArrayBuffer> {
    const bytes = new Uint8Array(byteLength);
    this.#memory.push(bytes);
    return bytes;
  }

  prepare(name: KernelName, ...values: readonly unknown[]): Launch {
    const run = this.#compiled.getOrInsertComputed(name, () => compile(name, this.#headDim));
    return ({ grid, blockThreads, sharedBytes = 0 }) => {
      const words = kernelSignatures[name].map((kind, index) => wordOf(kind, values[index]));
      const extents = Uint32Array.of(grid[0], grid[1] ?? 1, grid[2] ?? 1);
      run(BigUint64Array.from(words), extents, blockThreads, sharedBytes);
    };
  }

  copyIn(target: DeviceBuffer, source: HostArray): void {
    viewOf(target).set(new Uint8Array(source.buffer, source.byteOffset, source.byteLength));
  }

  copyOut(target: HostArray, source: DeviceBuffer): void {
    new Uint8Array(target.buffer, target.byteOffset, target.byteLength).set(
      viewOf(source).subarray(0, target.byteLength),
    );
  }

  /** Launches and copies are done when their calls return. */
  settled(): Promise<void> {
    return Promise.resolve();
  }
}

const alignment = 256;
const viewOf = ({ pointer, byteLength }: DeviceBuffer): Uint8Array =>
  new Uint8Array(toArrayBuffer(pointer as Pointer, 0, byteLength));

/** An argument in eight bytes; one that is passed by value in more is passed by its address. */
function wordOf(kind: unknown, given: unknown): bigint {
  const view = new DataView(new ArrayBuffer(8));
  if (kind === "ptr") return BigInt((given as DeviceBuffer | null)?.pointer ?? 0);
  if (given instanceof Uint8Array) return BigInt(ptr(given));
  if (kind === "f32") view.setFloat32(0, Number(given), true);
  else view.setBigInt64(0, BigInt(Number(given)), true);
  return view.getBigUint64(0, true);
}
