/**
 * Dense algebra by our own products: a layer is four of them, and norms, gate, bias and residual are done on their way
 * in and out. The residual stream stays in the first of its two buffers.
 */
import type { LayerNorms } from "../../model/family.ts";
import type { Matrix, Norm, ProductOptions } from "../../native/cpu-kernels.ts";
import type { Dense, DenseParts } from "./dense.ts";
import { ExpertLayers } from "./expert-layers.ts";
import { gatherRows } from "./logit-rows.ts";
import { type GatedMlp, Packer, paddedOutputs } from "./packer.ts";
import { Products } from "./products.ts";

interface Layer {
  readonly norms: { readonly [place in keyof LayerNorms]: Norm | undefined };
  /** Norms of q and k over all heads of a row. */
  readonly projectionNorms: { readonly q: Norm; readonly k: Norm } | undefined;
  readonly qkv: Matrix;
  readonly qkvBias: Float32Array | undefined;
  readonly o: Matrix;
  readonly oBias: Float32Array | undefined;
  /** undefined: the layer has experts. */
  readonly mlp: GatedMlp | undefined;
}

export class NativeDense implements Dense {
  readonly #parts: DenseParts;
  readonly #layers: readonly Layer[];
  readonly #norm: Norm;
  readonly #head: Matrix;
  /** [maxRows, hiddenSize] what attention or the MLP adds to the residual stream, before its norm. */
  readonly #branch: Float32Array;
  /** [maxRows, gatedWidth] what silu(gate) * up gives; zeros behind ffnSize. */
  readonly #gated: Float32Array;
  readonly #gatedWidth: number;
  readonly #products = new Products();
  readonly #experts: ExpertLayers | undefined;

  private constructor(parts: DenseParts, packer: Packer) {
    const { config, maxRows } = parts;
    this.#parts = parts;
    this.#layers = Array.from({ length: config.layerCount }, (_, index) => layerOf(parts, packer, index));
    this.#head = packer.head();
    this.#norm = packer.norm("model.norm");
    this.#experts = ExpertLayers.open(parts, packer, this.#products);
    this.#gatedWidth = paddedOutputs(config.ffnSize);
    const hasMlps = this.#layers.some(({ mlp }) => mlp !== undefined);
    this.#gated = new Float32Array(hasMlps ? maxRows * this.#gatedWidth : 0);
    const { afterAttention, afterMlp } = config.layerNorms;
    const hasBranches = afterAttention !== undefined || afterMlp !== undefined;
    this.#branch = new Float32Array(hasBranches ? maxRows * config.hiddenSize : 0);
  }

  static async open(parts: DenseParts): Promise<NativeDense> {
    return new NativeDense(parts, new Packer(parts));
  }

  async run(index: number, rows: number): Promise<void> {
    const { residual, qkv } = this.#parts.buffers;
    if (index > 0) await this.#finishLayer(index - 1, rows);
    const { norms, projectionNorms, qkv: matrix, qkvBias: bias } = this.#layers[index];
    await this.#products.multiply(matrix, residual[0], rows, qkv, { norm: norms.beforeAttention, bias });
    if (projectionNorms === undefined) return;
    const xStride = matrix.options.outputs;
    const inPlace = { finish: "store", xStride, outStride: xStride } as const;
    this.#parts.kernels.normRows(qkv, rows, qkv, { ...inPlace, norm: projectionNorms.q });
    const k = qkv.subarray(projectionNorms.q.weights.length);
    this.#parts.kernels.normRows(k, rows, k, { ...inPlace, norm: projectionNorms.k });
  }

  async head(rows: number): Promise<void> {
    const { residual, logits } = this.#parts.buffers;
    const { layerCount, logitsDivisor, logitCap } = this.#parts.config;
    await this.#finishLayer(layerCount - 1, rows);
    const finish =
      logitCap === undefined
        ? ({ factor: 1 / logitsDivisor } as const)
        : ({ finish: "cap", factor: 1 / logitCap } as const);
    await this.#products.multiply(this.#head, residual[0], rows, logits, { norm: this.#norm, ...finish });
  }

  /** O and MLP of a layer. */
  async #finishLayer(index: number, rows: number): Promise<void> {
    const { residual, attention } = this.#parts.buffers;
    const { o, oBias, norms, mlp } = this.#layers[index];
    await this.#addProduct(o, attention, rows, norms.afterAttention, { bias: oBias });
    if (mlp === undefined) {
      await this.#experts?.run(index, residual[0], rows);
      return;
    }
    const { gateUp, down, finish } = mlp;
    await this.#products.multiply(gateUp, residual[0], rows, this.#gated, { norm: norms.beforeMlp, finish });
    await this.#addProduct(down, this.#gated, rows, norms.afterMlp, { xStride: this.#gatedWidth });
  }

  /** Adds what a product gives to the residual stream, through a norm where there is one. */
  async #addProduct(
    matrix: Matrix,
    x: Float32Array,
    rows: number,
    norm: Norm | undefined,
    options: Pick<ProductOptions, "bias" | "xStride">,
  ) {
    const [residual] = this.#parts.buffers.residual;
    const sum = { finish: "add", factor: this.#parts.config.residualMultiplier } as const;
    if (norm === undefined) return this.#products.multiply(matrix, x, rows, residual, { ...sum, ...options });
    await this.#products.multiply(matrix, x, rows, this.#branch, options);
    this.#parts.kernels.normRows(this.#branch, rows, residual, { ...sum, norm });
  }

  keepRows(rows: Int32Array): void {
    const [residual] = this.#parts.buffers.residual;
    gatherRows(residual, rows, this.#parts.config.hiddenSize, residual);
  }

  async dispose(): Promise<void> {
    for (const { qkv, o, mlp } of this.#layers) {
      for (const each of [qkv, o, ...(mlp ? [mlp.gateUp, mlp.down] : [])]) each.close();
    }
    this.#experts?.close();
    this.#head.close();
  }
}

function layerOf({ config }: DenseParts, packer: Packer, index: number): Layer {
  const named = (name: string) => `model.layers.${index}.${name}`;
  const hasProjectionNorms = config.qkNorm === "projection";
  return {
    norms: packer.layerNorms(index),
    projectionNorms: hasProjectionNorms
      ? { q: packer.norm(named("self_attn.q_norm")), k: packer.norm(named("self_attn.k_norm")) }
      : undefined,
    ...packer.projections(index),
    o: packer.stacked([named("self_attn.o_proj.weight")]),
    oBias: packer.bias(named("self_attn.o_proj.bias"), config.outputBias),
    mlp: config.experts?.layers[index] ? undefined : packer.mlp(named("mlp")),
  };
}
