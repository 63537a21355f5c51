/**
 * The dense algebra between two attentions as one ONNX graph. For L layers there are L + 1 graphs, cut
 * where attention is:
 *
 *   entry   residual                 -> qkv                        norm, QKV of layer 0
 *   middle  attention, residual      -> residual, qkv              O + MLP of layer i - 1, norm, QKV of layer i
 *   exit    attention, residual      -> logits                     O + MLP of the last layer, norm, head
 *
 * Behind a layer with experts (expert-layers.ts) there are two in place of a middle or an exit:
 *
 *   before  attention, residual      -> residual                   O of layer i - 1
 *   behind  residual                 -> qkv, or logits             norm, QKV of layer i; or norm, head
 *
 * All tensors are float32 [rows, size]; q, k and v stand side by side in `qkv`. Constant factors of a model (the
 * residual multiplier, the divisor of logits) are folded into the weights that come before them.
 */
import type { ModelConfig } from "../../model/config.ts";
import type { LayerNorms } from "../../model/family.ts";
import { layerNorm } from "../../model/tensor-layout.ts";
import type { Weights } from "../../model/weights.ts";
import type { WeightMode } from "./dense.ts";
import { OnnxGraph } from "./onnx-writer.ts";
import { blockSizeFor, quantizeRows } from "./quantize.ts";

interface LinearOptions {
  readonly output?: string;
  readonly factor?: number;
}

export class DenseGraphs {
  readonly #config: ModelConfig;
  readonly #weights: Weights;
  readonly #mode: WeightMode;

  constructor(config: ModelConfig, weights: Weights, mode: WeightMode) {
    this.#config = config;
    this.#weights = weights;
    this.#mode = mode;
  }

  get qkvSize(): number {
    return (this.#config.headCount + 2 * this.#config.kvHeadCount) * this.#config.headDim;
  }

  /** O of a layer with experts, which come after it. */
  beforeExperts(layer: number): Uint8Array {
    const { hiddenSize, headCount, headDim } = this.#config;
    const graph = new OnnxGraph();
    const residual = graph.input("residual", "float32", ["rows", hiddenSize]);
    const attention = graph.input("attention", "float32", ["rows", headCount * headDim]);
    const added = this.#afterAttention(graph, attention, layer);
    const sum = graph.output("residual_out", "float32", ["rows", hiddenSize]);
    graph.node({ op: "Add", inputs: [added, residual], outputs: [sum] });
    return graph.toBytes();
  }

  /** What follows the experts of layer `index` - 1: q, k and v of layer `index`, or the head. */
  behindExperts(index: number): Uint8Array {
    const graph = new OnnxGraph();
    const residual = graph.input("residual", "float32", ["rows", this.#config.hiddenSize]);
    if (index < this.#config.layerCount) {
      this.#qkv(graph, index, this.#normAt(graph, residual, index, "beforeAttention"));
    } else {
      this.#head(graph, this.#norm(graph, residual, "model.norm.weight"));
    }
    return graph.toBytes();
  }

  /** Writes graph `index` of 0..layerCount as ONNX bytes. */
  build(index: number): Uint8Array {
    if (index === 0) return this.behindExperts(0);
    const { hiddenSize, headCount, headDim, layerCount } = this.#config;
    const graph = new OnnxGraph();
    const residual = graph.input("residual", "float32", ["rows", hiddenSize]);
    const attention = graph.input("attention", "float32", ["rows", headCount * headDim]);
    const previous = index - 1;
    const added = this.#afterAttention(graph, attention, previous);
    const middle = graph.name("residual");
    const mlpIn = this.#addNorm(graph, added, residual, this.#normName(previous, "beforeMlp"), middle);
    const mlpOut = this.#mlp(graph, previous, mlpIn);
    const last = index === layerCount;
    const normName = last ? "model.norm.weight" : this.#normName(index, "beforeAttention");
    const sum = last ? graph.name("residual") : graph.output("residual_out", "float32", ["rows", hiddenSize]);
    const normed = this.#addNorm(graph, mlpOut, middle, normName, sum);
    if (last) this.#head(graph, normed);
    else this.#qkv(graph, index, normed);
    return graph.toBytes();
  }

  #afterAttention(graph: OnnxGraph, attention: string, layer: number): string {
    const bias = this.#config.outputBias ? `model.layers.${layer}.self_attn.o_proj.bias` : undefined;
    return this.#branch(graph, attention, this.#layer(layer, "self_attn.o_proj"), layer, "afterAttention", bias);
  }

  /** What attention or the MLP adds to the residual stream; a norm behind it has the model's factor in its weights. */
  #branch(
    graph: OnnxGraph,
    input: string,
    weightName: string,
    layer: number,
    place: keyof LayerNorms,
    biasName?: string,
  ): string {
    const { residualMultiplier } = this.#config;
    const normName = this.#normName(layer, place);
    const factor = normName === undefined ? residualMultiplier : 1;
    const product = this.#linear(graph, input, [weightName], { factor });
    const added =
      biasName === undefined ? product : this.#plus(graph, product, [biasName], graph.name("biased"), factor);
    return normName === undefined ? added : this.#norm(graph, added, normName, residualMultiplier);
  }

  /** Adds biases, one after the other, to rows. */
  #plus(graph: OnnxGraph, rows: string, biasNames: readonly string[], output: string, factor = 1): string {
    const data = this.#scaled(biasNames, factor);
    const bias = graph.initializer(graph.name("bias"), [data.length], data);
    graph.node({ op: "Add", inputs: [rows, bias], outputs: [output] });
    return output;
  }

