/** One model's KV memory in native code, and attention over it. kernels/abi.h describes the layout. */
import type { Pointer } from "bun:ffi";
import type { Batch, Choices, TokenCopies } from "../contract/batch.ts";
import type { FileBlocks, SealedBlocks } from "../contract/kv-object.ts";
import { mx8Group } from "../contract/units.ts";
import { ChoiceSeats, type SeatOptions } from "./choices.ts";
import {
  asPointer,
  assertInteger,
  assertLength,
  assertSameLength,
  type KernelLibrary,
  openHandle,
  viewMemory,
} from "./library.ts";
import type { HeadNorms } from "./matrix.ts";
import { isFileAtHand, openBlocks, openFileBlocks } from "./sealed-blocks.ts";
import { type Operation, Sequence } from "./sequence.ts";

export interface RopeOptions {
  /** [rotaryDim / 2] radians per position, as the model's own code holds them; empty: no RoPE. */
  readonly inverseFrequencies: Float32Array | Float64Array;
  /** false: pairs (i, i + rotaryDim / 2) as in Llama and Qwen; true: pairs (2i, 2i + 1) as in GPT-J. */
  readonly interleaved?: boolean;
  /** Multiplies cos and sin (YaRN's attention factor); default 1. */
  readonly attentionFactor?: number;
  /** [layerCount] Are q and k of this layer rotated? Default: all. */
  readonly layers?: readonly boolean[];
  /** A table of its own, of as many frequencies, for the layers that slide. */
  readonly sliding?: { readonly inverseFrequencies: Float32Array | Float64Array; readonly attentionFactor: number };
}

/** Layers in which a row sees the tokens of its last positions alone. */
export interface SlidingWindow {
  /** How many, the row's own included. */
  readonly tokens: number;
  /** [layerCount] Does this layer slide? */
  readonly layers: readonly boolean[];
}

/** How K and V lie in memory: numbers of their own, or in groups of 32 that share a power of two (kernels/abi.h: MX8). */
export type KvType = "float32" | "float16" | "mx8";

/** As spg_type has them. */
const kvTypeCodes = { float32: 0, float16: 1, mx8: 3 } as const;

/** What `count` elements of K or V take; of mx8 whole groups. */
export function kvBytesOf(kvType: KvType, count: number): number {
  return kvType === "mx8" ? count + count / mx8Group : count * (kvType === "float16" ? 2 : 4);
}

export interface KvPoolOptions {
  readonly layerCount: number;
  readonly blockCount: number;
  /** A power of two up to 256; 16 and above are fast. */
  readonly blockTokens: number;
  readonly queryHeads: number;
  /** Divides queryHeads. */
  readonly kvHeads: number;
  /** A multiple of 8 up to 256; with mx8 of 32. */
  readonly headDim: number;
  readonly kvType: KvType;
  readonly rope: RopeOptions;
  readonly window?: SlidingWindow | undefined;
  /** Chain positions are below it, segment offsets below it in size: the model's context. */
  readonly maxPositions: number;
  /** false: every piece loads its blocks itself, for comparison. Default true; results are the same. */
  readonly packing?: boolean;
  /** Default: 1 / sqrt(headDim). */
  readonly softmaxScale?: number;
  /** Epsilon of the RMSNorm on q and k heads; default 1e-6. */
  readonly normEpsilon?: number;
  /** Scores x become cap tanh(x / cap); default: they stay. */
  readonly scoreCap?: number | undefined;
  /** [layerCount * queryHeads] sinks; default: no head has one. */
  readonly sinks?: Float32Array | undefined;
  /** Seats for rows that choose what they read, and shadows of K to choose by; absent: there are neither. */
  readonly seats?: SeatOptions | undefined;
}

/** The part of a step's plan that attention needs. */
export type AttentionBatch = Omit<Batch, "tokenIds" | "logitRows">;

const maxInt32 = 2 ** 31 - 1;

