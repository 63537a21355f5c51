/**
 * The CPU kernels with types: a context (threads, instruction set) and the KV pools that it serves. kernels/abi.h
 * documents the calls and what they promise about the bits of results.
 */
import type { Pointer } from "bun:ffi";
import { buildCpuKernels } from "../../kernels/build.ts";
import { type ExpertMatrices, ExpertSet } from "./experts.ts";
import { KvPool, type KvPoolOptions } from "./kv-pool.ts";
import { assertInteger, assertLength, type KernelLibrary, loadKernelLibrary, openHandle } from "./library.ts";
import { finishCodes, Matrix, type MatrixOptions, type NormOptions } from "./matrix.ts";

export { shadowBytesOf } from "./choices.ts";
export type { ExpertSet, GivenRows } from "./experts.ts";
export type { AttentionBatch, KvPool, KvPoolOptions, KvType, RopeOptions } from "./kv-pool.ts";
export { kvBytesOf } from "./kv-pool.ts";
export { KernelError } from "./library.ts";
export type {
  HeadNorms,
  Matrix,
  MatrixOptions,
  Norm,
  NormOptions,
  ProductOptions,
  RowsPlace,
  StoredWeights,
} from "./matrix.ts";
export { isGate } from "./matrix.ts";

const isaCodes = {
  ...{ auto: 0, reference: 1, avx2: 2, avx512: 3, amx: 4 },
  // As processors without VNNI have them, for tests.
  ...{ "avx2 without VNNI": 5, "avx512 without VNNI": 6 },
} as const;
const isas = ["amx", "avx512", "avx2", "reference"] as const;
/**
 * The instruction set: "auto" takes the best that the CPU has and the system allows, "reference" is the slow oracle.
 * AMX multiplies matrices, and attends for prompts, and for generated tokens where 7 query heads or more share a KV head;
 * all else is then AVX-512.
 */
export type Isa = keyof typeof isaCodes;

export interface CpuKernelOptions {
  readonly isa?: Isa;
  /** How many threads compute, the calling one included. */
  readonly threadCount: number;
}

/** The rows of an embedding table, as they stand in a safetensors file. */
export interface EmbeddingTable {
  /** [rowCount][width] elements of `type`. */
  readonly data: Float32Array | Uint16Array;
  readonly type: "float32" | "float16" | "bfloat16";
  readonly rowCount: number;
  readonly width: number;
}

const tableTypeCodes = { float32: 0, float16: 1, bfloat16: 2 } as const;

/** Builds the library if it is not in the cache, loads it and opens a context. */
export async function openCpuKernels(options: CpuKernelOptions): Promise<CpuKernels> {
  return new CpuKernels(await buildCpuKernels(), options);
}

export class CpuKernels {
  readonly isa: (typeof isas)[number];
  readonly #library: KernelLibrary;
  readonly #context: Pointer;
  readonly #pools = new Set<KvPool>();
  readonly #matrices = new Set<Matrix>();
  readonly #experts = new Set<ExpertSet>();
  #closed = false;

  /** @param libraryPath the path that `buildCpuKernels` returned */
  constructor(libraryPath: string, options: CpuKernelOptions) {
    assertInteger("threadCount", options.threadCount, 1, 256);
    const library = loadKernelLibrary(libraryPath);
    const isaCode = isaCodes[options.isa ?? "auto"];
    this.#library = library;
    this.#context = openHandle((out) =>
      library.check("spg_open", library.symbols.spg_open(isaCode, options.threadCount, out)),
    );
    const chosen = library.symbols.spg_isa_of(this.#context);
    this.isa = isas.find((isa) => isaCodes[isa] === chosen) ?? "reference";
  }

