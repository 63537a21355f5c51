/** Matrices of weights that are packed for the products of a context, and those products. kernels/abi.h has the calls. */
import type { Pointer } from "bun:ffi";
import { assertInteger, assertLength, type KernelLibrary, openHandle } from "./library.ts";

const formCodes = { b16: 0, int8: 1, mx4: 2, e4m3: 3 } as const;
export const finishCodes = { store: 0, add: 1, gate: 2, gateGelu: 3, gateClamped: 4, cap: 5 } as const;
const typeCodes = { float32: 0, float16: 1, bfloat16: 2 } as const;

/** Weights as they stand in a file, row after row. */
export interface StoredWeights {
  readonly data: Float32Array | Uint16Array;
  readonly type: keyof typeof typeCodes;
}

/** Rows of blocks of MXFP4 as they stand in a file: [row, inputs / 32, 16] bytes, and [row, inputs / 32] scales. */
export interface StoredBlocks {
  readonly blocks: Uint8Array;
  readonly scales: Uint8Array;
  /** 2: every other row is taken. */
  readonly rowStep: 1 | 2;
}

/** Rows of 8-bit floats (e4m3) as they stand in a file, and their scales. */
export interface StoredE4m3 {
  /** [row, inputs] */
  readonly numbers: Uint8Array;
  /** [row, inputs / scaleInputs, rounded up] */
  readonly scales: Float32Array;
  /** How many numbers of a row share a scale: a multiple of 32. */
  readonly scaleInputs: number;
}

export interface MatrixOptions {
  readonly outputs: number;
  readonly inputs: number;
  /** b16: bfloat16 numbers, `parts` of which add up to a weight. int8: numbers of 8 bits with scales. mx4: MXFP4. e4m3. */
  readonly form: keyof typeof formCodes;
  /** b16: 1 holds bfloat16 exactly, 2 float16, 3 float32. e4m3: of the numbers that it becomes, 1 or 2. Default 1. */
  readonly parts?: 1 | 2 | 3;
}

/** Where rows of weights go. */
export interface RowsPlace {
  readonly rowCount: number;
  readonly firstOutput: number;
  /** 16 rows at a time, with room for as many between: gates in one half, ups in the other. */
  readonly everyOtherPanel?: boolean;
}

/** An RMSNorm. */
export interface Norm {
  readonly weights: Float32Array;
  readonly epsilon: number;
}

/** [headDim] weights of the RMSNorm on each head of q and k (Qwen3). */
export interface HeadNorms {
  readonly q: Float32Array;
  readonly k: Float32Array;
}

/** Rows that pass an RMSNorm. */
export interface NormOptions {
  /** [width] weights, and the epsilon. */
  readonly norm: Norm;
  /** store: out = factor * RMSNorm(x), and out may be x; add: that is added to out. */
  readonly finish: "store" | "add";
  readonly factor?: number;
  /** Floats between two rows of x, and of out; default: as many as a row has. */
  readonly xStride?: number;
  readonly outStride?: number;
}

export interface ProductOptions {
  /** Floats between two rows of x, and of out; default: as many as a row has. */
  readonly xStride?: number | undefined;
  readonly outStride?: number;
  /** What x passes first. */
  readonly norm?: Norm | undefined;
  /**
   * store: out = factor x W^T + bias; add: added to out; gate: silu(gate) * up, half as many outputs; gateGelu: the same
   * with GELU as tanh approximates it; gateClamped: gpt-oss's; cap: tanh of it, divided by factor. Default store.
   */
  readonly finish?: keyof typeof finishCodes;
  readonly factor?: number;
  /** [rowCount] which row of x each is; default: the first ones. */
  readonly xRows?: Int32Array | undefined;
  /** With `add`: [rowCount] the row of out that each is added to, rising; and what each is multiplied by before. */
  readonly outRows?: Int32Array | undefined;
  readonly rowFactors?: Float32Array | undefined;
  readonly bias?: Float32Array | undefined;
  /** On AMX, in b16: how many bfloat16 numbers make up a number of x. 3: exactly; 2: 16 bits; 1: 8 bits. Default 2. */
  readonly parts?: 1 | 2 | 3;
}

/** Half of the outputs are gates. */
export const isGate = (finish: ProductOptions["finish"]): boolean => finish?.startsWith("gate") ?? false;

/** The greatest row that is named. */
function lastRow(name: string, rows: Int32Array | undefined, rowCount: number): number {
  if (rows === undefined) return rowCount - 1;
  assertLength(name, rows, rowCount);
  let last = 0;
  for (let i = 0; i < rowCount; i++) last = Math.max(last, rows[i]);
  return last;
}

export class Matrix {
  readonly options: MatrixOptions;
  readonly #library: KernelLibrary;
  readonly #onClose: () => void;
  #handle: Pointer | undefined;

