/**
 * The CUDA kernels' source files as NVRTC takes them: every header is there for every file. Headers are included by
 * their names alone, whatever folder they stand in, so no two files have one name.
 */
import { readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import type { CudaSource } from "./nvrtc.ts";

const kernelFolder = join(import.meta.dir, "..", "..", "..", "..", "kernels", "cuda");

export interface KernelSourceOptions {
  /** Default: kernels/cuda of the project. */
  readonly folder?: string;
  /** Macros that a kernel may be compiled with; only the files that use one get it, so that others stay cached. */
  readonly defines: Readonly<Record<string, number>>;
}

export function readKernelSources({ folder = kernelFolder, defines }: KernelSourceOptions): CudaSource[] {
  const paths = readdirSync(folder, { recursive: true, encoding: "utf8" });
  const pathOf = new Map(paths.map((path) => [basename(path), join(folder, path)]));
  const files = [...pathOf.keys()].sort();
  const textOf = (file: string): string => readFileSync(pathOf.get(file) ?? file, "utf8");
  const headers = Object.fromEntries(
    files.filter((file) => file.endsWith(".cuh")).map((file) => [file, textOf(file)] as const),
  );
  const sourceOf = (name: string): CudaSource => {
    const text = textOf(name);
    const included = Object.entries(headers).filter(([header]) => text.includes(`#include "${header}"`));
    const reached = [text, ...included.map(([, words]) => words)];
    const used = Object.entries(defines).filter(([macro]) => reached.some((words) => words.includes(macro)));
    const options = used.map(([macro, value]) => `--define-macro=${macro}=${value}`);
    return { name, text, headers, options: ["--std=c++17", ...options] };
  };
  return files.filter((file) => file.endsWith(".cu")).map(sourceOf);
}
