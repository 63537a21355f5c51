/**
 * Lists the units of each kernel library and their compiler flags. The CPU library is one shared library. Its vector
 * kernels are one source compiled once per instruction set; when opened, the library takes the best set that the CPU
 * has.
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
  /** The longest compilation first, so that two compilers at work finish at about the same time. */
  readonly units: readonly KernelUnit[];
  /** Sources that units include; a change in one makes a new library. */
  readonly headers: readonly string[];
  readonly compileFlags: readonly string[];
  readonly linkFlags: readonly string[];
}

/**
 * With `-ffp-contract=off` the compiler fuses no product and sum into one rounding unless the source says so; thus the
 * same row gives the same bits in every code path.
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

const amxFlags = [...avx512Flags, "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"];

/** Compiles kernels.cpp for one instruction set; the macro names the function that returns its table of kernels. */
function vectorUnit(isa: string, flags: readonly string[]): KernelUnit {
  return { name: `kernels-${isa}`, source: "cpu/kernels.cpp", flags: [...flags, `-DSPG_KERNEL_TABLE=${isa}_kernels`] };
}

/** Compiles products.cpp for one set of instructions, which may say more than kernels.cpp needs. */
function productUnit(set: string, flags: readonly string[]): KernelUnit {
  const table = `-DSPG_PRODUCT_TABLE=${set}_products`;
  return { name: `products-${set}`, source: "cpu/products.cpp", flags: [...flags, table] };
}

const productUnits = [
  productUnit("amx", amxFlags),
  productUnit("avx512vnni", [...avx512Flags, "-mavx512vnni"]),
  productUnit("avx512", avx512Flags),
  productUnit("avxvnni", [...avx2Flags, "-mavxvnni"]),
  productUnit("avx2", avx2Flags),
];

/** Compiles choose.cpp for one set of instructions. */
function chooseUnit(set: string, flags: readonly string[]): KernelUnit {
  const table = `-DSPG_CHOOSE_TABLE=${set}_choose`;
  return { name: `choose-${set}`, source: "cpu/choose.cpp", flags: [...flags, table] };
}

const chooseUnits = [
  chooseUnit("avx512vnni", [...avx512Flags, "-mavx512vnni"]),
  chooseUnit("avx512", avx512Flags),
  chooseUnit("avxvnni", [...avx2Flags, "-mavxvnni"]),
  chooseUnit("avx2", avx2Flags),
];

/** Compiles gcm.cpp for one set of instructions. */
function cipherUnit(set: string, flags: readonly string[]): KernelUnit {
  return { name: `gcm-${set}`, source: "cpu/gcm.cpp", flags: [...flags, `-DSPG_GCM_TABLE=${set}_gcm`] };
}

const cipherUnits = [
  cipherUnit("vaes", [...avx512Flags, "-maes", "-mpclmul", "-mvaes", "-mvpclmulqdq"]),
  cipherUnit("aesni", ["-msse4.1", "-maes", "-mpclmul"]),
];

/** Calls that kernels/portable/old_glibc.cpp binds to old versions. */
const rebound = [
  "pthread_create",
  "pthread_join",
  "pthread_detach",
  "pthread_once",
  "pthread_key_create",
  "pthread_key_delete",
  "pthread_getspecific",
  "pthread_setspecific",
  "exp",
  "log2f",
];

/**
 * The CPU library as packages carry it, for machines other than the one that builds it. libstdc++ is a part of it, since
 * an older system's lacks symbols; the processor's features are asked for when it is opened, as they always are.
 */
export function portableCpuLibrary(arch: string): KernelLibrary {
  const library = cpuLibrary(arch);
  const wraps = rebound.map((name) => `-Wl,--wrap=${name}`);
  return {
    ...library,
    units: [...library.units, { name: "old_glibc", source: "portable/old_glibc.cpp", flags: [] }],
    // What the kernels do not use of libstdc++ is left out, and with it what that would need of the system.
    linkFlags: [...library.linkFlags, "-static-libstdc++", "-Wl,--exclude-libs,ALL", "-Wl,--gc-sections", ...wraps],
  };
}

/** Sources that every processor gets, compiled for the least that it may have. */
const plainSources = [
  "abi",
  "plan",
  "step",
  "threads",
  "pool",
  "layer",
  "reference",
  "rope_table",
  "memory",
  "abi_products",
  "matrix",
  "product",
  "experts",
  "products_reference",
  "processor",
  "sealed",
  "sequence",
  "greatest",
  "abi_sparse",
  "choose_reference",
  "predict",
  "scores",
  "select",
  "sparse",
  "sparse_plan",
  "sparse_run",
];

const headers = [
  "attend",
  "attend_tiles",
  "blend",
  "choose",
  "copies",
  "gcm",
  "greatest",
  "half",
  "heads",
  "internal",
  "matrix",
  "memory",
  "micro",
  "mx8",
  "panels",
  "pool",
  "predict",
  "processor",
  "product",
  "products",
  "products_amx",
  "products_e4m3",
  "products_mx4",
  "products_rows",
  "products_vector",
  "products_waiting",
  "rope_table",
  "scores",
  "select",
  "sequence",
  "sparse",
  "step",
  "threads",
  "tile_parts",
  "tile_products",
  "tiles",
  "vector",
];

/** The CPU library for a processor architecture (`process.arch`). Any but x64 gets the reference kernels alone. */
export function cpuLibrary(arch: string): KernelLibrary {
  const vector =
    arch === "x64"
      ? [
          vectorUnit("amx", amxFlags),
          vectorUnit("avx512", avx512Flags),
          vectorUnit("avx2", avx2Flags),
          ...productUnits,
          ...chooseUnits,
          ...cipherUnits,
        ]
      : [];
  return {
    name: "cpu",
    units: [...vector, ...plainSources.map((name) => ({ name, source: `cpu/${name}.cpp`, flags: [] }))],
    headers: ["abi.h", "abi_sparse.h", ...headers.map((name) => `cpu/${name}.h`)],
    compileFlags,
    linkFlags: ["-shared", "-pthread"],
  };
}
