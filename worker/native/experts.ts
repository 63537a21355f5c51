/**
 * The experts of a layer as the kernels have them: one call multiplies the rows of many experts, whose tasks are dealt out
 * together. kernels/abi.h has the calls. The bits are those of each expert's own products, in the order of their numbers.
 */
import type { Pointer } from "bun:ffi";
import { assertInteger, assertLength, type KernelLibrary, openHandle } from "./library.ts";
import { finishCodes, type Matrix, type Norm } from "./matrix.ts";

/** An expert: down(gate(x)), gates and ups in one matrix. */
export interface ExpertMatrices {
  readonly gateUp: Matrix;
  readonly down: Matrix;
  /** Both or none. */
  readonly gateUpBias: Float32Array | undefined;
  readonly downBias: Float32Array | undefined;
}

/** ExpertSet [first, end), and the rows that each of all was given. */
export interface GivenRows {
  readonly first: number;
  readonly end: number;
  /** [experts + 1] where each expert's rows begin in the list. */
  readonly starts: Int32Array;
  /** The list, rising for each expert. */
  readonly rows: Int32Array;
}

export class ExpertSet {
  readonly #library: KernelLibrary;
  readonly #first: ExpertMatrices;
  readonly #count: number;
  readonly #onClose: (experts: ExpertSet) => void;
  #handle: Pointer | undefined;

  /** @param all of one shape, which must be closed later */
  constructor(
    library: KernelLibrary,
    context: Pointer,
    all: readonly ExpertMatrices[],
    onClose: (experts: ExpertSet) => void,
  ) {
    assertInteger("experts", all.length, 1, 2 ** 16);
    this.#library = library;
    this.#first = all[0];
    this.#count = all.length;
    this.#onClose = onClose;
    const pointersOf = (part: "gateUp" | "down") => BigUint64Array.from(all, (each) => BigInt(each[part].handle));
    const [gateUps, downs] = [pointersOf("gateUp"), pointersOf("down")];
    this.#handle = openHandle((out) =>
      library.check("openExperts", library.symbols.spg_experts_open(context, gateUps, downs, all.length, out)),
    );
    for (const [index, { gateUpBias, downBias }] of all.entries()) {
      if (gateUpBias === undefined || downBias === undefined) continue;
      assertLength("gateUpBias", gateUpBias, this.#first.gateUp.options.outputs);
      assertLength("downBias", downBias, this.#first.down.options.outputs);
      const status = library.symbols.spg_experts_bias(this.#handle, index, gateUpBias, downBias);
      library.check("openExperts", status);
    }
  }

  /** gated row i = the gate of row rows[i] of x, for the rows of experts [first, end); rows are `gatedStride` apart. */
  gate(
    given: GivenRows,
    x: Float32Array,
    norm: Norm | undefined,
    finish: "gate" | "gateGelu" | "gateClamped",
    gated: Float32Array,
    gatedStride: number,
  ): void {
    const { inputs } = this.#first.gateUp.options;
    this.#assertGiven(given, x, inputs, gated, gatedStride);
    if (norm !== undefined) assertLength("norm", norm.weights, inputs);
    const status = this.#library.symbols.spg_experts_gate(
      this.#open(),
      given.first,
      given.end,
      given.starts,
      given.rows,
      x,
      inputs,
      norm?.weights ?? null,
      norm?.epsilon ?? 0,
      2,
      finishCodes[finish],
      gated,
      gatedStride,
    );
    if (status !== 0) this.#library.check("gate", status);
  }

  /** Row rows[i] of out += rowFactors[i] * (factor * gated row i * W + bias), expert after expert. */
  add(
    given: GivenRows,
    rowFactors: Float32Array,
    factor: number,
    gated: Float32Array,
    gatedStride: number,
    out: Float32Array,
  ): void {
    const { outputs } = this.#first.down.options;
    this.#assertGiven(given, out, outputs, gated, gatedStride);
    assertLength("rowFactors", rowFactors, given.starts[this.#count]);
    const status = this.#library.symbols.spg_experts_add(
      this.#open(),
      given.first,
      given.end,
      given.starts,
      given.rows,
      rowFactors,
      factor,
      2,
      gated,
      gatedStride,
      out,
      outputs,
    );
    if (status !== 0) this.#library.check("add", status);
  }

  close(): void {
    if (this.#handle === undefined) return;
    this.#library.symbols.spg_experts_close(this.#handle);
    this.#handle = undefined;
    this.#onClose(this);
  }

  #assertGiven(
    { first, end, starts, rows }: GivenRows,
    wide: Float32Array,
    width: number,
    gated: Float32Array,
    gatedStride: number,
  ): void {
    assertInteger("first", first, 0, this.#count - 1);
    assertInteger("end", end, first + 1, this.#count);
    assertLength("starts", starts, this.#count + 1);
    const listed = starts[end];
    assertLength("rows", rows, listed);
    assertInteger("gatedStride", gatedStride, this.#first.gateUp.options.outputs / 2, 2 ** 30);
    assertLength("gated", gated, listed * gatedStride);
    let last = -1;
    for (let i = starts[first]; i < listed; i++) last = Math.max(last, rows[i]);
    assertLength("rows of x or out", wide, (last + 1) * width);
  }

  #open(): Pointer {
    if (this.#handle === undefined) throw new Error("the experts are closed");
    return this.#handle;
  }
}
