/** The system's C library, whichever it is: glibc, musl, or that of macOS. */
import { dlopen, type FFIFunction } from "bun:ffi";

const musl = `libc.musl-${process.arch === "arm64" ? "aarch64" : "x86_64"}.so.1`;
const names = process.platform === "darwin" ? ["libSystem.B.dylib"] : ["libc.so.6", musl];

/** Functions of the C library. undefined: it lacks one of them, or none of the names above is here. */
export function cFunctions<const Functions extends Record<string, FFIFunction>>(functions: Functions) {
  for (const name of names) {
    try {
      return dlopen(name, functions).symbols;
    } catch {
      // The next name is tried: this system has the other C library.
    }
  }
  return undefined;
}
