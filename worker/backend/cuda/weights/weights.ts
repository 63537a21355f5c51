/**
 * Weights on the device, all bfloat16, in one allocation. q, k and v form one matrix, and gate and up another, so that
 * a layer needs four matrix products.
 */
import type { ModelConfig } from "../../../model/config.ts";
import type { LayerNorms } from "../../../model/family.ts";
import type { StoredTensor } from "../../../model/stored-form.ts";
import { layerNorm } from "../../../model/tensor-layout.ts";
import { type ComputeDevice, DeviceBuffer } from "../device/device.ts";

export interface LayerWeights {
  /** [hidden] before attention and MLP, and over what they add to the residual stream; null: there is no such norm. */
  readonly norms: { readonly [place in keyof LayerNorms]-?: DeviceBuffer | null };
  /** [(heads + 2 * kvHeads) * headDim, hidden], and the bias that is added to its output */
  readonly qkv: DeviceBuffer;
  readonly qkvBias: DeviceBuffer | null;
  /** [headDim]; of a model with norms over all heads, [heads * headDim] and [kvHeads * headDim] */
  readonly qNorm: DeviceBuffer | null;
  readonly kNorm: DeviceBuffer | null;
  /** [hidden, heads * headDim] */
  readonly output: DeviceBuffer;
  /** [hidden] */
  readonly outputBias: DeviceBuffer | null;
  /** [2 * ffn, hidden] */
  readonly gateUp: DeviceBuffer;
  /** [hidden, ffn] */
  readonly down: DeviceBuffer;
}

export interface DeviceWeights {
  /** [vocab, hidden]; `head` is the same memory when the model ties them. */
  readonly embedding: DeviceBuffer;
  readonly head: DeviceBuffer;
  /** [hidden] */
  readonly finalNorm: DeviceBuffer;
  readonly layers: readonly LayerWeights[];
  readonly byteLength: number;
}

/** The tensors of the model's folder, by logical name (worker/model/tensor-layout.ts). */
export interface WeightInfo {
  info(name: string): StoredTensor;
}

/** One tensor to upload: its elements, in logical order, are multiplied by `scale` and written to `target`. */
export interface TensorUpload {
  readonly tensor: StoredTensor;
  readonly target: DeviceBuffer;
  readonly scale: number;
}

/** Where weights come from: the model's files, or random numbers in benchmarks. */
export interface TensorReader {
  upload(device: ComputeDevice, uploads: readonly TensorUpload[]): Promise<void>;
}

/** Uploads every weight. @throws CudaError when they do not fit, ModelError for a bad file */
export async function loadWeights(
  device: ComputeDevice,
  config: ModelConfig,
  source: WeightInfo,
  reader: TensorReader,
): Promise<DeviceWeights> {
  const size = new WeightPlacer(config, source, undefined);
  size.placeAll();
  const memory = device.allocate("weights", size.byteLength);
  const placer = new WeightPlacer(config, source, memory);
  const weights = placer.placeAll();
  await reader.upload(device, placer.uploads);
  return weights;
}

/** Arenas align each buffer to this many bytes. */
const alignment = 256;

/** Walks the model's tensors in a fixed order; without an arena it only adds up their sizes. */
class WeightPlacer {
  readonly uploads: TensorUpload[] = [];
  byteLength = 0;
  readonly #config: ModelConfig;
  readonly #source: WeightInfo;
  readonly #memory: DeviceBuffer | undefined;

  constructor(config: ModelConfig, source: WeightInfo, memory: DeviceBuffer | undefined) {
    this.#config = config;
    this.#source = source;
    this.#memory = memory;
  }

  placeAll(): DeviceWeights {
    const { tiedEmbeddings, layerCount, logitsDivisor } = this.#config;
    const embedding = this.#place("model.embed_tokens.weight");
    const head = tiedEmbeddings ? embedding : this.#place("lm_head.weight");
    // Logits are linear in the last norm's weights, so the model's divisor of logits is folded into those weights.
    const finalNorm = this.#placeScaled(["model.norm.weight"], 1 / logitsDivisor);
    const layers = Array.from({ length: layerCount }, (_, layer) => this.#placeLayer(layer));
    return { embedding, head, finalNorm, layers, byteLength: this.byteLength };
  }

  #placeLayer(layer: number): LayerWeights {
    const { qkNorm, qkvBias, outputBias } = this.#config;
    const prefix = `model.layers.${layer}.`;
    const names = (suffix: string, ...parts: string[]) => parts.map((part) => `${prefix}${part}_proj.${suffix}`);
    const projections = ["self_attn.q", "self_attn.k", "self_attn.v"];
    return {
      norms: {
        beforeAttention: this.#placeNorm(layer, "beforeAttention"),
        afterAttention: this.#placeNorm(layer, "afterAttention"),
        beforeMlp: this.#placeNorm(layer, "beforeMlp"),
        afterMlp: this.#placeNorm(layer, "afterMlp"),
      },
      qkv: this.#place(...names("weight", ...projections)),
      qkvBias: qkvBias ? this.#place(...names("bias", ...projections)) : null,
      qNorm: qkNorm ? this.#place(`${prefix}self_attn.q_norm.weight`) : null,
      kNorm: qkNorm ? this.#place(`${prefix}self_attn.k_norm.weight`) : null,
      output: this.#place(...names("weight", "self_attn.o")),
      outputBias: outputBias ? this.#place(...names("bias", "self_attn.o")) : null,
      gateUp: this.#place(...names("weight", "mlp.gate", "mlp.up")),
      down: this.#place(...names("weight", "mlp.down")),
    };
  }

  #placeNorm(layer: number, place: keyof LayerNorms): DeviceBuffer | null {
    return this.#config.layerNorms[place] === undefined ? null : this.#place(`${layerNorm(layer, place)}.weight`);
  }

  /** Puts these tensors one after the other into one buffer, as the rows of a fused matrix. */
  #place(...names: string[]): DeviceBuffer {
    return this.#placeScaled(names, 1);
  }

  #placeScaled(names: readonly string[], scale: number): DeviceBuffer {
    const tensors = names.map((name) => this.#source.info(name));
    const bytes = tensors.map(({ shape }) => 2 * shape.reduce((product, extent) => product * extent, 1));
    const total = bytes.reduce((sum, count) => sum + count, 0);
    const start = this.byteLength;
    this.byteLength = start + Math.ceil(total / alignment) * alignment;
    if (this.#memory === undefined) return new DeviceBuffer(names[0], 0, total);
    const buffer = this.#memory.slice(start, total, names[0]);
    let at = 0;
    tensors.forEach((tensor, i) => {
      this.uploads.push({ tensor, target: buffer.slice(at, bytes[i], names[i]), scale });
      at += bytes[i];
    });
    return buffer;
  }
}
