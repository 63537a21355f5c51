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
];

const avx2Flags = ["-mavx2", "-mfma", "-mf16c"];
const avx512Flags = [...avx2Flags, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"];

/** kernels.cpp as one instruction set; the macro names the function that answers its table. */
function vectorUnit(isa: string, flags: readonly string[]): KernelUnit {
  return { name: `kernels-${isa}`, source: "cpu/kernels.cpp", flags: [...flags, `-DSPG_KERNEL_TABLE=${isa}_kernels`] };
}

/** The CPU library for a processor architecture (`process.arch`); other than x64 it holds the reference alone. */
export function cpuLibrary(arch: string): KernelLibrary {
  const vector = arch === "x64" ? [vectorUnit("avx512", avx512Flags), vectorUnit("avx2", avx2Flags)] : [];
  const plain = ["abi", "plan", "step", "threads", "pool", "layer", "reference", "rope_table", "memory"];
  const headers = [
    "attend",
    "blend",
    "heads",
    "internal",
    "memory",
    "micro",
    "panels",
    "pool",
    "rope_table",
    "step",
    "threads",
    "vector",
  ];
  return {
    name: "cpu",
    units: [...vector, ...plain.map((name) => ({ name, source: `cpu/${name}.cpp`, flags: [] }))],
    headers: ["abi.h", ...headers.map((name) => `cpu/${name}.h`)],
    compileFlags,
    linkFlags: ["-shared", "-pthread"],
  };
}
