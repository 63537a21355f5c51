/** Makes matrices and norms of a model's weights, for products of our own. */
import type { ModelConfig } from "../../model/config.ts";
import type { LayerNorms } from "../../model/family.ts";
import { holdsBfloat16, readE4m3, readMxfp4, type StoredTensor, staysE4m3 } from "../../model/stored-form.ts";
import { layerNorm } from "../../model/tensor-layout.ts";
import type { Weights } from "../../model/weights.ts";
import type { CpuKernels, ExpertSet, Matrix, MatrixOptions, Norm, RowsPlace } from "../../native/cpu-kernels.ts";
import type { DenseParts, WeightMode } from "./dense.ts";

/** Outputs that lie together in a matrix (kernels/abi.h: GATE). */
const panelOutputs = 16;

/** down(activation(gate) * up), gate and up in one matrix; an expert may have biases. */
export interface GatedMlp {
  readonly gateUp: Matrix;
  readonly gateUpBias: Float32Array | undefined;
  readonly down: Matrix;
  readonly downBias: Float32Array | undefined;
  readonly finish: "gate" | "gateGelu" | "gateClamped";
}

const finishes = { silu: "gate", gelu: "gateGelu", clamped: "gateClamped" } as const;

/** Numbers of a row that a gate leaves: zeros behind `size`. */
export function paddedOutputs(size: number): number {
  return Math.ceil(size / panelOutputs) * panelOutputs;
}

/**
 * How many bfloat16 numbers a weight takes: float32 is held exactly, 8-bit weights to 16 bits, and exactly where their
 * scales are powers of two.
 */
function partsOf(tensors: readonly StoredTensor[]): 1 | 2 | 3 {
  if (tensors.some(({ dtype }) => dtype === "F32")) return 3;
  return tensors.every(holdsBfloat16) ? 1 : 2;
}

/** How a matrix of these weights is held. */
export function packedForm(
  tensors: readonly StoredTensor[],
  weightMode: WeightMode,
): Pick<MatrixOptions, "form" | "parts"> {
  // 4 bits stay what they are: fewer than 8, and exact.
  if (tensors.every(({ mxfp4Scales }) => mxfp4Scales)) return { form: "mx4" };
  if (weightMode === "int8") return { form: "int8" };
  const parts = partsOf(tensors);
  // So do 8-bit floats that would take four bytes: products widen them to the numbers that b16 would hold. Two bytes are
  // read faster than one is widened.
  return { form: parts === 2 && tensors.every(staysE4m3) ? "e4m3" : "b16", parts };
}

export class Packer {
  readonly #config: ModelConfig;
  readonly #weights: Weights;
  readonly #weightMode: WeightMode;
  readonly #kernels: CpuKernels;

  constructor({
    config,
    weights,
    weightMode,
    kernels,
  }: Pick<DenseParts, "config" | "weights" | "weightMode" | "kernels">) {
    this.#config = config;
    this.#weights = weights;
    this.#weightMode = weightMode;
    this.#kernels = kernels;
  }