  /** @param onClose tells the context that the matrix is gone */
  constructor(library: KernelLibrary, context: Pointer, options: MatrixOptions, onClose: () => void) {
    const { outputs, inputs, form, parts = 1 } = options;
    assertInteger("outputs", outputs, 1, 2 ** 24);
    assertInteger("inputs", inputs, 1, 2 ** 20);
    this.options = options;
    this.#library = library;
    this.#onClose = onClose;
    const call = library.symbols.spg_matrix_open;
    this.#handle = openHandle((out) =>
      library.check("openMatrix", call(context, formCodes[form], parts, outputs, inputs, out)),
    );
  }

  /** Packs rows [rowCount, inputs] of a tensor. @throws KernelError when they do not fit in */
  fill({ data, type }: StoredWeights, { rowCount, firstOutput, everyOtherPanel = false }: RowsPlace): void {
    assertInteger("rowCount", rowCount, 1, 2 ** 24);
    assertInteger("firstOutput", firstOutput, 0, 2 ** 24);
    if (data instanceof Float32Array !== (type === "float32")) {
      throw new TypeError(`data of ${type} weights has the wrong array type`);
    }
    assertLength("data", data, rowCount * this.options.inputs);
    const call = this.#library.symbols.spg_matrix_fill;
    const status = call(this.#open(), data, typeCodes[type], rowCount, firstOutput, everyOtherPanel ? 1 : 0);
    this.#library.check("fill", status);
  }

  /** The same for a matrix in mx4. @throws KernelError when they do not fit in, or a scale is above 2^100 */
  fillBlocks(
    { blocks, scales, rowStep }: StoredBlocks,
    { rowCount, firstOutput, everyOtherPanel = false }: RowsPlace,
  ): void {
    assertInteger("rowCount", rowCount, 1, 2 ** 24);
    assertInteger("firstOutput", firstOutput, 0, 2 ** 24);
    const groups = Math.ceil(this.options.inputs / 32) * ((rowCount - 1) * rowStep + 1);
    assertLength("blocks", blocks, groups * 16);
    assertLength("scales", scales, groups);
    const call = this.#library.symbols.spg_matrix_fill_mx4;
    const status = call(this.#open(), blocks, scales, rowStep, rowCount, firstOutput, everyOtherPanel ? 1 : 0);
    this.#library.check("fillBlocks", status);
  }

  /** The same for a matrix in e4m3. @throws KernelError when they do not fit in */
  fillE4m3(
    { numbers, scales, scaleInputs }: StoredE4m3,
    { rowCount, firstOutput, everyOtherPanel = false }: RowsPlace,
  ): void {
    assertInteger("rowCount", rowCount, 1, 2 ** 24);
    assertInteger("firstOutput", firstOutput, 0, 2 ** 24);
    assertInteger("scaleInputs", scaleInputs, 32, 2 ** 21);
    const { inputs } = this.options;
    assertLength("numbers", numbers, rowCount * inputs);
    assertLength("scales", scales, rowCount * Math.ceil(inputs / scaleInputs));
    const call = this.#library.symbols.spg_matrix_fill_e4m3;
    const status = call(this.#open(), numbers, scales, scaleInputs, rowCount, firstOutput, everyOtherPanel ? 1 : 0);
    this.#library.check("fillE4m3", status);
  }

  /** Multiplies the first `rowCount` rows of x; a row's bits depend on that row alone. `out` must not overlap x. */
  multiply(x: Float32Array, rowCount: number, out: Float32Array, options: ProductOptions = {}): void {
    const { outputs, inputs } = this.options;
    const { finish = "store", norm, factor = 1, bias, parts = 2 } = options;
    const width = isGate(finish) ? outputs / 2 : outputs;
    const { xStride = inputs, outStride = width } = options;
    assertInteger("rowCount", rowCount, 1, 2 ** 20);
    assertInteger("xStride", xStride, inputs, 2 ** 30);
    assertInteger("outStride", outStride, Math.ceil(width), 2 ** 30);
    assertLength("x", x, lastRow("xRows", options.xRows, rowCount) * xStride + inputs);
    assertLength("out", out, lastRow("outRows", options.outRows, rowCount) * outStride + width);
    if (options.rowFactors !== undefined) assertLength("rowFactors", options.rowFactors, rowCount);
    if (norm !== undefined) assertLength("norm", norm.weights, inputs);
    if (bias !== undefined) assertLength("bias", bias, outputs);
    const status = this.#library.symbols.spg_multiply(
      this.#open(),
      x,
      rowCount,
      xStride,
      options.xRows ?? null,
      norm?.weights ?? null,
      norm?.epsilon ?? 0,
      parts,
      finishCodes[finish],
      factor,
      bias ?? null,
      options.rowFactors ?? null,
      out,
      outStride,
      options.outRows ?? null,
    );
    if (status !== 0) this.#library.check("multiply", status);
  }

  /** Bytes of the packed weights. */
  get bytes(): number {
    return Number(this.#library.symbols.spg_matrix_bytes(this.#open()));
  }

  /** For what is made of matrices in native code. */
  get handle(): Pointer {
    return this.#open();
  }

  close(): void {
    if (this.#handle === undefined) return;
    this.#library.symbols.spg_matrix_close(this.#handle);
    this.#handle = undefined;
    this.#onClose();
  }

  #open(): Pointer {
    if (this.#handle === undefined) throw new Error("the matrix is closed");
    return this.#handle;
  }
}
