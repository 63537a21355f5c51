/**
 * Dense algebra by our own products: a layer is four of them, and norms, gate, bias and residual are done on their way
 * in and out. The residual stream stays in the first of its two buffers.
 */
import type { ModelConfig } from "../../model/config.ts";
import { holdsBfloat16, type StoredTensor } from "../../model/stored-form.ts";
import type { Weights } from "../../model/weights.ts";
import type { CpuKernels, Matrix, ProductOptions } from "../../native/cpu-kernels.ts";
import type { Dense, DenseParts, WeightMode } from "./dense.ts";
import { gatherRows } from "./logit-rows.ts";

/** Multiply-adds between two looks at messages: 2 to 40 ms of work, by the instruction set. */
const multiplyAddsBetweenLooks = 2e9;
/** Rows that products share loads of weights for. */
const rowPanels = 32;
/** Outputs that lie together in a matrix (kernels/abi.h: GATE). */
const panelOutputs = 16;

interface Layer {
  readonly inputNorm: Float32Array;
  readonly qkv: Matrix;
  readonly qkvBias: Float32Array | undefined;
  readonly o: Matrix;
  readonly mlpNorm: Float32Array;
  readonly gateUp: Matrix;
  readonly down: Matrix;
}

export class NativeDense implements Dense {
  readonly #parts: DenseParts;
  readonly #layers: readonly Layer[];
  readonly #norm: Float32Array;
  readonly #head: Matrix;
  /** [maxRows, gatedWidth] what silu(gate) * up gives; zeros behind ffnSize. */
  readonly #gated: Float32Array;
  readonly #gatedWidth: number;
  #sinceLook = 0;

  private constructor(parts: DenseParts, layers: readonly Layer[], head: Matrix) {
    this.#parts = parts;
    this.#layers = layers;
    this.#head = head;
    this.#norm = parts.weights.float32("model.norm.weight");
    this.#gatedWidth = paddedOutputs(parts.config.ffnSize);
    this.#gated = new Float32Array(parts.maxRows * this.#gatedWidth);
  }

  static async open(parts: DenseParts): Promise<NativeDense> {
    const { config, weights, weightMode, kernels } = parts;
    const packer = new Packer(config, weights, weightMode, kernels);
    const layers = Array.from({ length: config.layerCount }, (_, index) => packer.layer(index));
    return new NativeDense(parts, layers, packer.head());
  }

  async run(index: number, rows: number): Promise<void> {
    const { residual, qkv } = this.#parts.buffers;
    if (index > 0) await this.#finishLayer(index - 1, rows);
    const { inputNorm, qkv: matrix, qkvBias: bias } = this.#layers[index];
    await this.#multiply(matrix, residual[0], rows, qkv, { norm: this.#normOf(inputNorm), bias });
  }

