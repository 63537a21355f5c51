/** One shape of matrix product, described for cuBLASLt, with the algorithm that its heuristics choose. */
import type { Pointer } from "bun:ffi";
import { assertInteger, openHandle } from "../library.ts";
import type { CublasLtLibrary } from "./cublaslt-library.ts";

/** output [rows][outWidth] = input [rows][inWidth] x weights [outWidth][inWidth]^T; all row-major. */
export interface MatmulShape {
  readonly rows: number;
  readonly outWidth: number;
  readonly inWidth: number;
  readonly outputType: "bfloat16" | "float32";
  /** Input and weights are e4m3 with scales; absent: they are bfloat16. */
  readonly scales?: MatmulScales;
}

/**
 * What shares a scale, of float32. "rows": a row of the input, [rows], and of the weights, [outWidth]. "blocks": 128
 * numbers of a row of the input, [inWidth / 128][rows], and 128 by 128 weights, [outWidth / 128][inWidth / 128, rounded up
 * to a multiple of 4]; rows are a multiple of 4, widths of 128. For compute capability 9.0, since cuBLAS 12.9.
 */
export type MatmulScales = "rows" | "blocks";

/** Numbers, or rows and columns of weights, that share a scale of "blocks". */
export const scaleBlock = 128;

/** How many scales lie from one row of the weights' scales by blocks to the next. */
export const blockScaleStride = (inWidth: number): number => 4 * Math.ceil(inWidth / scaleBlock / 4);

/** How many scales a product has. */
export function matmulScaleCounts({ rows, outWidth, inWidth }: MatmulShape, scales: MatmulScales) {
  if (scales === "rows") return { weights: outWidth, input: rows };
  return { weights: (outWidth / scaleBlock) * blockScaleStride(inWidth), input: (inWidth / scaleBlock) * rows };
}

// cudaDataType (library_types.h); cublasComputeType_t, cublasOperation_t (cublas_api.h).
const dataTypes = { float32: 0, bfloat16: 14, e4m3: 28 } as const;
const computeFloat32 = 68;
const transposed = 1;

// cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t (cublasLt.h).
const transA = 3;
/** Each pair: the attribute for the weights, then that for the input. */
const scalePointers = [17, 18] as const;
const scaleModes = [31, 32] as const;
/** cublasLtMatmulMatrixScale_t: OUTER_VEC_32F of both; BLK128x128_32F of weights, VEC128_32F of the input. */
const modesOf = { rows: [3, 3], blocks: [5, 4] } as const;
const maxWorkspaceBytes = 1;
const reductionSchemes = 3;
/** Partial sums are added up in float32; the other reduction schemes add them in the output's type and round each. */
const reduceInComputeType = 2;
/** MIN_ALIGNMENT of A, B, C and D. */
const minAlignments = [5, 6, 7, 8] as const;

/** cublasLtMatmulHeuristicResult_t: algorithm (64 bytes), workspace size, status, waves, four reserved integers. */
const resultBytes = 96;
const algorithmBytes = 64;
const statusOffset = 72;
const candidateCount = 8;
const notSupported = 15;

export const elementBytes = { float32: 4, bfloat16: 2 } as const;

/** @throws RangeError naming the field */
function assertMatmulShape(shape: MatmulShape): void {
  for (const field of ["rows", "outWidth", "inWidth"] as const) assertInteger(field, shape[field], 1, 2 ** 31 - 1);
  const { rows, outWidth, inWidth, scales } = shape;
  // With other sizes cuBLASLt reads the scales of other places, and says nothing.
  if (scales === "blocks" && (rows % 4 !== 0 || outWidth % scaleBlock !== 0 || inWidth % scaleBlock !== 0)) {
    throw new RangeError(`a product by blocks of ${rows} rows, ${inWidth} to ${outWidth}`);
  }
}

export class MatmulPlan {
  readonly shape: MatmulShape;
  /** Handles of cuBLASLt; the layouts are of weights, input and output. */
  readonly description: Pointer;
  readonly weightsLayout: Pointer;
  readonly inputLayout: Pointer;
  readonly outputLayout: Pointer;
  /** cublasLtMatmulAlgo_t: the heuristics' first choice; none of their other choices was over 3% faster on an H200. */
  readonly algorithm: Uint8Array;
  readonly #library: CublasLtLibrary;

