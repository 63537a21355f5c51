/** What all device programs take: `[folder of NVIDIA's libraries]...`, run from the project's root; OUT: where results go. */
import { join } from "node:path";
import { type CudaDevice, openDevice } from "../../worker/backend/cuda/open-device.ts";

/** The environment that a program was started in. */
export interface GpuOptions {
  readonly libraryFolders: readonly string[];
  readonly outFolder: string | undefined;
}

export function gpuOptions(): GpuOptions {
  return { libraryFolders: process.argv.slice(2), outFolder: process.env.OUT };
}

/** Path of a result file; undefined when none is wanted. */
export function resultPath({ outFolder }: GpuOptions, name: string): string | undefined {
  return outFolder === undefined ? undefined : join(outFolder, name);
}

/** Device 0 with the kernels of the tree that the program is run in, which a bundle does not lie in. */
export function openTestDevice(headDim: number, { libraryFolders }: GpuOptions): Promise<CudaDevice> {
  return openDevice({ index: 0, headDim, libraryFolders, kernelFolder: "kernels/cuda" });
}
