/** What sparse decoding keeps beside a KV pool in native code: shadows of K, and the seats of requests that choose. */
import type { Pointer } from "bun:ffi";
import type { Choices } from "../contract/batch.ts";
import type { ChoiceCounts } from "../contract/sparse.ts";
import { asPointer, assertInteger, assertLength, assertSameLength, type KernelLibrary, viewMemory } from "./library.ts";

export interface SeatOptions {
  /** Requests that can choose at a time. */
  readonly seats: number;
  /** The most tokens of a buffer, forced ones with them. */
  readonly listTokens: number;
  /** Queries are kept, for the modes that choose by earlier ones. */
  readonly rings: boolean;
}

/** Bytes of the shadows of so many tokens in all layers: 4 bits a number of K, and a float16 scale for each head. */
export function shadowBytesOf(
  { layerCount, kvHeads, headDim }: { readonly layerCount: number; readonly kvHeads: number; readonly headDim: number },
  tokens: number,
): number {
  return layerCount * kvHeads * tokens * (headDim / 2 + 2);
}

/** SPG_COUNTS. */
const countCount = 7;

/** The seats of one pool, and its shadows. Not valid after the pool is closed. */
export class ChoiceSeats {
  readonly options: SeatOptions;
  /** Bytes of all shadows; their memory is taken from the system only as K is written. */
  readonly shadowBytes: number;
  readonly #library: KernelLibrary;
  readonly #pool: Pointer;

  /** To be opened before anything is written. @throws KernelError where the pool's shape has no choices */
  constructor(library: KernelLibrary, pool: Pointer, options: SeatOptions) {
    assertInteger("seats", options.seats, 1, 4096);
    assertInteger("listTokens", options.listTokens, 1, 2 ** 20);
    const { seats, listTokens, rings } = options;
    library.check("openSeats", library.symbols.spg_sparse_open(pool, seats, listTokens, rings ? 1 : 0));
    this.options = options;
    this.#library = library;
    this.#pool = pool;
    this.shadowBytes = Number(library.symbols.spg_shadow_bytes(pool));
  }

  /**
   * The choices of the step that has begun; the arrays are copied.
   * @throws RangeError when array lengths disagree, KernelError when the step's pieces have no such choices
   */
  begin(choices: Choices): void {
    const count = choices.pieces.length;
    const segmentCount = choices.segmentOffsets.length;
    for (const name of ["seats", "flags", "modes", "tokens", "refreshSteps", "leastCosines"] as const) {
      assertSameLength(`choices.${name}`, choices[name], count);
    }
    for (const name of ["BlockStarts", "FirstTokens", "TokenCounts", "Forced"] as const) {
      assertSameLength(`choices.segment${name}`, choices[`segment${name}`], segmentCount);
    }
    assertSameLength("choices.segments", choices.segments, count + 1);
    assertLength("choices.pieces", choices.pieces, 1);
    const status = this.#library.symbols.spg_step_choices(
      this.#pool,
      choices.pieces,
      choices.seats,
      choices.flags,
      choices.modes,
      choices.tokens,
      choices.refreshSteps,
      choices.leastCosines,
      choices.segments,
      count,
      notEmpty(choices.segmentBlockStarts),
      notEmpty(choices.segmentFirstTokens),
      notEmpty(choices.segmentTokenCounts),
      notEmpty(choices.segmentOffsets),
      notEmpty(choices.segmentForced),
      segmentCount,
      notEmpty(choices.blockIds),
      choices.blockIds.length,
    );
    this.#library.check("beginStep (choices)", status);
  }

  /** Sums since the seat was fresh. */
  counts(seat: number): ChoiceCounts {
    assertInteger("seat", seat, 0, this.options.seats - 1);
    const counts = new Float64Array(countCount);
    this.#library.check("counts", this.#library.symbols.spg_sparse_counts(this.#pool, seat, counts));
    // In the order of spg_choice_count.
    const [lists, chosen, chosenAgain, changed, mass, overlap, measured] = counts;
    return { lists, chosen, chosenAgain, changed, mass, overlap, measured };
  }

  /** The numbers of the tokens that the slots of a buffer hold for a layer and KV head. */
  list(seat: number, layer: number, kvHead: number): Int32Array {
    const list = new Int32Array(this.options.listTokens);
    this.#library.check("list", this.#library.symbols.spg_sparse_list(this.#pool, seat, layer, kvHead, list));
    const end = list.indexOf(-1);
    return end < 0 ? list : list.subarray(0, end);
  }

  /** The query after `newest`[0], by the queries of one head, the newest first, at most 17 of them; for tests. */
  predict(newest: readonly Float32Array[], byListing = false): Float32Array {
    assertLength("newest", newest, 1);
    const dim = newest[0].length;
    const queries = new Float32Array(newest.length * dim);
    for (const [i, query] of newest.entries()) queries.set(query.subarray(0, dim), i * dim);
    const out = new Float32Array(dim);
    const { symbols } = this.#library;
    this.#library.check("predict", symbols.spg_predict_query(queries, newest.length, dim, byListing ? 1 : 0, out));
    return out;
  }

  /** Shadows of blocks that were written from outside. */
  writeShadows(blockIds: Int32Array): void {
    if (blockIds.length === 0) return;
    const status = this.#library.symbols.spg_shadow_blocks(this.#pool, blockIds, blockIds.length);
    this.#library.check("writeShadows", status);
  }

  /**
   * A block's shadows in one layer and KV head, [blockTokens / 16] panels (kernels/abi_sparse.h): a view, for tests.
   * @param bytes of them
   */
  shadows(layer: number, blockId: number, kvHead: number, bytes: number): Uint8Array {
    const data = this.#library.symbols.spg_shadow_data(this.#pool, layer, blockId, kvHead);
    if (data === null) throw new RangeError(`no block ${blockId} in layer ${layer}, or no head ${kvHead}`);
    return new Uint8Array(viewMemory(asPointer(data), bytes));
  }
}

/** bun:ffi refuses an empty array. */
const notEmpty = (values: Int32Array): Int32Array => (values.length === 0 ? Int32Array.of(0) : values);