function configBytes(options: KvPoolOptions): Int32Array {
  const { rope } = options;
  const integers: [name: string, value: number][] = [
    ["layerCount", options.layerCount],
    ["blockCount", options.blockCount],
    ["blockTokens", options.blockTokens],
    ["queryHeads", options.queryHeads],
    ["kvHeads", options.kvHeads],
    ["headDim", options.headDim],
    ["kvType", kvTypeCodes[options.kvType]],
    ["rotaryDim", rope.inverseFrequencies.length * 2],
    ["interleaved", rope.interleaved ? 1 : 0],
    ["maxPositions", options.maxPositions],
    ["packing", options.packing === false ? 0 : 1],
    ["window.tokens", options.window?.tokens ?? 0],
    ["rope tables", rope.sliding === undefined ? 1 : 2],
  ];
  const config = new Int32Array(18);
  integers.forEach(([name, value], index) => {
    assertInteger(name, value, 0, maxInt32);
    config[index] = value;
  });
  const factors = new Float32Array(config.buffer, 52, 5);
  factors[0] = options.softmaxScale ?? 1 / Math.sqrt(options.headDim);
  factors[1] = rope.attentionFactor ?? 1;
  factors[2] = options.normEpsilon ?? 1e-6;
  factors[3] = rope.sliding?.attentionFactor ?? 1;
  factors[4] = options.scoreCap ?? 0;
  return config;
}

/** What each layer is, as spg_layer has it. */
function layerKinds({ layerCount, rope, window }: KvPoolOptions): Uint8Array {
  if (rope.layers !== undefined) assertSameLength("rope.layers", rope.layers, layerCount);
  if (window !== undefined) assertSameLength("window.layers", window.layers, layerCount);
  return Uint8Array.from({ length: layerCount }, (_, layer) => {
    const slides = window?.layers[layer] === true;
    const second = slides && rope.sliding !== undefined;
    return (rope.layers?.[layer] === false ? 0 : 1) + (second ? 2 : 0) + (slides ? 4 : 0);
  });
}

export class KvPool {
  readonly options: KvPoolOptions;
  /** Floats in one row of qkv: q heads, then k heads, then v heads. */
  readonly qkvWidth: number;
  /** Floats in one row of out. */
  readonly outWidth: number;
  /** Size of the pool in bytes; pages that were never written take no memory. */
  readonly kvBytes: number;
  readonly kvBytesPerBlock: number;
  readonly seats: ChoiceSeats | undefined;
  readonly #library: KernelLibrary;
  readonly #pool: Pointer;
  readonly #onClose: () => void;
  readonly #sequences = new Set<Sequence>();
  #rowCount = 0;
  #closed = false;
  #layers: readonly Uint8Array[] | undefined;

