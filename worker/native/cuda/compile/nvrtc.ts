/** NVIDIA's run-time compiler: CUDA source text to a cubin for one architecture. */
import { dlopen, type Library, type Pointer, ptr } from "bun:ffi";
import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { openHandle } from "../../library.ts";
import { CudaError, cString, cText } from "../driver.ts";
import { libraryPaths, openFirstLibrary, toolkitNames } from "../library-names.ts";

const nvrtcSymbols = {
  nvrtcVersion: { args: ["ptr", "ptr"], returns: "i32" },
  nvrtcGetErrorString: { args: ["i32"], returns: "ptr" },
  nvrtcCreateProgram: { args: ["ptr", "ptr", "ptr", "i32", "ptr", "ptr"], returns: "i32" },
  nvrtcCompileProgram: { args: ["ptr", "i32", "ptr"], returns: "i32" },
  nvrtcGetProgramLogSize: { args: ["ptr", "ptr"], returns: "i32" },
  nvrtcGetProgramLog: { args: ["ptr", "ptr"], returns: "i32" },
  nvrtcGetCUBINSize: { args: ["ptr", "ptr"], returns: "i32" },
  nvrtcGetCUBIN: { args: ["ptr", "ptr"], returns: "i32" },
  nvrtcDestroyProgram: { args: ["ptr"], returns: "i32" },
} as const;

/** The nvrtcResult for a source that does not compile. */
const compilationError = 6;

/** The compiler refused the source; `log` holds its messages. */
export class CudaCompileError extends Error {
  override readonly name = "CudaCompileError";
  readonly log: string;

  constructor(file: string, log: string) {
    super(`${file} could not be compiled:\n${log.slice(0, 4000)}`);
    this.log = log;
  }
}

export interface CudaSource {
  /** The file name that appears in the compiler's messages. */
  readonly name: string;
  readonly text: string;
  /** Texts of the headers, by the name between the quotes of the include. */
  readonly headers: Readonly<Record<string, string>>;
  /** Further compiler options, such as "--use_fast_math"; the architecture is not one of them. */
  readonly options: readonly string[];
}

/**
 * The compiler's name of an architecture: 90 -> "sm_90a"; from Hopper on with the features of that architecture alone.
 */
export function architectureName(computeCapability: number): string {
  return `sm_${computeCapability}${computeCapability >= 90 ? "a" : ""}`;
}

export interface NvrtcOptions {
  /** Libraries to try, in this order; default: the newest whose cubins the driver can load. */
  readonly libraryNames?: readonly string[];
  /** Folders to search besides the loader's own. */
  readonly folders?: readonly string[];
}

/**
 * NVRTC opens this second library by its file name alone at the first compilation. If it is not in the loader's
 * folders, NVRTC finds it only when this process has opened it before.
 */
function loadBuiltins(nvrtcPath: string, major: number, minor: number): void {
  const path = join(dirname(nvrtcPath), `libnvrtc-builtins.so.${major}.${minor}`);
  if (!nvrtcPath.includes("/") || !existsSync(path)) return;
  dlopen(path, { [`__nvrtc_builtins__${major}_${minor}_getArchBuiltins`]: { args: [], returns: "ptr" } });
}

export class Nvrtc {
  /** NVRTC's CUDA version, encoded as the driver's: 13000 for 13.0. */
  readonly version: number;
  readonly #symbols: Library<typeof nvrtcSymbols>["symbols"];

  /** @throws CudaUnavailable when the library is not there */
  constructor(driverVersion: number, options: NvrtcOptions = {}) {
    const paths = libraryPaths(options.libraryNames ?? toolkitNames("nvrtc", driverVersion), options.folders);
    const library = openFirstLibrary("no CUDA compiler (the toolkit's NVRTC)", paths, nvrtcSymbols);
    this.#symbols = library.symbols;
    const [major, minor] = [new Int32Array(1), new Int32Array(1)];
    this.#check("nvrtcVersion", this.#symbols.nvrtcVersion(major, minor));
    this.version = (major[0] ?? 0) * 1000 + (minor[0] ?? 0) * 10;
    loadBuiltins(library.path, major[0] ?? 0, minor[0] ?? 0);
  }

  /**
   * Blocks for as long as the compiler takes.
   * @param architecture a name that `architectureName` returned
   * @throws CudaCompileError with the compiler's log
   */
  compile(source: CudaSource, architecture: string): Uint8Array {
    const symbols = this.#symbols;
    const names = new TextTable(Object.keys(source.headers));
    const texts = new TextTable(Object.values(source.headers));
    const handle = openHandle((out) => {
      const [text, name] = [cText(source.text), cText(source.name)];
      const status = symbols.nvrtcCreateProgram(out, text, name, names.count, texts.address, names.address);
      this.#check("nvrtcCreateProgram", status);
    });
    try {
      const options = new TextTable([`--gpu-architecture=${architecture}`, ...source.options]);
      const status = symbols.nvrtcCompileProgram(handle, options.count, options.address);
      if (status === compilationError) throw new CudaCompileError(source.name, this.#log(handle));
      this.#check("nvrtcCompileProgram", status, this.#log(handle));
      const cubin = new Uint8Array(this.#size(symbols.nvrtcGetCUBINSize, handle));
      this.#check("nvrtcGetCUBIN", symbols.nvrtcGetCUBIN(handle, cubin));
      return cubin;
    } finally {
      symbols.nvrtcDestroyProgram(BigUint64Array.of(BigInt(handle)));
    }
  }

  #log(handle: Pointer): string {
    const text = new Uint8Array(this.#size(this.#symbols.nvrtcGetProgramLogSize, handle) + 1);
    this.#check("nvrtcGetProgramLog", this.#symbols.nvrtcGetProgramLog(handle, text));
    return new TextDecoder().decode(text.subarray(0, text.indexOf(0))).trim();
  }

  #size(query: (handle: Pointer, out: BigUint64Array) => number, handle: Pointer): number {
    const size = new BigUint64Array(1);
    this.#check("size of a result of NVRTC", query(handle, size));
    return Number(size[0]);
  }

  #check(call: string, status: number, details = ""): void {
    if (status === 0) return;
    const text = this.#symbols.nvrtcGetErrorString(status);
    throw new CudaError(call, status, text === null ? "unknown NVRTC error" : cString(Number(text)), details);
  }
}

/** An array of C texts, alive as long as this object. */
class TextTable {
  readonly count: number;
  readonly #texts: readonly Uint8Array[];
  readonly #addresses: BigUint64Array;

  constructor(texts: readonly string[]) {
    this.count = texts.length;
    this.#texts = texts.map(cText);
    this.#addresses = BigUint64Array.from([...this.#texts.map((text) => BigInt(ptr(text))), 0n]);
  }

  get address(): BigUint64Array {
    return this.#addresses;
  }
}
