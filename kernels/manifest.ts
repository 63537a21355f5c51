/**
 * What is built from what, with which flags. One shared library for the CPU; its vector kernels are one source
 * compiled once per instruction set, and the library takes the best that the CPU has when it is opened.
 */

/** One translation unit. */
export interface KernelUnit {
  /** Unique in its library; names the object file. */
  readonly name: string;
  /** Path below kernels/. */
  readonly source: string;
  readonly flags: readonly string[];
}

export interface KernelLibrary {
  readonly name: string;
  /** In descending order of compile time, so that two compilers at work finish together. */
  readonly units: readonly KernelUnit[];
  /** Sources that units include; a change of one makes a new library. */
  readonly headers: readonly string[];
  readonly compileFlags: readonly string[];
  readonly linkFlags: readonly string[];
}

/**
 * `-ffp-contract=off`: where a product and a sum become one rounding is written in the source, so that the same
 * row gives the same bits in every code path.
 */
const compileFlags = [
  "-std=c++17",
  "-O3",
  "-fPIC",
  "-fvisibility=hidden",
  "-ffp-contract=off",
  "-fno-math-errno",
  "-fno-trapping-math",
  "-pthread",
  "-Wall",
  "-Wextra",
];

/** The CPU library for a processor architecture (`process.arch`). */
export function cpuLibrary(_arch: string): KernelLibrary {
  const plain = ["step", "abi", "pool", "reference"].map((name) => ({ name, source: `cpu/${name}.cpp`, flags: [] }));
  return {
    name: "cpu",
    units: plain,
    headers: ["abi.h", "cpu/internal.h", "cpu/step.h", "cpu/pool.h"],
    compileFlags,
    linkFlags: ["-shared", "-pthread"],
  };
}