  constructor(library: KernelLibrary, context: Pointer, options: KvPoolOptions, onClose: () => void) {
    const config = configBytes(options);
    // One spare element: bun:ffi refuses an empty array, and a model without RoPE has no frequencies.
    const { inverseFrequencies, sliding } = options.rope;
    const frequencies = Float64Array.of(...inverseFrequencies, ...(sliding?.inverseFrequencies ?? []), 0);
    if (sliding) assertSameLength("rope.sliding", sliding.inverseFrequencies, inverseFrequencies.length);
    const kinds = layerKinds(options);
    const { sinks } = options;
    if (sinks) assertSameLength("sinks", sinks, options.layerCount * options.queryHeads);
    this.#library = library;
    this.#onClose = onClose;
    this.#pool = openHandle((out) =>
      library.check(
        "spg_pool_open",
        library.symbols.spg_pool_open(context, config, frequencies, kinds, sinks ?? null, out),
      ),
    );
    this.options = options;
    this.qkvWidth = (options.queryHeads + 2 * options.kvHeads) * options.headDim;
    this.outWidth = options.queryHeads * options.headDim;
    this.kvBytes = Number(library.symbols.spg_pool_bytes(this.#pool));
    this.kvBytesPerBlock = this.kvBytes / options.blockCount;
    this.seats = this.#openSeats(options.seats);
  }

  /** Bytes of the pool that are in memory now. The call walks the page table, so it is too slow for every step. */
  residentBytes(): number {
    return Number(this.#library.symbols.spg_pool_resident_bytes(this.#open()));
  }

  /**
   * Checks a step's plan once for all layers and prepares its work list; the arrays are copied.
   * @throws RangeError when array lengths disagree, KernelError when the plan is not valid for this pool
   */
  beginStep(batch: AttentionBatch): void {
    const pool = this.#open();
    const rowCount = batch.positions.length;
    const pieceCount = batch.pieceRows.length - 1;
    const segmentCount = batch.segmentOffsets.length;
    this.#rowCount = 0;
    assertLength("positions", batch.positions, 1);
    assertLength("pieceRows", batch.pieceRows, 2);
    assertLength("segmentOffsets", batch.segmentOffsets, 1);
    assertLength("blockIds", batch.blockIds, 1);
    assertSameLength("slots", batch.slots, rowCount);
    assertSameLength("pieceSegments", batch.pieceSegments, pieceCount + 1);
    if (batch.pieceGenerated) assertSameLength("pieceGenerated", batch.pieceGenerated, pieceCount);
    assertSameLength("segmentBlockStarts", batch.segmentBlockStarts, segmentCount);
    assertSameLength("segmentFirstTokens", batch.segmentFirstTokens, segmentCount);
    assertSameLength("segmentTokenCounts", batch.segmentTokenCounts, segmentCount);
    if (batch.segmentPositions) assertSameLength("segmentPositions", batch.segmentPositions, segmentCount);
    const status = this.#library.symbols.spg_step_begin(
      pool,
      batch.positions,
      batch.slots,
      rowCount,
      batch.pieceRows,
      batch.pieceSegments,
      batch.pieceGenerated ?? null,
      pieceCount,
      batch.segmentBlockStarts,
      batch.segmentFirstTokens,
      batch.segmentTokenCounts,
      batch.segmentOffsets,
      batch.segmentPositions ?? null,
      segmentCount,
      batch.blockIds,
      batch.blockIds.length,
    );
    this.#library.check("beginStep", status);
    if (batch.choices !== undefined) this.#beginChoices(batch.choices);
    this.#rowCount = rowCount;
  }

  /**
   * One layer of the step: writes K and V of every row, then attends.
   * @param qkv [T][qkvWidth] q, k and v heads of each row, not normalised, not rotated
   * @param out [T][outWidth], overwritten; must not share memory with qkv
   */
  attention(layer: number, qkv: Float32Array, out: Float32Array, norms?: HeadNorms): void {
    this.#assertCall(layer, qkv);
    this.#assertOut(out);
    if (norms !== undefined) this.#assertNorms(norms);
    const status = this.#library.symbols.spg_attention(
      this.#pool,
      layer,
      qkv,
      this.qkvWidth,
      norms?.q ?? null,
      norms?.k ?? null,
      out,
    );
    if (status !== 0) this.#library.check("attention", status);
  }

  /** The first half of `attention`: writes K and V of every row. */
  writeKv(layer: number, qkv: Float32Array, kNorm?: Float32Array): void {
    this.#assertCall(layer, qkv);
    if (kNorm !== undefined) assertLength("kNorm", kNorm, this.options.headDim);
    const status = this.#library.symbols.spg_write_kv(this.#pool, layer, qkv, this.qkvWidth, kNorm ?? null);
    this.#library.check("writeKv", status);
  }

  /** The second half of `attention`: attends. All K and V that the step's segments name must have been written. */
  attend(layer: number, qkv: Float32Array, out: Float32Array, qNorm?: Float32Array): void {
    this.#assertCall(layer, qkv);
    this.#assertOut(out);
    if (qNorm !== undefined) assertLength("qNorm", qNorm, this.options.headDim);
    const status = this.#library.symbols.spg_attend(this.#pool, layer, qkv, this.qkvWidth, qNorm ?? null, out);
    this.#library.check("attend", status);
  }

