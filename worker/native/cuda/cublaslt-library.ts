/** cuBLASLt as bun:ffi sees it. */
import type { Library } from "bun:ffi";
import { CudaError, cString } from "./driver.ts";
import { libraryPaths, openFirstLibrary, toolkitNames } from "./library-names.ts";

// Argument types; cublasLt.h explains each. u64: device addresses and sizes.
const symbols = {
  cublasLtGetVersion: { args: [], returns: "u64" },
  cublasLtGetStatusName: { args: ["i32"], returns: "ptr" },
  cublasLtGetStatusString: { args: ["i32"], returns: "ptr" },
  cublasLtCreate: { args: ["ptr"], returns: "i32" },
  cublasLtDestroy: { args: ["ptr"], returns: "i32" },
  cublasLtMatrixLayoutCreate: { args: ["ptr", "i32", "u64", "u64", "i64"], returns: "i32" },
  cublasLtMatrixLayoutDestroy: { args: ["ptr"], returns: "i32" },
  cublasLtMatmulDescCreate: { args: ["ptr", "i32", "i32"], returns: "i32" },
  cublasLtMatmulDescSetAttribute: { args: ["ptr", "i32", "ptr", "u64"], returns: "i32" },
  cublasLtMatmulDescDestroy: { args: ["ptr"], returns: "i32" },
  cublasLtMatmulPreferenceCreate: { args: ["ptr"], returns: "i32" },
  cublasLtMatmulPreferenceSetAttribute: { args: ["ptr", "i32", "ptr", "u64"], returns: "i32" },
  cublasLtMatmulPreferenceDestroy: { args: ["ptr"], returns: "i32" },
  cublasLtMatmulAlgoGetHeuristic: {
    args: ["ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "i32", "ptr", "ptr"],
    returns: "i32",
  },
  cublasLtMatmul: {
    // handle, description; alpha; A, layout; B, layout; beta; C, layout; D, layout; algorithm, workspace, size, stream
    args: [
      "ptr",
      "ptr",
      "ptr",
      "u64",
      "ptr",
      "u64",
      "ptr",
      "ptr",
      "u64",
      "ptr",
      "u64",
      "ptr",
      "ptr",
      "u64",
      "u64",
      "ptr",
    ],
    returns: "i32",
  },
} as const;

export interface CublasLtOptions {
  /** Libraries to try, in this order; default: the newest that works with the driver. */
  readonly libraryNames?: readonly string[];
  /** Folders to search besides the loader's own. */
  readonly folders?: readonly string[];
}

export class CublasLtLibrary {
  readonly symbols: Library<typeof symbols>["symbols"];

  /** @throws CudaUnavailable when the library is not there */
  constructor(driverVersion: number, options: CublasLtOptions = {}) {
    const names = options.libraryNames ?? toolkitNames("cublasLt", driverVersion);
    this.symbols = openFirstLibrary("no cuBLASLt", libraryPaths(names, options.folders), symbols).symbols;
  }

  /** @throws CudaError unless `status` is 0 */
  check(call: string, status: number): void {
    if (status !== 0) throw this.errorOf(call, status);
  }

  errorOf(call: string, status: number): CudaError {
    const { cublasLtGetStatusName, cublasLtGetStatusString } = this.symbols;
    const text = (address: number | bigint | null): string => (address === null ? "" : cString(Number(address)));
    return new CudaError(
      call,
      status,
      text(cublasLtGetStatusName(status)) || "unknown cuBLASLt status",
      text(cublasLtGetStatusString(status)),
    );
  }
}