  async head(rows: number): Promise<void> {
    const { residual, logits } = this.#parts.buffers;
    const { layerCount, logitsDivisor } = this.#parts.config;
    await this.#finishLayer(layerCount - 1, rows);
    const options = { norm: this.#normOf(this.#norm), factor: 1 / logitsDivisor };
    await this.#multiply(this.#head, residual[0], rows, logits, options);
  }

  /** O and MLP of a layer. */
  async #finishLayer(index: number, rows: number): Promise<void> {
    const { residual, attention } = this.#parts.buffers;
    const { o, mlpNorm, gateUp, down } = this.#layers[index];
    const sum = { finish: "add", factor: this.#parts.config.residualMultiplier } as const;
    await this.#multiply(o, attention, rows, residual[0], sum);
    await this.#multiply(gateUp, residual[0], rows, this.#gated, { norm: this.#normOf(mlpNorm), finish: "gate" });
    await this.#multiply(down, this.#gated, rows, residual[0], { ...sum, xStride: this.#gatedWidth });
  }

  keepRows(rows: Int32Array): void {
    const [residual] = this.#parts.buffers.residual;
    gatherRows(residual, rows, this.#parts.config.hiddenSize, residual);
  }

  async dispose(): Promise<void> {
    for (const { qkv, o, gateUp, down } of this.#layers) for (const each of [qkv, o, gateUp, down]) each.close();
    this.#head.close();
  }

  #normOf(weights: Float32Array): NonNullable<ProductOptions["norm"]> {
    return { weights, epsilon: this.#parts.config.rmsNormEps };
  }

  /** A large product in parts, a row's bits being its own, so that messages are seen in between. */
  async #multiply(matrix: Matrix, x: Float32Array, rows: number, out: Float32Array, options: ProductOptions) {
    const { outputs, inputs } = matrix.options;
    const xStride = options.xStride ?? inputs;
    const outStride = options.finish === "gate" ? outputs / 2 : outputs;
    const panels = Math.floor(multiplyAddsBetweenLooks / (outputs * inputs * rowPanels));
    const most = Math.max(1, panels) * rowPanels;
    for (let first = 0; first < rows; first += most) {
      const count = Math.min(most, rows - first);
      matrix.multiply(x.subarray(first * xStride), count, out.subarray(first * outStride), options);
      this.#sinceLook += count * outputs * inputs;
      if (this.#sinceLook < multiplyAddsBetweenLooks) continue;
      this.#sinceLook = 0;
      await new Promise((resolve) => setImmediate(resolve));
    }
  }
}

function paddedOutputs(size: number): number {
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

/** Makes the matrices of a model's layers. */
class Packer {
  readonly #config: ModelConfig;
  readonly #weights: Weights;
  readonly #weightMode: WeightMode;
  readonly #kernels: CpuKernels;

  constructor(config: ModelConfig, weights: Weights, weightMode: WeightMode, kernels: CpuKernels) {
    this.#config = config;
    this.#weights = weights;
    this.#weightMode = weightMode;
    this.#kernels = kernels;
  }

  layer(index: number): Layer {
    const named = (name: string) => `model.layers.${index}.${name}`;
    const projections = ["q_proj", "k_proj", "v_proj"].map((name) => named(`self_attn.${name}`));
    const qkvBias = this.#config.qkvBias
      ? joined(projections.map((name) => this.#weights.float32(`${name}.bias`)))
      : undefined;
    return {
      inputNorm: this.#weights.float32(named("input_layernorm.weight")),
      qkv: this.#stacked(projections.map((name) => `${name}.weight`)),
      qkvBias,
      o: this.#stacked([named("self_attn.o_proj.weight")]),
      mlpNorm: this.#weights.float32(named("post_attention_layernorm.weight")),
      gateUp: this.#gated(named("mlp.gate_proj.weight"), named("mlp.up_proj.weight")),
      down: this.#stacked([named("mlp.down_proj.weight")]),
    };
  }

  head(): Matrix {
    return this.#stacked([this.#config.tiedEmbeddings ? "model.embed_tokens.weight" : "lm_head.weight"]);
  }

  #open(names: readonly string[], outputs: number): Matrix {
    const infos = names.map((name) => this.#weights.info(name));
    const inputs = infos[0].shape[1];
    if (this.#weightMode === "int8") return this.#kernels.openMatrix({ outputs, inputs, form: "int8" });
    const parts = partsOf(infos);
    return this.#kernels.openMatrix({ outputs, inputs, form: "b16", parts });
  }

  /** [W0; W1; …]: layers with the same input, their outputs side by side. */
  #stacked(names: readonly string[]): Matrix {
    const rowCounts = names.map((name) => this.#weights.info(name).shape[0]);
    const matrix = this.#open(
      names,
      rowCounts.reduce((sum, count) => sum + count),
    );
    let firstOutput = 0;
    for (const [index, name] of names.entries()) {
      const rowCount = rowCounts[index];
      matrix.fill({ data: this.#weights.float32(name), type: "float32" }, { rowCount, firstOutput });
      firstOutput += rowCount;
    }
    return matrix;
  }

  #gated(gate: string, up: string): Matrix {
    const rowCount = this.#config.ffnSize;
    const matrix = this.#open([gate, up], 2 * paddedOutputs(rowCount));
    for (const [index, name] of [gate, up].entries()) {
      const place = { rowCount, firstOutput: index * panelOutputs, everyOtherPanel: true };
      matrix.fill({ data: this.#weights.float32(name), type: "float32" }, place);
    }
    return matrix;
  }
}

function joined(parts: readonly Float32Array[]): Float32Array {
  const out = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}
