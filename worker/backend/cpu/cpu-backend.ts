/**
 * The CPU backend: dense algebra by onnxruntime or our own products (dense.ts), everything about KV by our C++ kernels
 * over one paged pool. A step goes from the embedding to layer 0's attention, then from each attention to the next.
 */
import { totalmem } from "node:os";
import type { Batch, TokenCopies } from "../../contract/batch.ts";
import { type ChoiceCounts, choiceModes } from "../../contract/sparse.ts";
import { blockCountForTokens } from "../../contract/units.ts";
import type { ModelConfig } from "../../model/config.ts";
import type { LoadedModel } from "../../model/load.ts";
import { ModelError } from "../../model/model-error.ts";
import { readTensorBytes } from "../../model/safetensors.ts";
import {
  type CpuKernels,
  type EmbeddingTable,
  type HeadNorms,
  type Isa,
  type KvPool,
  type KvType,
  kvBytesOf,
  openCpuKernels,
  shadowBytesOf,
} from "../../native/cpu-kernels.ts";
import type { Backend, BackendShape, SparseOptions, SparseShape } from "../backend.ts";
import { CpuBlockMover } from "./block-mover.ts";
import type { Dense, DenseMode, DenseParts, WeightMode } from "./dense.ts";
import { gatherRows, reduceToLogitRows, wantsAllLogits } from "./logit-rows.ts";
import { NativeDense } from "./native-dense.ts";
import { multiplyAddsBetweenLooks } from "./products.ts";
import { StepBuffers } from "./step-buffers.ts";

export interface CpuBackendOptions {
  readonly weightMode: WeightMode;
  /** What multiplies; default: onnxruntime. */
  readonly dense?: DenseMode;
  readonly kvType: KvType;
  /** The most bytes of the pool; the system provides a page when a block is first written. */
  readonly kvBytes: number;
  readonly blockTokens: number;
  readonly threadCount: number;
  /** The most rows of one step, and the most of them that want logits. */
  readonly maxRows: number;
  readonly maxLogitRows: number;
  readonly isa?: Isa;
  /** Rows may choose what they read; absent: none does, and nothing is held for it. */
  readonly sparse?: SparseOptions | undefined;
  /**
   * Multiply-adds of our own products that one native call may take; 0: each operation is a call of its own, for
   * comparison. Default: as many as may pass between two looks at messages. Results are the same.
   */
  readonly callWork?: number;
  /** Opened with this instruction set and number of threads, and the backend's from here on; absent: it opens its own. */
  readonly kernels?: CpuKernels;
}

/** Names the arithmetic: KV that another numeric mode computed belongs to another model (see model/digest.ts). */
export function numericMode({ weightMode, dense, kvType }: Arithmetic): string {
  const products = dense === "native" ? `${weightMode}/native` : weightMode;
  return kvType === "float32" ? products : `${products}/kv-${kvType}`;
}

type Arithmetic = Pick<CpuBackendOptions, "weightMode" | "dense" | "kvType">;

/**
 * The kernels on the best instruction set there is, or the one asked for, and what multiplies on it: our own products
 * where they are faster than onnxruntime's, unless `dense` says otherwise.
 */
export async function openArithmetic({
  isa,
  threadCount,
  dense,
}: Pick<CpuBackendOptions, "isa" | "threadCount"> & { readonly dense?: DenseMode | undefined }): Promise<{
  readonly kernels: CpuKernels;
  readonly dense: DenseMode;
}> {
  const kernels = await openCpuKernels({ isa, threadCount });
  const isFaster = kernels.isa === "amx" || kernels.isa === "avx512";
  return { kernels, dense: dense ?? (isFaster ? "native" : "onnx") };
}

/** Only where it multiplies is onnxruntime loaded. */
async function openOnnx(parts: DenseParts): Promise<Dense> {
  const { OnnxDense } = await import("./onnx-dense.ts");
  return await OnnxDense.open(parts);
}

export class CpuBackend implements Backend {
  /** With the instruction set that was found, which the log names when a worker is ready. */
  readonly name: string;
  readonly shape: BackendShape;
  readonly mover: CpuBlockMover;
  readonly #config: ModelConfig;
  readonly #kernels: CpuKernels;
  readonly #pool: KvPool;
  readonly #dense: Dense;
  /** Whether all of a step runs on the threads of the kernels. */
  readonly #ownsCores: boolean;
  readonly #headNorms: readonly (HeadNorms | undefined)[];
  readonly #embedding: EmbeddingTable;
  readonly #buffers: StepBuffers;
  readonly #maxRows: number;

