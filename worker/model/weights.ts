/**
 * The tensors of a model folder, by their Hugging Face names, checked as a whole: what the architecture
 * needs and is missing is an error, and so is what is there and unknown.
 */
import { existsSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { z } from "zod";
import type { ModelConfig } from "./config.ts";
import { ModelError } from "./model-error.ts";
import { readSafetensorsHeader, readTensorBytes, type TensorInfo } from "./safetensors.ts";

const maxShards = 1_024;

/** Every tensor of the folder: `model.safetensors`, or the shards that `model.safetensors.index.json` names. */
function findTensors(folder: string): Map<string, TensorInfo> {
  const indexFile = join(folder, "model.safetensors.index.json");
  if (!existsSync(indexFile)) {
    const single = join(folder, "model.safetensors");
    if (!existsSync(single)) throw new ModelError(`${folder}: neither model.safetensors nor its index is there`);
    return readSafetensorsHeader(single);
  }
  const index = z.object({ weight_map: z.record(z.string(), z.string()) }).safeParse(readJson(indexFile));
  if (!index.success) throw new ModelError(`${indexFile}: "weight_map" must map tensor names to files`);
  const weightMap = new Map(Object.entries(index.data.weight_map));
  const shards = new Set(weightMap.values());
  if (shards.size > maxShards) throw new ModelError(`${indexFile}: more than ${maxShards} shards`);
  // The index comes from outside: a shard is a file of this folder, not a path.
  const stray = [...shards].find((shard) => shard !== basename(shard) || !existsSync(join(folder, shard)));
  if (stray !== undefined) throw new ModelError(`${indexFile}: shard "${stray}" is not a file of this folder`);
  const tensors = new Map<string, TensorInfo>();
  for (const shard of shards) {
    for (const [name, tensor] of readSafetensorsHeader(join(folder, shard))) {
      if (weightMap.get(name) !== shard) throw new ModelError(`${indexFile}: "${name}" is in ${shard}, not as indexed`);
      tensors.set(name, tensor);
    }
  }
  for (const name of weightMap.keys()) {
    if (!tensors.has(name)) throw new ModelError(`${indexFile}: "${name}" is in no shard`);
  }
  return tensors;
}

/** @throws ModelError when the file is not JSON. */
export function readJson(file: string): unknown {
  try {
    return JSON.parse(readFileSync(file, "utf8"));
  } catch (error) {
    throw new ModelError(`${file}: ${error instanceof SyntaxError ? "is not JSON" : "cannot be read"}`);
  }
}

/** Names and shapes ([out, in] as torch stores them) that a configuration needs. */
export function expectedTensors(config: ModelConfig): Map<string, readonly number[]> {
  const { hiddenSize, ffnSize, headDim } = config;
  const qSize = config.headCount * headDim;
  const kvSize = config.kvHeadCount * headDim;
  const expected = new Map<string, readonly number[]>([
    ["model.embed_tokens.weight", [config.vocabSize, hiddenSize]],
    ["model.norm.weight", [hiddenSize]],
  ]);
  if (!config.tiedEmbeddings) expected.set("lm_head.weight", [config.vocabSize, hiddenSize]);
  for (let layer = 0; layer < config.layerCount; layer++) {
    const prefix = `model.layers.${layer}.`;
    expected.set(`${prefix}input_layernorm.weight`, [hiddenSize]);
    expected.set(`${prefix}self_attn.q_proj.weight`, [qSize, hiddenSize]);
    expected.set(`${prefix}self_attn.k_proj.weight`, [kvSize, hiddenSize]);
    expected.set(`${prefix}self_attn.v_proj.weight`, [kvSize, hiddenSize]);
    expected.set(`${prefix}self_attn.o_proj.weight`, [hiddenSize, qSize]);
    expected.set(`${prefix}post_attention_layernorm.weight`, [hiddenSize]);
    expected.set(`${prefix}mlp.gate_proj.weight`, [ffnSize, hiddenSize]);
    expected.set(`${prefix}mlp.up_proj.weight`, [ffnSize, hiddenSize]);
    expected.set(`${prefix}mlp.down_proj.weight`, [hiddenSize, ffnSize]);
    if (!config.qkNorm) continue;
    expected.set(`${prefix}self_attn.q_norm.weight`, [headDim]);
    expected.set(`${prefix}self_attn.k_norm.weight`, [headDim]);
  }
  return expected;
}

export class Weights {
  readonly #tensors: Map<string, TensorInfo>;

  /** @throws ModelError for a gap, a leftover or a wrong shape. */
  constructor(folder: string, config: ModelConfig) {
    const tensors = findTensors(folder);
    const expected = expectedTensors(config);
    for (const [name, shape] of expected) {
      const tensor = tensors.get(name);
      if (!tensor) throw new ModelError(`${folder}: tensor "${name}" is missing`);
      if (tensor.shape.join() !== shape.join()) {
        throw new ModelError(`${folder}: tensor "${name}" is [${tensor.shape}], expected [${shape}]`);
      }
    }
    // A tied head may be stored all the same; it is then a copy of the embedding and not read.
    const allowed = config.tiedEmbeddings ? new Set(["lm_head.weight"]) : new Set();
    const leftover = [...tensors.keys()].find((name) => !expected.has(name) && !allowed.has(name));
    if (leftover) throw new ModelError(`${folder}: tensor "${leftover}" does not belong to ${config.architecture}`);
    this.#tensors = tensors;
  }

  /** The files that hold the tensors. */
  get files(): readonly string[] {
    return [...new Set(this.#tensors.values().map((tensor) => tensor.file))];
  }

  info(name: string): TensorInfo {
    const tensor = this.#tensors.get(name);
    if (!tensor) throw new ModelError(`tensor "${name}" is missing`);
    return tensor;
  }

  /** The tensor widened to float32, row-major as stored. @throws ModelError for a type that is no float. */
  float32(name: string): Float32Array {
    return Weights.widen(this.info(name));
  }

  static widen(tensor: TensorInfo): Float32Array {
    const bytes = readTensorBytes(tensor);
    if (tensor.dtype === "F32") return new Float32Array(bytes.buffer);
    if (tensor.dtype === "BF16") return widenBfloat16(new Uint16Array(bytes.buffer));
    if (tensor.dtype === "F16") return Float32Array.from(new Float16Array(bytes.buffer));
    throw new ModelError(`${tensor.file}: a weight has type ${tensor.dtype}; supported: F32, BF16, F16`);
  }
}

/** bfloat16 is the upper half of a float32. */
function widenBfloat16(halves: Uint16Array): Float32Array {
  const words = new Uint32Array(halves.length);
  for (let i = 0; i < halves.length; i++) words[i] = halves[i] << 16;
  return new Float32Array(words.buffer);
}
