/**
 * Reads the CUDA kernels' sources for NVRTC; every file can include every header. Headers are included by file name
 * alone, whatever their folder, so no two files may share a name.
 */
import { readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { kernelsFolder } from "../../../../places/places.ts";
import type { CudaSource } from "./nvrtc.ts";

const kernelFolder = join(kernelsFolder, "cuda");

export interface KernelSourceOptions {
  /** The folder of the sources; default: kernels/cuda of the project. */
  readonly folder?: string;
  /** Macros for the compilation. Only files that use a macro get it, so that a change leaves the others cached. */
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