  /**
   * @param alignment bytes; every operand's address is a multiple of it
   * @param given device addresses of the scales of weights and input, where there are some
   * @throws CudaError when cuBLASLt knows no algorithm for the shape
   */
  constructor(
    library: CublasLtLibrary,
    handle: Pointer,
    shape: MatmulShape,
    alignment: number,
    workspaceBytes: number,
    given: readonly number[] = [],
  ) {
    assertMatmulShape(shape);
    const { rows, outWidth, inWidth, outputType, scales } = shape;
    const { symbols } = library;
    this.#library = library;
    this.shape = shape;
    const inputType = scales === undefined ? "bfloat16" : "e4m3";
    const layout = (type: keyof typeof dataTypes, width: number, count: number): Pointer =>
      openHandle((out) => {
        const status = symbols.cublasLtMatrixLayoutCreate(out, dataTypes[type], width, count, width);
        library.check("cublasLtMatrixLayoutCreate", status);
      });
    this.weightsLayout = layout(inputType, inWidth, outWidth);
    this.inputLayout = layout(inputType, inWidth, rows);
    this.outputLayout = layout(outputType, outWidth, rows);
    this.description = openHandle((out) => {
      const status = symbols.cublasLtMatmulDescCreate(out, computeFloat32, dataTypes.float32);
      library.check("cublasLtMatmulDescCreate", status);
    });
    try {
      this.#describe(transA, Int32Array.of(transposed));
      if (scales !== undefined) {
        for (const [i, mode] of modesOf[scales].entries()) this.#describe(scaleModes[i], Int32Array.of(mode));
        this.setScales(given);
      }
      this.algorithm = this.#findAlgorithm(handle, alignment, workspaceBytes);
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /** For the products that are begun from now on. @param pointers device addresses: of weights, of the input */
  setScales(pointers: readonly number[]): void {
    for (const [i, pointer] of pointers.entries()) this.#describe(scalePointers[i], BigUint64Array.of(BigInt(pointer)));
  }

  #describe(attribute: number, value: Int32Array | BigUint64Array): void {
    const { symbols } = this.#library;
    const status = symbols.cublasLtMatmulDescSetAttribute(this.description, attribute, value, value.byteLength);
    this.#library.check(`cublasLtMatmulDescSetAttribute (${attribute})`, status);
  }

  close(): void {
    const { symbols } = this.#library;
    symbols.cublasLtMatmulDescDestroy(this.description);
    for (const layout of [this.weightsLayout, this.inputLayout, this.outputLayout]) {
      symbols.cublasLtMatrixLayoutDestroy(layout);
    }
  }

  #findAlgorithm(handle: Pointer, alignment: number, workspaceBytes: number): Uint8Array {
    const { symbols } = this.#library;
    const preference = openHandle((out) => {
      this.#library.check("cublasLtMatmulPreferenceCreate", symbols.cublasLtMatmulPreferenceCreate(out));
    });
    const prefer = (attribute: number, value: Uint32Array | BigUint64Array): void => {
      const status = symbols.cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, value.byteLength);
      this.#library.check(`cublasLtMatmulPreferenceSetAttribute (${attribute})`, status);
    };
    const results = new Uint8Array(candidateCount * resultBytes);
    const count = new Int32Array(1);
    try {
      prefer(maxWorkspaceBytes, BigUint64Array.of(BigInt(workspaceBytes)));
      prefer(reductionSchemes, Uint32Array.of(reduceInComputeType));
      for (const attribute of minAlignments) prefer(attribute, Uint32Array.of(alignment));
      const status = symbols.cublasLtMatmulAlgoGetHeuristic(
        handle,
        this.description,
        this.weightsLayout,
        this.inputLayout,
        this.outputLayout,
        this.outputLayout,
        preference,
        candidateCount,
        results,
        count,
      );
      this.#library.check(`cublasLtMatmulAlgoGetHeuristic (${JSON.stringify(this.shape)})`, status);
    } finally {
      symbols.cublasLtMatmulPreferenceDestroy(preference);
    }
    const algorithm = firstUsable(results, count[0] ?? 0);
    // cuBLASLt itself returns NOT_SUPPORTED when it finds no algorithm.
    const text = `no algorithm for ${JSON.stringify(this.shape)}`;
    if (algorithm === undefined) throw this.#library.errorOf(text, notSupported);
    return algorithm;
  }
}

/** The first algorithm in an array of cublasLtMatmulHeuristicResult_t whose own status is success. */
function firstUsable(results: Uint8Array, count: number): Uint8Array | undefined {
  const view = new DataView(results.buffer);
  const starts = Array.from({ length: count }, (_, index) => index * resultBytes);
  const found = starts.find((start) => view.getInt32(start + statusOffset, true) === 0);
  return found === undefined ? undefined : results.slice(found, found + algorithmBytes);
}