  private constructor(parts: Parts) {
    const { model, options, pool, blockCount } = parts;
    this.name = `cpu/${parts.kernels.isa}`;
    this.#config = model.config;
    this.#kernels = parts.kernels;
    this.#pool = pool;
    this.mover = new CpuBlockMover(pool, parts.kernels.isa);
    this.#dense = parts.dense;
    this.#ownsCores = options.dense === "native";
    this.#maxRows = options.maxRows;
    this.#headNorms = parts.headNorms;
    this.#embedding = readEmbedding(model);
    this.#buffers = parts.buffers;
    this.shape = {
      vocabSize: model.config.vocabSize,
      contextTokens: model.config.contextTokens,
      blockTokens: options.blockTokens,
      blockCount,
      kvBytesPerBlock: pool.kvBytesPerBlock,
      ...(options.kvType === "mx8" && { blends: false }),
      ...(options.sparse && { sparse: sparseShape(model.config, options, options.sparse) }),
    };
  }

  /** Builds kernels and graphs and reserves the pool. @throws ModelError, or the error of the kernels' build. */
  static async open(model: LoadedModel, options: CpuBackendOptions): Promise<CpuBackend> {
    const { config } = model;
    const blockCount = Math.floor(options.kvBytes / kvBytesPerBlock(config, options));
    if (blockCount < 1) throw new ModelError(`a KV pool of ${options.kvBytes} bytes does not hold one block`);
    if (options.sparse) assertChooses(config, options, options.sparse);
    assertMemory(options.kvBytes + (options.sparse ? blockCount * shadowBytesPerBlock(config, options) : 0));
    const kernels = options.kernels ?? (await openCpuKernels(options));
    const pool = kernels.openPool({
      layerCount: config.layerCount,
      blockCount,
      blockTokens: options.blockTokens,
      queryHeads: config.headCount,
      kvHeads: config.kvHeadCount,
      headDim: config.headDim,
      kvType: options.kvType,
      rope: config.rope,
      window: config.window,
      softmaxScale: config.softmaxScale,
      scoreCap: config.scoreCap,
      sinks: readSinks(model),
      maxPositions: config.contextTokens,
      normEpsilon: config.rmsNormEps,
      seats: options.sparse,
    });
    const { weightMode, threadCount, maxRows, callWork = multiplyAddsBetweenLooks } = options;
    const buffers = new StepBuffers(config, pool, options);
    const headNorms = readHeadNorms(model);
    const own = { weights: model.weights, buffers, kernels, pool, headNorms };
    const parts = { ...own, config, weightMode, threadCount, maxRows, callWork };
    const dense = await (options.dense === "native" ? NativeDense.open(parts) : openOnnx(parts));
    // From here on the weights as they were read, about as large as the model, are garbage.
    Bun.gc(true);
    const backend = new CpuBackend({ model, options, kernels, pool, headNorms, dense, buffers, blockCount });
    await backend.#warmUp();
    return backend;
  }

  /**
   * Runs one step while no block is in use: onnxruntime packs and allocates at its first run, so no user waits for
   * that.
   */
  async #warmUp(): Promise<void> {
    const { blockTokens, blockCount, contextTokens } = this.shape;
    const firstRows = Math.min(blockTokens * Math.min(blockCount, 4), contextTokens, this.#maxRows);
    for (const rows of [firstRows, 1]) {
      const ascending = Int32Array.from({ length: rows }, (_, i) => i);
      await this.forward({
        tokenIds: new Int32Array(rows),
        positions: ascending,
        slots: ascending,
        pieceRows: Int32Array.of(0, rows),
        pieceSegments: Int32Array.of(0, 1),
        segmentBlockStarts: Int32Array.of(0),
        segmentFirstTokens: Int32Array.of(0),
        segmentTokenCounts: Int32Array.of(rows),
        segmentOffsets: Int32Array.of(0),
        segmentPositions: Int32Array.of(0),
        blockIds: Int32Array.from({ length: blockCountForTokens(rows, blockTokens) }, (_, i) => i),
        logitRows: Int32Array.of(rows - 1),
      });
    }
  }