  /** @throws RangeError or KernelError when an option is out of range or there is no memory */
  openPool(options: KvPoolOptions): KvPool {
    this.#assertOpen();
    const pool = new KvPool(this.#library, this.#context, options, () => this.#pools.delete(pool));
    this.#pools.add(pool);
    return pool;
  }

  /** Room for weights, of zeros. @throws RangeError or KernelError when an option is out of range or there is no memory */
  openMatrix(options: MatrixOptions): Matrix {
    this.#assertOpen();
    const matrix = new Matrix(this.#library, this.#context, options, () => this.#matrices.delete(matrix));
    this.#matrices.add(matrix);
    return matrix;
  }

  /** Experts of one layer, of matrices of these kernels. @throws KernelError when these are not of one shape */
  openExperts(all: readonly ExpertMatrices[]): ExpertSet {
    this.#assertOpen();
    const experts = new ExpertSet(this.#library, this.#context, all, (closed) => this.#experts.delete(closed));
    this.#experts.add(experts);
    return experts;
  }

  /**
   * Lets the threads wait awake between the calls of `step`, which follow each other at once: waking them each time
   * takes longer than the products of a small model.
   */
  async holdThreads<Result>(step: () => Promise<Result>): Promise<Result> {
    this.#assertOpen();
    const hold = (held: number) => this.#library.symbols.spg_hold_threads(this.#context, held);
    this.#library.check("holdThreads", hold(1));
    try {
      return await step();
    } finally {
      if (!this.#closed) hold(0);
    }
  }

  /** out [tokenIds.length][table.width] = the table's rows, as float32. */
  embedRows(table: EmbeddingTable, tokenIds: Int32Array, out: Float32Array): void {
    this.#assertOpen();
    assertInteger("rowCount", table.rowCount, 1, 2 ** 31 - 1);
    assertInteger("width", table.width, 1, 2 ** 31 - 1);
    if (table.data instanceof Float32Array !== (table.type === "float32")) {
      throw new TypeError(`data of a ${table.type} table has the wrong array type`);
    }
    assertLength("table.data", table.data, table.rowCount * table.width);
    assertLength("tokenIds", tokenIds, 1);
    assertLength("out", out, tokenIds.length * table.width);
    const { rowCount, width } = table;
    const type = tableTypeCodes[table.type];
    const status = this.#library.symbols.spg_embed_rows(
      this.#context,
      table.data,
      type,
      rowCount,
      width,
      tokenIds,
      tokenIds.length,
      out,
    );
    this.#library.check("spg_embed_rows", status);
  }

  /** RMSNorm of the first `rowCount` rows of x; a row's bits depend on that row alone. */
  normRows(x: Float32Array, rowCount: number, out: Float32Array, options: NormOptions): void {
    this.#assertOpen();
    const { norm, finish, factor = 1 } = options;
    const width = norm.weights.length;
    const { xStride = width, outStride = width } = options;
    assertInteger("rowCount", rowCount, 1, 2 ** 20);
    assertInteger("xStride", xStride, width, 2 ** 30);
    assertInteger("outStride", outStride, width, 2 ** 30);
    assertLength("norm", norm.weights, 1);
    assertLength("x", x, (rowCount - 1) * xStride + width);
    assertLength("out", out, (rowCount - 1) * outStride + width);
    const status = this.#library.symbols.spg_norm_rows(
      this.#context,
      x,
      rowCount,
      width,
      xStride,
      norm.weights,
      norm.epsilon,
      finishCodes[finish],
      factor,
      out,
      outStride,
    );
    this.#library.check("normRows", status);
  }

  /**
   * best [rowCount] = the index of the greatest of each row's `width` numbers, the first of equal ones; -1 where one is
   * NaN or the greatest is not finite.
   */
  greatest(x: Float32Array, rowCount: number, width: number, best: Int32Array): void {
    this.#assertOpen();
    assertInteger("rowCount", rowCount, 1, 2 ** 20);
    assertInteger("width", width, 1, 2 ** 24);
    assertLength("x", x, rowCount * width);
    assertLength("best", best, rowCount);
    this.#library.check("greatest", this.#library.symbols.spg_greatest(this.#context, x, rowCount, width, best));
  }

  /** Frees every pool and matrix and ends the threads. */
  close(): void {
    if (this.#closed) return;
    for (const owned of [...this.#pools, ...this.#experts, ...this.#matrices]) owned.close();
    this.#closed = true;
    this.#library.symbols.spg_close(this.#context);
  }

  #assertOpen(): void {
    if (this.#closed) throw new Error("the CPU kernels are closed");
  }
}
