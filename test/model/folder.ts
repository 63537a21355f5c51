/** Writes small model folders for tests: a real configuration and random weights, whole or spoiled. */
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseModelConfig } from "../../worker/model/config.ts";
import type { Dtype } from "../../worker/model/safetensors.ts";
import { storedShapes, tensorLayout } from "../../worker/model/tensor-layout.ts";
import { Random } from "../native/random.ts";
import { testSeed } from "../support/seed.ts";

export const tinyConfig = {
  architectures: ["Qwen3ForCausalLM"],
  num_hidden_layers: 2,
  hidden_size: 64,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 16,
  intermediate_size: 96,
  vocab_size: 128,
  rms_norm_eps: 1e-6,
  tie_word_embeddings: true,
  max_position_embeddings: 512,
  eos_token_id: 2,
  rope_parameters: { rope_theta: 10000, rope_type: "default" },
};

export function temporaryFolder(): string {
  return mkdtempSync(join(tmpdir(), "spangate-model-"));
}

export interface TestTensor {
  readonly shape: readonly number[];
  readonly data: Float32Array | Int8Array | Uint8Array;
  /** F32 when it is left out. */
  readonly dtype?: Dtype;
}

/** A safetensors file of these tensors. */
export function safetensorsBytes(tensors: ReadonlyMap<string, TestTensor>): Uint8Array {
  const header: Record<string, unknown> = {};
  let at = 0;
  for (const [name, { shape, data, dtype = "F32" }] of tensors) {
    header[name] = { dtype, shape, data_offsets: [at, at + data.byteLength] };
    at += data.byteLength;
  }
  const headerBytes = new TextEncoder().encode(JSON.stringify(header));
  const length = new Uint8Array(BigUint64Array.of(BigInt(headerBytes.length)).buffer);
  const parts = [length, headerBytes, ...[...tensors.values()].map(({ data }) => new Uint8Array(data.buffer))];
  return Buffer.concat(parts);
}

/** Weights drawn from the test's seed (normal, deviation 0.05; norms around 1): the same in every call with a configuration. */
export function randomTensors(config: Record<string, unknown>): Map<string, { shape: number[]; data: Float32Array }> {
  const tensors = new Map<string, { shape: number[]; data: Float32Array }>();
  const random = new Random(testSeed());
  for (const [name, shape] of storedShapes(tensorLayout(parseModelConfig(config, "config.json")))) {
    const count = shape.reduce((product, extent) => product * extent, 1);
    const offset = name.includes("norm") ? 1 : 0;
    tensors.set(name, {
      shape: [...shape],
      data: Float32Array.from({ length: count }, () => offset + random.normal() * 0.05),
    });
  }
  return tensors;
}

export function writeModelFolder(
  config: Record<string, unknown>,
  tensors: ReadonlyMap<string, TestTensor> = randomTensors(config),
): string {
  const folder = temporaryFolder();
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
  writeFileSync(join(folder, "model.safetensors"), safetensorsBytes(tensors));
  return folder;
}
