/**
 * The operations of a model's step, named once and run by one call for each step. They are the same functions as
 * `Matrix.multiply`, `CpuKernels.normRows` and `KvPool.attention`, so they give the same bits.
 */
import type { Pointer } from "bun:ffi";
import { assertInteger, assertLength, type KernelLibrary, openHandle } from "./library.ts";
import { finishCodes, type HeadNorms, isGate, type Matrix, type NormOptions, type ProductOptions } from "./matrix.ts";

/** The values of spg_buffer in kernels/abi.h, in their order. */
const bufferNames = ["residual", "qkv", "attention", "branch", "gated", "logits"] as const;
export type BufferName = (typeof bufferNames)[number];

/** Rows of float32, which operations read and write. One that no operation names may be empty. */
export type SequenceBuffers = { readonly [name in BufferName]: Float32Array };

export type Operation =
  | {
      readonly kind: "product";
      readonly matrix: Matrix;
      readonly x: BufferName;
      readonly out: BufferName;
      /** The fields of a product but the places of rows and their factors. */
      readonly options: Omit<ProductOptions, "xRows" | "outRows" | "rowFactors">;
    }
  | {
      readonly kind: "norm";
      readonly x: BufferName;
      readonly out: BufferName;
      /** Floats before the first number of x, and of out. */
      readonly offset: number;
      readonly options: NormOptions;
    }
  /** Reads the buffer `qkv` and writes the buffer `attention`. */
  | { readonly kind: "attention"; readonly layer: number; readonly norms: HeadNorms | undefined };

/** What a KV pool says of itself. */
interface PoolShape {
  readonly options: { readonly layerCount: number; readonly headDim: number };
  readonly qkvWidth: number;
  readonly outWidth: number;
}

interface Use {
  readonly name: BufferName;
  readonly width: number;
}

export class Sequence {
  readonly #library: KernelLibrary;
  readonly #pool: PoolShape;
  readonly #onClose: (sequence: Sequence) => void;
  /** [operations] the buffers that each uses, and how many floats of a row. */
  readonly #uses: (readonly Use[])[] = [];
  #handle: Pointer | undefined;

  /** @param pool its handle, and what it says of itself */
  constructor(
    library: KernelLibrary,
    pool: { readonly handle: Pointer; readonly pool: PoolShape },
    operations: readonly Operation[],
    onClose: (sequence: Sequence) => void,
  ) {
    this.#library = library;
    this.#pool = pool.pool;
    this.#onClose = onClose;
    this.#handle = openHandle((out) =>
      library.check("spg_sequence_open", library.symbols.spg_sequence_open(pool.handle, out)),
    );
    try {
      for (const operation of operations) this.#add(operation);
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /**
   * Runs operations [first, end) for so many rows, with attention those of the step that has begun in the pool.
   * @throws RangeError or KernelError when a buffer is too small, or attention has no step of so many rows
   */
  run(first: number, end: number, rowCount: number, buffers: SequenceBuffers): void {
    assertInteger("first", first, 0, this.#uses.length);
    assertInteger("end", end, first, this.#uses.length);
    assertInteger("rowCount", rowCount, 1, 2 ** 20);
    for (let i = first; i < end; i++) {
      for (const { name, width } of this.#uses[i]) assertLength(name, buffers[name], rowCount * width);
    }
    const status = this.#library.symbols.spg_sequence_run(
      this.#open(),
      first,
      end,
      rowCount,
      buffers.residual,
      buffers.qkv,
      buffers.attention,
      buffers.branch,
      buffers.gated,
      buffers.logits,
    );
    if (status !== 0) this.#library.check("sequence", status);
  }

  close(): void {
    if (this.#handle === undefined) return;
    this.#library.symbols.spg_sequence_close(this.#handle);
    this.#handle = undefined;
    this.#onClose(this);
  }

  #add(operation: Operation): void {
    if (operation.kind === "product") this.#uses.push(this.#addProduct(operation));
    else if (operation.kind === "norm") this.#uses.push(this.#addNorm(operation));
    else this.#uses.push(this.#addAttention(operation));
  }

  #addProduct({ matrix, x, out, options }: Operation & { readonly kind: "product" }): Use[] {
    const { outputs, inputs } = matrix.options;
    const { finish = "store", norm, factor = 1, bias, parts = 2 } = options;
    const width = isGate(finish) ? outputs / 2 : outputs;
    const { xStride = inputs, outStride = width } = options;
    if (norm !== undefined) assertLength("norm", norm.weights, inputs);
    if (bias !== undefined) assertLength("bias", bias, outputs);
    const status = this.#library.symbols.spg_sequence_product(
      this.#open(),
      matrix.handle,
      bufferNames.indexOf(x),
      xStride,
      norm?.weights ?? null,
      norm?.epsilon ?? 0,
      parts,
      finishCodes[finish],
      factor,
      bias ?? null,
      bufferNames.indexOf(out),
      outStride,
    );
    this.#library.check("spg_sequence_product", status);
    return [
      { name: x, width: xStride },
      { name: out, width: outStride },
    ];
  }

  #addNorm({ x, out, offset, options }: Operation & { readonly kind: "norm" }): Use[] {
    const { norm, finish, factor = 1 } = options;
    const width = norm.weights.length;
    const { xStride = width, outStride = width } = options;
    assertInteger("offset", offset, 0, Math.min(xStride, outStride) - width);
    const status = this.#library.symbols.spg_sequence_norm(
      this.#open(),
      bufferNames.indexOf(x),
      offset,
      width,
      xStride,
      norm.weights,
      norm.epsilon,
      finishCodes[finish],
      factor,
      bufferNames.indexOf(out),
      outStride,
    );
    this.#library.check("spg_sequence_norm", status);
    return [
      { name: x, width: xStride },
      { name: out, width: outStride },
    ];
  }

  #addAttention({ layer, norms }: Operation & { readonly kind: "attention" }): Use[] {
    const { layerCount, headDim } = this.#pool.options;
    assertInteger("layer", layer, 0, layerCount - 1);
    for (const norm of norms ? [norms.q, norms.k] : []) assertLength("norm", norm, headDim);
    const call = this.#library.symbols.spg_sequence_attention;
    this.#library.check("spg_sequence_attention", call(this.#open(), layer, norms?.q ?? null, norms?.k ?? null));
    return [
      { name: "qkv", width: this.#pool.qkvWidth },
      { name: "attention", width: this.#pool.outWidth },
    ];
  }

  #open(): Pointer {
    if (this.#handle === undefined) throw new Error("the sequence is closed");
    return this.#handle;
  }
}
