/** Finds NVIDIA's shared libraries by the file names that their packages use. */
import { dlopen, type FFIFunction, type Library } from "bun:ffi";

/** This machine cannot run the CUDA backend; the message is one sentence for whoever starts the server. */
export class CudaUnavailable extends Error {
  override readonly name = "CudaUnavailable";
}

/** Folders where the toolkit's installers put libraries and where the loader may not look. */
const toolkitFolders = ["/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];

/**
 * File names of a toolkit library, newest first. A major version above the driver's is left out, since what it makes
 * cannot run there.
 */
export function toolkitNames(library: string, driverVersion: number): string[] {
  return [13, 12].filter((major) => major * 1000 <= driverVersion).map((major) => `lib${library}.so.${major}`);
}

/** Paths to try: the names alone, for the loader to find, then in `folders`, then in the toolkit's folders. */
export function libraryPaths(names: readonly string[], folders: readonly string[] = []): string[] {
  return [...names, ...[...folders, ...toolkitFolders].flatMap((folder) => names.map((name) => `${folder}/${name}`))];
}

export interface FoundLibrary<Symbols extends Record<string, FFIFunction>> {
  readonly path: string;
  readonly symbols: Library<Symbols>["symbols"];
}

/**
 * Opens the first library of `paths` that exists.
 * @param what begins the sentence, as in "no NVIDIA driver"
 * @throws CudaUnavailable when none exists, or one cannot be loaded or lacks a function
 */
export function openFirstLibrary<Symbols extends Record<string, FFIFunction>>(
  what: string,
  paths: readonly string[],
  symbols: Symbols,
): FoundLibrary<Symbols> {
  for (const path of paths) {
    try {
      return { path, symbols: dlopen(path, symbols).symbols };
    } catch (error) {
      const words = error instanceof Error ? error.message : String(error);
      if (!isMissingFile(words, path)) throw new CudaUnavailable(`${what}: ${path} cannot be used: ${words}`);
    }
  }
  throw new CudaUnavailable(`${what}: ${paths[0]} was not found`);
}

/** Is this file itself missing, and not a library that it needs? */
function isMissingFile(words: string, path: string): boolean {
  return words.includes(`${path}: cannot open shared object file: No such file`);
}