  #normName(layer: number, place: keyof LayerNorms): string | undefined {
    return this.#config.layerNorms[place] === undefined ? undefined : `${layerNorm(layer, place)}.weight`;
  }

  #normAt(graph: OnnxGraph, input: string, layer: number, place: keyof LayerNorms): string {
    const normName = this.#normName(layer, place);
    return normName === undefined ? input : this.#norm(graph, input, normName);
  }

  #layer(layer: number, name: string): string {
    return `model.layers.${layer}.${name}.weight`;
  }

  #norm(graph: OnnxGraph, input: string, weightName: string, factor = 1): string {
    const output = graph.name("normed");
    graph.node({
      op: "SimplifiedLayerNormalization",
      inputs: [input, this.#vector(graph, weightName, factor)],
      outputs: [output],
      attributes: { axis: { int: -1 }, epsilon: { float: this.#config.rmsNormEps } },
    });
    return output;
  }

  /** Adds RMSNorm of (a + b), and the sum itself under the name `sum`; without a norm the sum alone. */
  #addNorm(graph: OnnxGraph, a: string, b: string, weightName: string | undefined, sum: string): string {
    if (weightName === undefined) {
      graph.node({ op: "Add", inputs: [a, b], outputs: [sum] });
      return sum;
    }
    const output = graph.name("normed");
    graph.node({
      op: "SkipSimplifiedLayerNormalization",
      domain: "com.microsoft",
      inputs: [a, b, this.#vector(graph, weightName)],
      outputs: [output, "", "", sum],
      attributes: { epsilon: { float: this.#config.rmsNormEps } },
    });
    return output;
  }

  #vector(graph: OnnxGraph, weightName: string, factor = 1): string {
    const data = this.#scaled([weightName], factor);
    return graph.initializer(graph.name("norm"), [data.length], data);
  }

  #mlp(graph: OnnxGraph, layer: number, input: string): string {
    const gate = this.#linear(graph, input, [this.#layer(layer, "mlp.gate_proj")]);
    const up = this.#linear(graph, input, [this.#layer(layer, "mlp.up_proj")]);
    const activated = graph.name("activated");
    const product = graph.name("gated");
    // QuickGelu with alpha 1 is x * sigmoid(x), which is SiLU; FastGelu is GELU as tanh approximates it. Both take one pass.
    const isGelu = this.#config.activation === "gelu";
    graph.node({
      op: isGelu ? "FastGelu" : "QuickGelu",
      domain: "com.microsoft",
      inputs: [gate],
      outputs: [activated],
      attributes: isGelu ? {} : { alpha: { float: 1 } },
    });
    graph.node({ op: "Mul", inputs: [activated, up], outputs: [product] });
    return this.#branch(graph, product, this.#layer(layer, "mlp.down_proj"), layer, "afterMlp");
  }

  #qkv(graph: OnnxGraph, layer: number, input: string): void {
    const names = ["q_proj", "k_proj", "v_proj"].map((name) => this.#layer(layer, `self_attn.${name}`));
    const qkv = graph.output("qkv", "float32", ["rows", this.qkvSize]);
    if (this.#config.qkNorm === "projection") {
      const [q, k, v] = names.map((name) => this.#linear(graph, input, [name]));
      const normed = [q, k].map((x, i) => this.#norm(graph, x, this.#layer(layer, `self_attn.${["q", "k"][i]}_norm`)));
      graph.node({ op: "Concat", inputs: [...normed, v], outputs: [qkv], attributes: { axis: { int: -1 } } });
      return;
    }
    if (!this.#config.qkvBias) {
      this.#linear(graph, input, names, { output: qkv });
      return;
    }
    const product = this.#linear(graph, input, names);
    this.#plus(
      graph,
      product,
      names.map((name) => name.replace(/weight$/, "bias")),
      qkv,
    );
  }

  #head(graph: OnnxGraph, input: string): void {
    const { tiedEmbeddings, vocabSize, logitsDivisor, logitCap } = this.#config;
    const name = tiedEmbeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    const output = graph.output("logits", "float32", ["rows", vocabSize]);
    if (logitCap === undefined) {
      this.#linear(graph, input, [name], { output, factor: 1 / logitsDivisor });
      return;
    }
    const bent = graph.name("bent");
    const scores = this.#linear(graph, input, [name], { factor: 1 / logitCap });
    graph.node({ op: "Tanh", inputs: [scores], outputs: [bent] });
    const cap = graph.initializer(graph.name("cap"), [1], Float32Array.of(logitCap));
    graph.node({ op: "Mul", inputs: [bent, cap], outputs: [output] });
  }

  /** Tensors one after the other, multiplied by a factor. */
  #scaled(names: readonly string[], factor: number): Float32Array {
    const scaled = this.#weights.joined(names);
    if (factor !== 1) for (let i = 0; i < scaled.length; i++) scaled[i] *= factor;
    return scaled;
  }

  /** Adds factor * input x [W0; W1; …]ᵀ: linear layers with the same input, their outputs side by side. */
  #linear(
    graph: OnnxGraph,
    input: string,
    weightNames: readonly string[],
    { output = graph.name("linear"), factor = 1 }: LinearOptions = {},
  ): string {
    const inputSize = this.#weights.info(weightNames[0]).shape[1];
    const stacked = this.#scaled(weightNames, factor);
    const outputSize = stacked.length / inputSize;
    const blockSize = this.#mode === "int8" ? blockSizeFor(inputSize) : undefined;
    if (blockSize === undefined) {
      const weight = graph.initializer(graph.name("weight"), [outputSize, inputSize], stacked);
      graph.node({ op: "Gemm", inputs: [input, weight], outputs: [output], attributes: { transB: { int: 1 } } });
      return output;
    }
    const quantized = quantizeRows(stacked, blockSize);
    const blocks = inputSize / blockSize;
    const values = graph.initializer(graph.name("weight"), [outputSize, blocks, blockSize], quantized.values);
    const scales = graph.initializer(graph.name("scales"), [outputSize * blocks], quantized.scales);
    graph.node({
      op: "MatMulNBits",
      domain: "com.microsoft",
      inputs: [input, values, scales],
      outputs: [output],
      attributes: {
        K: { int: inputSize },
        N: { int: outputSize },
        bits: { int: 8 },
        block_size: { int: blockSize },
        // Activations are quantized to 8 bits too, for each row and block alone, so that no row changes another's
        // result.
        accuracy_level: { int: 4 },
      },
    });
    return output;
  }
}
