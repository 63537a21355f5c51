/** Models of true shapes with random weights, made in device memory: what benchmarks run. */
import { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { ComputeDevice } from "../../worker/backend/cuda/device/device.ts";
import type { KvElement } from "../../worker/backend/cuda/pool.ts";
import { roundToBfloat16 } from "../../worker/backend/cuda/weights/tensor-reader.ts";
import type { TensorReader, TensorUpload, WeightInfo } from "../../worker/backend/cuda/weights/weights.ts";
import { type ModelConfig, parseModelConfig } from "../../worker/model/config.ts";
import type { TensorInfo } from "../../worker/model/safetensors.ts";
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
} as const;

export type ModelName = keyof typeof rawConfigs;
export const modelNames = Object.keys(rawConfigs) as ModelName[];

export function configOf(name: ModelName): ModelConfig {
  return parseModelConfig(rawConfigs[name], name);
}

/** The tensors of a model that lies nowhere: types and shapes alone. */
export function weightsOf(config: ModelConfig): WeightInfo {
  const layout = tensorLayout(config);
  return {
    info(name): TensorInfo {
      const place = layout.get(name);
      if (place === undefined) throw new Error(`no tensor "${name}"`);
      const bytes = 2 * place.shape.reduce((product, extent) => product * extent, 1);
      return { file: name, dtype: "BF16", shape: place.shape, start: 0, end: bytes };
    },
  };
}

/** A stretch of normal numbers, copied over and over; norms are 1. */
export class RandomReader implements TensorReader {
  async upload(device: ComputeDevice, uploads: readonly TensorUpload[]): Promise<void> {
    const count = (32 << 20) - 4_099;
    const pattern = new Uint16Array(device.allocateHost("random weights", count * 2).buffer);
    const ones = new Uint16Array(device.allocateHost("ones", 65_536 * 2).buffer).fill(0x3f80);
    roundToBfloat16(normalNumbers(count, 0.02), 1, pattern);
    for (const { tensor, target } of uploads) {
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

export function normalNumbers(count: number, deviation: number): Float32Array {
  const numbers = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    numbers[i] = deviation * Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
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
}

export function openRandomModel(device: ComputeDevice, config: ModelConfig, options: BenchBackendOptions) {
  const shared = { blockTokens: 16, maxLogitRows: 64, reader: new RandomReader() };
  return CudaBackend.open(device, { config, weights: weightsOf(config) }, { ...shared, ...options });
}