  /** Onnxruntime's threads take the cores between two attentions: there ours must sleep. */
  forward(batch: Batch): Promise<Float32Array> {
    return this.#ownsCores ? this.#kernels.holdThreads(() => this.#step(batch)) : this.#step(batch);
  }

  async #step(batch: Batch): Promise<Float32Array> {
    const { layerCount, vocabSize } = this.#config;
    const [rows, wanted] = [batch.tokenIds.length, batch.logitRows.length];
    const { logits } = this.#buffers;
    if (wanted * vocabSize > logits.length)
      throw new RangeError(`logits of ${wanted} rows wanted, too many for a step`);
    this.#begin(batch);
    const stages = 2 * layerCount + 1;
    if (wantsAllLogits(batch)) {
      await this.#runStages(0, stages, rows);
    } else {
      await this.#runStages(0, stages - 2, rows);
      this.#keepLogitRows(batch);
      if (wanted > 0) await this.#runStages(stages - 2, stages, wanted);
    }
    return logits.subarray(0, wanted * vocabSize);
  }

  /** See `Dense.runStages`. */
  async #runStages(first: number, end: number, rows: number): Promise<void> {
    if (this.#dense.runStages !== undefined) return this.#dense.runStages(first, end, rows);
    const { qkv, attention } = this.#buffers;
    for (let stage = first; stage < end; stage++) {
      const layer = Math.floor(stage / 2);
      if (stage % 2 === 1) this.#pool.attention(layer, qkv, attention, this.#headNorms[layer]);
      else await (layer === this.#config.layerCount ? this.#dense.head(rows) : this.#dense.run(layer, rows));
    }
  }

  greatestLogits(rowCount: number): Int32Array {
    const { logits, greatest } = this.#buffers;
    if (rowCount > 0) this.#kernels.greatest(logits, rowCount, this.#config.vocabSize, greatest);
    return greatest.subarray(0, rowCount);
  }

  async copyTokens(copies: TokenCopies): Promise<void> {
    this.#pool.copyTokens(copies);
  }

  async deviations(batch: Batch): Promise<Float32Array> {
    const { qkv, deviations } = this.#buffers;
    const out = deviations.subarray(0, batch.tokenIds.length);
    if (this.#config.layerCount === 1) return out.fill(0);
    this.#begin(batch);
    await this.#runStages(0, 3, batch.tokenIds.length);
    this.#pool.deviations(1, qkv, out, this.#headNorms[1]?.k);
    return out;
  }

  choiceCounts(seat: number): ChoiceCounts {
    if (this.#pool.seats === undefined) throw new RangeError("the backend has no seats");
    return this.#pool.seats.counts(seat);
  }

  /** Plans the step and leaves its tokens' vectors in the residual stream. */
  #begin(batch: Batch): void {
    const rows = batch.tokenIds.length;
    if (rows < 1 || rows > this.#maxRows) throw new RangeError(`${rows} rows in a step of at most ${this.#maxRows}`);
    const [residual] = this.#buffers.residual;
    this.#kernels.embedRows(this.#embedding, batch.tokenIds, residual);
    scale(residual.subarray(0, rows * this.#config.hiddenSize), this.#config.embeddingMultiplier);
    this.#pool.beginStep(batch);
  }

  /**
   * Before the last layer's attention: its K and V are written for all rows, and only those whose logits are wanted go
   * on. Attention writes theirs once more, the same bits.
   */
  #keepLogitRows(batch: Batch): void {
    const { qkv } = this.#buffers;
    const layer = this.#config.layerCount - 1;
    this.#pool.writeKv(layer, qkv, this.#headNorms[layer]?.k);
    if (batch.logitRows.length === 0) return;
    gatherRows(qkv, batch.logitRows, this.#pool.qkvWidth, qkv);
    this.#dense.keepRows(batch.logitRows);
    this.#pool.beginStep(reduceToLogitRows(batch));
  }

  /**
   * Runs every other stage of a step alone, for `bench decode`: the dense algebra of any number of rows, or attention of
   * as many as the last step had. What it leaves in the pool is nobody's.
   */
  async runOnly(part: "dense" | "attention", rows: number): Promise<void> {
    const pass = async (): Promise<void> => {
      for (let stage = part === "dense" ? 0 : 1; stage <= 2 * this.#config.layerCount; stage += 2) {
        await this.#runStages(stage, stage + 1, rows);
      }
    };
    await (this.#ownsCores ? this.#kernels.holdThreads(pass) : pass());
  }

  /** Bytes of the pool that are in memory now. */
  residentKvBytes(): number {
    return this.#pool.residentBytes();
  }

  async dispose(): Promise<void> {
    await this.#dense.dispose();
    this.#kernels.close();
  }
}

interface Parts {
  readonly model: LoadedModel;
  readonly options: CpuBackendOptions;
  readonly kernels: CpuKernels;
  readonly pool: KvPool;
  readonly headNorms: readonly (HeadNorms | undefined)[];
  readonly dense: Dense;
  readonly buffers: StepBuffers;
  readonly blockCount: number;
}

/**
 * Checks the pool against the machine's memory: pages come when they are written, and too many would kill the process.
 */
function assertMemory(kvBytes: number): void {
  // The memory limit of the container, where there is one.
  const memoryBytes = Math.min(totalmem(), process.constrainedMemory() || Number.POSITIVE_INFINITY);
  if (kvBytes <= memoryBytes) return;
  const [wanted, there] = [kvBytes, memoryBytes].map((bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`);
  throw new ModelError(`a KV pool of ${wanted} is more than the machine's memory of ${there}`);
}

function kvBytesPerBlock(config: ModelConfig, options: Pick<CpuBackendOptions, "kvType" | "blockTokens">): number {
  const { layerCount, kvHeadCount, headDim } = config;
  return kvBytesOf(options.kvType, 2 * layerCount * kvHeadCount * headDim * options.blockTokens);
}

function shadowBytesPerBlock(config: ModelConfig, { blockTokens }: Pick<CpuBackendOptions, "blockTokens">): number {
  const { layerCount, kvHeadCount: kvHeads, headDim } = config;
  return shadowBytesOf({ layerCount, kvHeads, headDim }, blockTokens);
}

function sparseShape(config: ModelConfig, options: CpuBackendOptions, sparse: SparseOptions): SparseShape {
  const { seats, listTokens, rings } = sparse;
  const byRing = ["ahead", "last", "algorithm1"];
  const modes = choiceModes.filter((mode) => rings || !byRing.includes(mode));
  return { seats, listTokens, shadowBytesPerBlock: shadowBytesPerBlock(config, options), modes };
}

/** @throws ModelError naming what of the model or of the options has no choices here */
function assertChooses(config: ModelConfig, options: CpuBackendOptions, { shadowBits }: SparseOptions): void {
  const reasons: [isSo: boolean, what: string][] = [
    [config.window !== undefined, "layers that slide"],
    [config.scoreCap !== undefined, "capped attention scores"],
    [config.sinks === true, "attention sinks"],
    [options.blockTokens < 16, `blocks of ${options.blockTokens} tokens, fewer than 16`],
    [shadowBits !== 4, `shadows of ${shadowBits} bits, where the CPU has 4`],
  ];
  const reason = reasons.find(([isSo]) => isSo);
  if (reason) throw new ModelError(`sparse decoding does not work with ${reason[1]}`);
}

function readHeadNorms(model: LoadedModel): (HeadNorms | undefined)[] {
  return Array.from({ length: model.config.layerCount }, (_, layer) => {
    if (model.config.qkNorm !== "head") return undefined;
    const read = (name: string) => model.weights.float32(`model.layers.${layer}.self_attn.${name}.weight`);
    return { q: read("q_norm"), k: read("k_norm") };
  });
}

/** [layers * heads] */
function readSinks({ config, weights }: LoadedModel): Float32Array | undefined {
  if (!config.sinks) return undefined;
  return weights.joined(
    Array.from({ length: config.layerCount }, (_, layer) => `model.layers.${layer}.self_attn.sinks`),
  );
}

function scale(values: Float32Array, factor: number): void {
  if (factor === 1) return;
  for (let i = 0; i < values.length; i++) values[i] *= factor;
}

/** The embedding stays in its stored type, where that is a float; rows are widened when they are read. */
function readEmbedding({ weights }: LoadedModel): EmbeddingTable {
  const name = "model.embed_tokens.weight";
  const info = weights.info(name);
  const [rowCount, width] = info.shape;
  if (info.dtype === "F32" || info.scales) return { type: "float32", data: weights.float32(name), rowCount, width };
  const type = info.dtype === "F16" ? "float16" : "bfloat16";
  return { type, data: new Uint16Array(readTensorBytes(info).buffer), rowCount, width };
}
