/** The machine's own limits, measured: what kernels are compared to. */
import { dlopen } from "bun:ffi";
import { join } from "node:path";
import { buildLibrary } from "../../../kernels/build.ts";
import type { KernelLibrary } from "../../../kernels/manifest.ts";

const library: KernelLibrary = {
  name: "peak",
  units: [{ name: "peak", source: "peak.cpp", flags: [] }],
  headers: [],
  compileFlags: ["-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-pthread"],
  linkFlags: ["-shared", "-pthread"],
};

export interface MachinePeak {
  /** float32 fused-multiply-add rate, in GFLOP/s. */
  readonly gflops: (threadCount: number) => number;
  /** Rate of AMX in int8 or bfloat16, in billions of multiplications and additions a second; 0 without it. */
  readonly tiles: (threadCount: number, form: "b16" | "int8") => number;
  /** Rate of reading memory, in GB/s: of so many bytes in all, or of more than most caches hold. */
  readonly gigabytes: (threadCount: number, bytes?: number) => number;
}

const bytesPerThread = 256 * 2 ** 20;

export async function openMachinePeak(): Promise<MachinePeak> {
  const path = await buildLibrary(library, join(import.meta.dir));
  const { symbols } = dlopen(path, {
    probe_gflops: { args: ["i32", "i32"], returns: "f64" },
    probe_tiles: { args: ["i32", "i32", "i32"], returns: "f64" },
    probe_gigabytes: { args: ["i32", "i64", "i32"], returns: "f64" },
  });
  return {
    gflops: (threadCount) => symbols.probe_gflops(threadCount, 20),
    tiles: (threadCount, form) => symbols.probe_tiles(threadCount, form === "int8" ? 1 : 0, 20),
    gigabytes: (threadCount, bytes = bytesPerThread * threadCount) =>
      symbols.probe_gigabytes(threadCount, Math.floor(bytes / threadCount / 4096) * 4096, 20),
  };
}
