/**
 * Weights on the device, in one allocation: bfloat16, or matrices of e4m3 as they are stored (e4m3.ts). q, k and v form one matrix, and gate and up another, so that
 * a layer needs four matrix products.
 */
import type { ModelConfig } from "../../../model/config.ts";
import type { Experts } from "../../../model/experts.ts";
import type { LayerNorms } from "../../../model/family.ts";
import type { StoredTensor } from "../../../model/stored-form.ts";
import { layerNorm } from "../../../model/tensor-layout.ts";
import { type ComputeDevice, DeviceBuffer } from "../device/device.ts";
import { matrixScales, scalesKind } from "./e4m3.ts";
import { type ExpertMatrix, type ExpertWeights, greatestDeviceScale, wholeExpert, wholeScales } from "./experts.ts";
import type { Matrix } from "./matrix.ts";

export interface LayerWeights {
  /** [hidden] before attention and MLP, and over what they add to the residual stream; null: there is no such norm. */
  readonly norms: { readonly [place in keyof LayerNorms]-?: DeviceBuffer | null };
  /** [(heads + 2 * kvHeads) * headDim, hidden], and the bias that is added to its output */
  readonly qkv: Matrix;
  readonly qkvBias: DeviceBuffer | null;
  /** [headDim]; of a model with norms over all heads, [heads * headDim] and [kvHeads * headDim] */
  readonly qNorm: DeviceBuffer | null;
  readonly kNorm: DeviceBuffer | null;
  /** [heads], where each head has a sink */
  readonly sinks: DeviceBuffer | null;
  /** [hidden, heads * headDim] */
  readonly output: Matrix;
  /** [hidden] */
  readonly outputBias: DeviceBuffer | null;
  readonly mlp: Mlp;
}

export interface DenseMlp {
  /** [2 * ffn, hidden] */
  readonly gateUp: Matrix;
  /** [hidden, ffn] */
  readonly down: Matrix;
}

export type Mlp = DenseMlp | ExpertWeights;

export interface DeviceWeights {
  /** [vocab, hidden]; `head` is the same memory when the model ties them. */
  readonly embedding: DeviceBuffer;
  readonly head: DeviceBuffer;
  /** [hidden] */
  readonly finalNorm: DeviceBuffer;
  readonly layers: readonly LayerWeights[];
  /** Inputs of the widest matrix of e4m3; 0: there is none. */
  readonly e4m3Width: number;
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
  /** The bytes are copied as they are stored. */
  readonly asStored?: boolean;
  /** Greater bytes are refused. */
  readonly greatestByte?: number;
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
  { reader, keepsE4m3 }: { readonly reader: TensorReader; readonly keepsE4m3: boolean },
): Promise<DeviceWeights> {
  const size = new WeightPlacer(config, source, keepsE4m3, undefined);
  size.placeAll();
  const memory = device.allocate("weights", size.byteLength);
  const placer = new WeightPlacer(config, source, keepsE4m3, memory);
  const weights = placer.placeAll();
  await reader.upload(device, placer.uploads);
  for (const { target, values } of placer.scales) {
    const host = device.allocateHost(target.name, values.byteLength);
    host.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
    device.copyIn(target, host);
  }
  return weights;
}

/** Arenas align each buffer to this many bytes. */
const alignment = 256;

/** Walks the model's tensors in a fixed order; without an arena it only adds up their sizes. */
class WeightPlacer {
  readonly uploads: TensorUpload[] = [];
  readonly scales: { readonly target: DeviceBuffer; readonly values: Float32Array }[] = [];
  byteLength = 0;
  #e4m3Width = 0;
  readonly #config: ModelConfig;
  readonly #source: WeightInfo;
  readonly #keepsE4m3: boolean;
  readonly #memory: DeviceBuffer | undefined;

  constructor(config: ModelConfig, source: WeightInfo, keepsE4m3: boolean, memory: DeviceBuffer | undefined) {
    this.#config = config;
    this.#source = source;
    this.#keepsE4m3 = keepsE4m3;
    this.#memory = memory;
  }

  placeAll(): DeviceWeights {
    const { tiedEmbeddings, layerCount, logitsDivisor } = this.#config;
    const embedding = this.#place("model.embed_tokens.weight");
    const head = tiedEmbeddings ? embedding : this.#place("lm_head.weight");
    // Logits are linear in the last norm's weights, so the model's divisor of logits is folded into those weights.
    const finalNorm = this.#placeScaled(["model.norm.weight"], 1 / logitsDivisor);
    const layers = Array.from({ length: layerCount }, (_, layer) => this.#placeLayer(layer));
    return { embedding, head, finalNorm, layers, e4m3Width: this.#e4m3Width, byteLength: this.byteLength };
  }

  #placeLayer(layer: number): LayerWeights {
    const { qkNorm, qkvBias, outputBias, sinks } = this.#config;
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
      qkv: this.#placeMatrix(...names("weight", ...projections)),
      qkvBias: qkvBias ? this.#place(...names("bias", ...projections)) : null,
      qNorm: qkNorm ? this.#place(`${prefix}self_attn.q_norm.weight`) : null,
      kNorm: qkNorm ? this.#place(`${prefix}self_attn.k_norm.weight`) : null,
      sinks: sinks ? this.#place(`${prefix}self_attn.sinks`) : null,
      output: this.#placeMatrix(...names("weight", "self_attn.o")),
      outputBias: outputBias ? this.#place(...names("bias", "self_attn.o")) : null,
      mlp: this.#config.experts?.layers[layer]
        ? this.#placeExperts(this.#config.experts, `${prefix}mlp.`)
        : {
            gateUp: this.#placeMatrix(...names("weight", "mlp.gate", "mlp.up")),
            down: this.#placeMatrix(...names("weight", "mlp.down")),
          },
    };
  }