  /** Names operations of a step once, for calls that run many of them. Their matrices must outlive the sequence. */
  openSequence(operations: readonly Operation[]): Sequence {
    const handle = this.#open();
    const forget = (closed: Sequence) => this.#sequences.delete(closed);
    const sequence = new Sequence(this.#library, { handle, pool: this }, operations, forget);
    this.#sequences.add(sequence);
    return sequence;
  }

  /**
   * Copies K and V of single tokens in every layer: K is rotated by the token's `deltas` positions, V stays unchanged.
   * @throws KernelError when a slot or delta is out of range, or a target is written twice or read
   */
  copyTokens({ sourceSlots, targetSlots, deltas }: TokenCopies): void {
    const pool = this.#open();
    const count = sourceSlots.length;
    assertSameLength("targetSlots", targetSlots, count);
    assertSameLength("deltas", deltas, count);
    if (count === 0) return;
    const status = this.#library.symbols.spg_copy_tokens(pool, sourceSlots, targetSlots, deltas, count);
    this.#library.check("copyTokens", status);
  }

  /**
   * out[row] = squared L2 distance between the row's K and V in this layer and the contents of its slot; stores
   * nothing.
   */
  deviations(layer: number, qkv: Float32Array, out: Float32Array, kNorm?: Float32Array): void {
    this.#assertCall(layer, qkv);
    assertLength("out", out, this.#rowCount);
    if (kNorm !== undefined) assertLength("kNorm", kNorm, this.options.headDim);
    const status = this.#library.symbols.spg_deviations(this.#pool, layer, qkv, this.qkvWidth, kNorm ?? null, out);
    this.#library.check("deviations", status);
  }

  /** The pool's memory itself, for tests and for moving blocks; not valid after `close`. */
  memory(): ArrayBuffer {
    const data = this.#library.symbols.spg_pool_data(this.#open());
    if (data === null) throw new Error("the KV pool has no memory");
    return viewMemory(asPointer(data), this.kvBytes);
  }

  /** What the pool has of a block in one layer; not valid after `close`. */
  blockMemory(layer: number, blockId: number): Uint8Array {
    const { layerCount, blockCount } = this.options;
    assertInteger("layer", layer, 0, layerCount - 1);
    assertInteger("blockId", blockId, 0, blockCount - 1);
    this.#open();
    const bytes = this.kvBytesPerBlock / layerCount;
    this.#layers ??= this.#layerViews();
    return this.#layers[layer].subarray(blockId * bytes, (blockId + 1) * bytes);
  }

  /** Whether the processor has instructions by which `openBlocks` opens. */
  get opensBlocks(): boolean {
    return this.#library.symbols.spg_pool_opens_blocks(this.#open()) === 1;
  }

  /** See openBlocks in sealed-blocks.ts. */
  openBlocks(blocks: SealedBlocks, blockIds: Int32Array): Uint8Array {
    return openBlocks(this.#library, this.#open(), blocks, blockIds);
  }

  /** See openFileBlocks there. */
  openFileBlocks(blocks: FileBlocks, blockIds: Int32Array): Uint8Array {
    return openFileBlocks(this.#library, this.#open(), blocks, blockIds);
  }

  isFileAtHand(fd: number, at: number, bytes: number): boolean {
    return isFileAtHand(this.#library, fd, at, bytes);
  }

  close(): void {
    if (this.#closed) return;
    for (const sequence of this.#sequences) sequence.close();
    this.#closed = true;
    this.#library.symbols.spg_pool_close(this.#pool);
    this.#onClose();
  }

  /** What is wrong with the options of seats frees the pool, too. */
  #openSeats(options: SeatOptions | undefined): ChoiceSeats | undefined {
    if (options === undefined) return undefined;
    try {
      return new ChoiceSeats(this.#library, this.#pool, options);
    } catch (error) {
      this.#library.symbols.spg_pool_close(this.#pool);
      throw error;
    }
  }

  #beginChoices(choices: Choices): void {
    if (this.seats === undefined) throw new RangeError("choices, and the pool has no seats");
    this.seats.begin(choices);
  }

  /** One view for each layer: a view of the whole pool might be larger than an array may be. */
  #layerViews(): readonly Uint8Array[] {
    const data = this.#library.symbols.spg_pool_data(this.#open());
    if (data === null) throw new Error("the KV pool has no memory");
    const bytes = this.kvBytes / this.options.layerCount;
    return Array.from({ length: this.options.layerCount }, (_, layer) => {
      return new Uint8Array(viewMemory(asPointer((Number(data) + layer * bytes) as Pointer), bytes));
    });
  }

  #open(): Pointer {
    if (this.#closed) throw new Error("the KV pool is closed");
    return this.#pool;
  }

  #assertCall(layer: number, qkv: Float32Array): void {
    if (this.#closed) throw new Error("the KV pool is closed");
    if (this.#rowCount === 0) throw new Error("no step has begun");
    assertInteger("layer", layer, 0, this.options.layerCount - 1);
    assertLength("qkv", qkv, this.#rowCount * this.qkvWidth);
  }

  #assertOut(out: Float32Array): void {
    assertLength("out", out, this.#rowCount * this.outWidth);
  }

  #assertNorms(norms: HeadNorms): void {
    assertLength("norms.q", norms.q, this.options.headDim);
    assertLength("norms.k", norms.k, this.options.headDim);
  }
}
