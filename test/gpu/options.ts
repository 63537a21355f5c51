/**
 * What all device programs take: `[part of the program]... [folder of NVIDIA's libraries]...`, run from the project's
 * root; OUT: where results go.
 */
import { join } from "node:path";
import { type CudaDevice, openDevice } from "../../worker/backend/cuda/open-device.ts";
import type { KvElement } from "../../worker/backend/cuda/pool.ts";
import { seedVariable, testSeed } from "../support/seed.ts";

/** The environment that a program was started in. */
export interface GpuOptions {
  readonly libraryFolders: readonly string[];
  readonly outFolder: string | undefined;
  /** Arguments that are no folders; none: everything. */
  readonly parts: readonly string[];
}

export function gpuOptions(): GpuOptions {
  const given = process.argv.slice(2);
  const isFolder = (argument: string) => argument.includes("/");
  return {
    libraryFolders: given.filter(isFolder),
    outFolder: process.env.OUT,
    parts: given.filter((argument) => !isFolder(argument)),
  };
}

/** Path of a result file; undefined when none is wanted. */
export function resultPath({ outFolder }: GpuOptions, name: string): string | undefined {
  return outFolder === undefined ? undefined : join(outFolder, name);
}

/** These programs draw anew in each run and print the seed; SPANGATE_TEST_SEED repeats one. */
export function freshSeed(): number {
  return process.env[seedVariable] === undefined ? Math.floor(Math.random() * 2 ** 31) : testSeed();
}

/** Device 0 with the kernels of the tree that the program is run in, which a bundle does not lie in. */
export function openTestDevice(
  headDim: number,
  { libraryFolders }: GpuOptions,
  kvElement?: KvElement,
  scoreCap?: number,
): Promise<CudaDevice> {
  return openDevice({ index: 0, headDim, scoreCap, kvElement, libraryFolders, kernelFolder: "kernels/cuda" });
}
