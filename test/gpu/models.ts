/** Models of true shapes with random weights, made in device memory: what benchmarks run. */
import type { SparseOptions } from "../../worker/backend/backend.ts";
import { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { ComputeDevice, MatmulScales } from "../../worker/backend/cuda/device/device.ts";
import type { KvElement } from "../../worker/backend/cuda/pool.ts";
import { roundToBfloat16 } from "../../worker/backend/cuda/weights/tensor-reader.ts";
import type { TensorReader, TensorUpload, WeightInfo } from "../../worker/backend/cuda/weights/weights.ts";
import { type ModelConfig, parseModelConfig } from "../../worker/model/config.ts";
import type { StoredTensor, WeightScales } from "../../worker/model/stored-form.ts";
import { tensorLayout } from "../../worker/model/tensor-layout.ts";

/** As their config.json on Hugging Face, with a context that takes 32 documents. */
export const rawConfigs = {
  "Qwen3-8B": {
    architectures: ["Qwen3ForCausalLM"],
    num_hidden_layers: 36,
    hidden_size: 4_096,
    num_attention_heads: 32,
    num_key_value_heads: 8,
    head_dim: 128,
    intermediate_size: 12_288,
    vocab_size: 151_936,
    rms_norm_eps: 1e-6,
    rope_theta: 1_000_000,
    max_position_embeddings: 131_072,
    tie_word_embeddings: false,
  },
  "Llama-3.1-8B": {
    architectures: ["LlamaForCausalLM"],
    num_hidden_layers: 32,
    hidden_size: 4_096,
    num_attention_heads: 32,
    num_key_value_heads: 8,
    head_dim: 128,
    intermediate_size: 14_336,
    vocab_size: 128_256,
    rms_norm_eps: 1e-5,
    rope_theta: 500_000,
    max_position_embeddings: 131_072,
    tie_word_embeddings: false,
  },
  "Qwen3-30B-A3B": {
    architectures: ["Qwen3MoeForCausalLM"],
    num_hidden_layers: 48,
    hidden_size: 2_048,
    num_attention_heads: 32,
    num_key_value_heads: 4,
    head_dim: 128,
    intermediate_size: 6_144,
    moe_intermediate_size: 768,
    num_experts: 128,
    num_experts_per_tok: 8,
    norm_topk_prob: true,
    vocab_size: 151_936,
    rms_norm_eps: 1e-6,
    rope_theta: 1_000_000,
    max_position_embeddings: 40_960,
    tie_word_embeddings: false,
  },
  "gpt-oss-20b": {
    architectures: ["GptOssForCausalLM"],
    num_hidden_layers: 24,
    hidden_size: 2_880,
    num_attention_heads: 64,
    num_key_value_heads: 8,
    head_dim: 64,
    intermediate_size: 2_880,
    num_local_experts: 32,
    num_experts_per_tok: 4,
    attention_bias: true,
    vocab_size: 201_088,
    rms_norm_eps: 1e-5,
    rope_theta: 150_000,
    rope_scaling: {
      rope_type: "yarn",
      factor: 32,
      beta_fast: 32,
      beta_slow: 1,
      truncate: false,
      original_max_position_embeddings: 4_096,
    },
    sliding_window: 128,
    max_position_embeddings: 131_072,
    tie_word_embeddings: false,
    quantization_config: { quant_method: "mxfp4" },
  },
  "gemma-3-12b": {
    architectures: ["Gemma3ForCausalLM"],
    num_hidden_layers: 48,
    hidden_size: 3_840,
    num_attention_heads: 16,
    num_key_value_heads: 8,
    head_dim: 256,
    intermediate_size: 15_360,
    vocab_size: 262_208,
    rms_norm_eps: 1e-6,
    hidden_activation: "gelu_pytorch_tanh",
    query_pre_attn_scalar: 256,
    rope_theta: 1_000_000,
    rope_local_base_freq: 10_000,
    sliding_window: 1_024,
    max_position_embeddings: 131_072,
  },
} as const;

export type ModelName = keyof typeof rawConfigs;
export const modelNames = Object.keys(rawConfigs) as ModelName[];

export function configOf(name: ModelName): ModelConfig {
  return parseModelConfig(rawConfigs[name], name);
}

/**
 * The tensors of a model that lies nowhere: types and shapes alone.
 * @param e4m3 what shares a scale, where the layers' matrices are in 8-bit floats
 */
export function weightsOf(config: ModelConfig, e4m3?: MatmulScales): WeightInfo {
  const layout = tensorLayout(config);
  return {
    info(name): StoredTensor {
      const place = layout.get(name);
      if (place === undefined) throw new Error(`no tensor "${name}"`);
      const { shape, stack } = place;
      const count = shape.reduce((product, extent) => product * extent, 1);
      const plain = { file: name, shape, start: 0, ...(stack && { stack }) };
      if (stack?.mxfp4Scales !== undefined) {
        const numbers = stack.rows * (stack.columns ?? 1);
        const mxfp4Scales = { file: name, dtype: "U8", shape: [], start: 0, end: numbers / 32 } as const;
        return { ...plain, dtype: "U8", end: numbers / 2, mxfp4Scales };
      }
      if (e4m3 === undefined || !/_proj\.weight$/.test(name)) return { ...plain, dtype: "BF16", end: 2 * count };
      return { ...plain, dtype: "F8_E4M3", end: count, scales: randomScales(shape, e4m3) };
    },
  };
}

/** e4m3's numbers are 100 on average here, weights are to be 0.02. */
function randomScales([rows, width = 1]: readonly number[], kind: MatmulScales): WeightScales {
  const [rowsPerScale, columnsPerScale] = kind === "blocks" ? [128, 128] : [1, width];
  const scalesPerRow = Math.ceil(width / columnsPerScale);
  const count = Math.ceil(rows / rowsPerScale) * scalesPerRow;
  const values = Float32Array.from({ length: count }, () => 1e-4 + 2e-4 * Math.random());
  return { values, rowsPerScale, columnsPerScale, scalesPerRow, firstRow: 0 };
}

/** A stretch of normal numbers, copied over and over, and so are bytes; norms are 1. One reader gives the same twice. */
export class RandomReader implements TensorReader {
  #numbers: Uint16Array | undefined;
  #bytes: Uint8Array | undefined;

  async upload(device: ComputeDevice, uploads: readonly TensorUpload[]): Promise<void> {
    this.#numbers ??= roundedNormals((32 << 20) - 4_099);
    const pattern = new Uint16Array(device.allocateHost("random weights", this.#numbers.byteLength).buffer);
    pattern.set(this.#numbers);
    const ones = new Uint16Array(device.allocateHost("ones", 65_536 * 2).buffer).fill(0x3f80);
    this.#bytes ??= randomBytes(16 << 20);
    const bytes = device.allocateHost("random bytes", this.#bytes.length);
    bytes.set(this.#bytes);
    const blockScales = device.allocateHost("scales of blocks", 1 << 20).fill(blockScale);
    for (const { tensor, target, asStored, greatestByte } of uploads) {
      if (greatestByte !== undefined) {
        for (let at = 0; at < target.byteLength; at += blockScales.length) {
          const length = Math.min(blockScales.length, target.byteLength - at);
          device.copyIn(target.slice(at, length), blockScales.subarray(0, length));
        }
        continue;
      }
      if (asStored) {
        for (let at = 0; at < target.byteLength; at += bytes.length) {
          const length = Math.min(bytes.length, target.byteLength - at);
          device.copyIn(target.slice(at, length), bytes.subarray(0, length));
        }
        continue;
      }
      const isNorm = /norm\.weight$/.test(tensor.file);
      const total = target.byteLength / 2;
      const source = isNorm ? ones : pattern;
      for (let at = 0; at < total; at += source.length) {
        const length = Math.min(source.length, total - at);
        device.copyIn(target.slice(at * 2, length * 2), source.subarray(0, length));
      }
    }
    await device.settled();
  }
}

function roundedNormals(count: number): Uint16Array {
  const numbers = new Uint16Array(count);
  roundToBfloat16(normalNumbers(count, 0.02), 1, numbers);
  return numbers;
}

/** A power of two by which numbers of 4 bits become weights of 0.02. */
const blockScale = 120;

/** Finite numbers of 8 bits. */
const randomBytes = (count: number): Uint8Array =>
  Uint8Array.from({ length: count }, (_, i) => Math.floor(Math.random() * 127) + 128 * (i & 1));

/** @param uniform draws from [0, 1) */
export function normalNumbers(count: number, deviation: number, uniform = Math.random): Float32Array {
  const numbers = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    numbers[i] = deviation * Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  }
  return numbers;
}

export interface BenchBackendOptions {
  readonly kvBytes: number;
  readonly maxRows: number;
  readonly graphs?: boolean;
  readonly packing?: boolean;
  readonly hostKvBytes?: number;
  readonly kvElement?: KvElement;
  readonly sparse?: SparseOptions;
  /** What shares a scale, where the layers' matrices are in 8-bit floats. */
  readonly e4m3?: MatmulScales | undefined;
}

export function openRandomModel(device: ComputeDevice, config: ModelConfig, { e4m3, ...options }: BenchBackendOptions) {
  const shared = { blockTokens: 16, maxLogitRows: 64, reader: new RandomReader(), keepsE4m3: e4m3 !== undefined };
  return CudaBackend.open(device, { config, weights: weightsOf(config, e4m3) }, { ...shared, ...options });
}