  #placeExperts({ count, ffnSize, family }: Experts, prefix: string): ExpertWeights {
    const of = (suffix: string, ...projections: string[]) =>
      Array.from({ length: count }, (_, expert) =>
        projections.map((projection) => `${prefix}experts.${expert}.${projection}_proj.${suffix}`),
      ).flat();
    const router = this.#place(`${prefix}router.weight`);
    const biasOf = (projection: string) =>
      family.biases ? this.#placeTensors(this.#wholes(of("bias", projection)), `${prefix}${projection} bias`) : null;
    const isAlternating = "alternating" in family.stored && family.stored.alternating;
    const { hiddenSize } = this.#config;
    return {
      router: { values: router, outWidth: count, inWidth: hiddenSize },
      routerBias: family.biases ? this.#place(`${prefix}router.bias`) : null,
      gateUp: this.#placeExpertMatrix(of("weight", "gate", "up"), of("weight", "gate"), count),
      gateUpBias: biasOf("gate"),
      down: this.#placeExpertMatrix(of("weight", "down"), of("weight", "down"), count),
      downBias: biasOf("down"),
      ...(isAlternating ? { gateStep: 2, upOffset: 1 } : { gateStep: 1, upOffset: ffnSize }),
    };
  }

  /**
   * @param names of each expert's tensors, where each is stored by itself
   * @param firstNames the first of each expert, where all of an expert's rows stand together
   */
  #placeExpertMatrix(names: readonly string[], firstNames: readonly string[], experts: number): ExpertMatrix {
    if (this.#source.info(names[0]).stack === undefined) {
      const matrix = this.#placeMatrix(...names);
      const form = matrix.scales === undefined ? "b16" : "e4m3";
      return { ...matrix, outWidth: matrix.outWidth / experts, form, blockScales: null };
    }
    const tensors = firstNames.map((name) => this.#source.info(name));
    const wholes = tensors.map(wholeExpert);
    const [outWidth, inWidth = 1] = wholes[0].shape;
    const isMx4 = tensors[0].mxfp4Scales !== undefined;
    const values = this.#placeTensors(wholes, names[0], { asStored: isMx4 });
    if (!isMx4) return { values, outWidth, inWidth, form: "b16", blockScales: null };
    const greatest = { asStored: true, greatestByte: greatestDeviceScale } as const;
    const blockScales = this.#placeTensors(tensors.map(wholeScales), `scales of ${names[0]}`, greatest);
    return { values, outWidth, inWidth, form: "mx4", blockScales };
  }

  #wholes(names: readonly string[]): StoredTensor[] {
    return names.map((name) => wholeExpert(this.#source.info(name)));
  }

  #placeNorm(layer: number, place: keyof LayerNorms): DeviceBuffer | null {
    return this.#config.layerNorms[place] === undefined ? null : this.#place(`${layerNorm(layer, place)}.weight`);
  }

  /** Puts these tensors one after the other into one buffer, as the rows of a fused matrix. */
  #place(...names: string[]): DeviceBuffer {
    return this.#placeScaled(names, 1);
  }

  /** The rows of a fused matrix, in 8 bits where all of them can stay so. */
  #placeMatrix(...names: string[]): Matrix {
    const tensors = names.map((name) => this.#source.info(name));
    const [, inWidth = 1] = tensors[0].shape;
    const outWidth = tensors.reduce((sum, { shape }) => sum + shape[0], 0);
    const kind = this.#keepsE4m3 ? scalesKind(tensors) : undefined;
    if (kind === undefined) return { values: this.#place(...names), outWidth, inWidth };
    const values = this.#placeTensors(tensors, names[0], { asStored: true });
    const numbers = matrixScales(tensors, kind);
    const target = this.#take(`scales of ${names[0]}`, numbers.byteLength);
    if (this.#memory !== undefined) this.scales.push({ target, values: numbers });
    this.#e4m3Width = Math.max(this.#e4m3Width, inWidth);
    return { values, outWidth, inWidth, scales: { kind, values: target } };
  }

  #placeScaled(names: readonly string[], scale: number): DeviceBuffer {
    const tensors = names.map((name) => this.#source.info(name));
    return this.#placeTensors(tensors, names[0], { scale });
  }

  #placeTensors(
    tensors: readonly StoredTensor[],
    name: string,
    { scale = 1, ...how }: Partial<Omit<TensorUpload, "tensor" | "target">> = {},
  ): DeviceBuffer {
    const bytes = tensors.map(({ shape, start, end }) =>
      how.asStored ? end - start : 2 * shape.reduce((product, extent) => product * extent, 1),
    );
    const buffer = this.#take(
      name,
      bytes.reduce((sum, count) => sum + count, 0),
    );
    if (this.#memory === undefined) return buffer;
    let at = 0;
    tensors.forEach((tensor, i) => {
      this.uploads.push({ tensor, target: buffer.slice(at, bytes[i], name), scale, ...how });
      at += bytes[i];
    });
    return buffer;
  }

  #take(name: string, bytes: number): DeviceBuffer {
    const start = this.byteLength;
    this.byteLength = start + Math.ceil(bytes / alignment) * alignment;
    return this.#memory === undefined ? new DeviceBuffer(name, 0, bytes) : this.#memory.slice(start, bytes, name);
  }
}