  /** @param name without `.weight` */
  norm(name: string): Norm {
    return { weights: this.#weights.float32(`${name}.weight`), epsilon: this.#config.rmsNormEps };
  }

  /** Those that the layer has. */
  layerNorms(index: number): { readonly [place in keyof LayerNorms]: Norm | undefined } {
    const places = Object.keys(this.#config.layerNorms) as (keyof LayerNorms)[];
    return Object.fromEntries(places.map((place) => [place, this.norm(layerNorm(index, place))]));
  }

  /** q, k and v of a layer as one matrix, and their biases. */
  projections(index: number): { readonly qkv: Matrix; readonly qkvBias: Float32Array | undefined } {
    const names = ["q_proj", "k_proj", "v_proj"].map((name) => `model.layers.${index}.self_attn.${name}`);
    const qkvBias = this.#config.qkvBias ? this.#weights.joined(names.map((name) => `${name}.bias`)) : undefined;
    return { qkv: this.stacked(names.map((name) => `${name}.weight`)), qkvBias };
  }

  /**
   * @param prefix of the names of its three tensors
   * @param hasBiases do these have biases?
   */
  mlp(prefix: string, hasBiases = false): GatedMlp {
    const [gate, up, down] = ["gate", "up", "down"].map((name) => `${prefix}.${name}_proj`);
    return {
      gateUp: this.#gated(`${gate}.weight`, `${up}.weight`),
      gateUpBias: hasBiases ? this.#gatedBias(`${gate}.bias`, `${up}.bias`) : undefined,
      down: this.stacked([`${down}.weight`]),
      downBias: hasBiases ? this.#weights.float32(`${down}.bias`) : undefined,
      finish: finishes[this.#config.activation],
    };
  }

  /** Those of one layer, for calls that multiply by many. */
  experts(all: readonly GatedMlp[]): ExpertSet {
    return this.#kernels.openExperts(all);
  }

  /** A vector, or nothing where the model has none. */
  bias(name: string, isThere: boolean | undefined): Float32Array | undefined {
    return isThere ? this.#weights.float32(name) : undefined;
  }

  head(): Matrix {
    return this.stacked([this.#config.tiedEmbeddings ? "model.embed_tokens.weight" : "lm_head.weight"]);
  }

  /** A router, never in 8 bits: a small matrix whose rounding would send rows to other experts. */
  router(name: string): Matrix {
    return this.stacked([name], "float32");
  }

  /** [W0; W1; …]: layers with the same input, their outputs side by side. */
  stacked(names: readonly string[], weightMode = this.#weightMode): Matrix {
    const rowCounts = names.map((name) => this.#weights.info(name).shape[0]);
    const outputs = rowCounts.reduce((sum, count) => sum + count);
    const matrix = this.#open(names, outputs, weightMode);
    let firstOutput = 0;
    for (const [index, name] of names.entries()) {
      const rowCount = rowCounts[index];
      this.#fill(matrix, name, { rowCount, firstOutput });
      firstOutput += rowCount;
    }
    return matrix;
  }

  #open(names: readonly string[], outputs: number, weightMode: WeightMode): Matrix {
    const infos = names.map((name) => this.#weights.info(name));
    return this.#kernels.openMatrix({ outputs, inputs: infos[0].shape[1], ...packedForm(infos, weightMode) });
  }

  /** Biases of gates and ups as their matrix has them; zeros behind them, so that what a gate leaves there is zero. */
  #gatedBias(...names: readonly [gate: string, up: string]): Float32Array {
    const halves = names.map((name) => this.#weights.float32(name));
    const out = new Float32Array(2 * paddedOutputs(halves[0].length));
    for (const [half, values] of halves.entries()) {
      for (const [i, value] of values.entries()) {
        out[2 * (i - (i % panelOutputs)) + half * panelOutputs + (i % panelOutputs)] = value;
      }
    }
    return out;
  }

  #gated(gate: string, up: string): Matrix {
    const [rowCount] = this.#weights.info(gate).shape;
    const matrix = this.#open([gate, up], 2 * paddedOutputs(rowCount), this.#weightMode);
    for (const [index, name] of [gate, up].entries()) {
      const place = { rowCount, firstOutput: index * panelOutputs, everyOtherPanel: true };
      this.#fill(matrix, name, place);
    }
    return matrix;
  }

  #fill(matrix: Matrix, name: string, place: RowsPlace): void {
    const info = this.#weights.info(name);
    const blocks = matrix.options.form === "mx4" ? readMxfp4(info) : undefined;
    if (blocks) matrix.fillBlocks({ ...blocks, rowStep: info.stack?.step ?? 1 }, place);
    else if (matrix.options.form === "e4m3") matrix.fillE4m3(readE4m3(info), place);
    else matrix.fill({ data: this.#weights.float32(name), type: "float32" }, place);
  }
}
