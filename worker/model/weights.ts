/**
 * The tensors of a model folder, checked as a whole: a missing tensor is an error, and so is an unknown one. Backends
 * ask for logical tensors (tensor-layout.ts).
 */
import { existsSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { z } from "zod";
import type { ModelConfig } from "./config.ts";
import { ModelError } from "./model-error.ts";
import { readSafetensorsHeader, readTensorBytes, type TensorInfo } from "./safetensors.ts";
import { type PairedRows, storedShapes, tensorLayout, unpairRows } from "./tensor-layout.ts";

const maxShards = 1_024;

/** Every tensor of the folder: `model.safetensors`, or the shards that `model.safetensors.index.json` names. */
function findTensors(folder: string): Map<string, TensorInfo> {
  const indexFile = join(folder, "model.safetensors.index.json");
  if (!existsSync(indexFile)) {
    const single = join(folder, "model.safetensors");
    if (!existsSync(single)) {
      const others = "other formats (*.bin, *.gguf) are not read";
      throw new ModelError(`${folder}: neither model.safetensors nor its index is there; ${others}`);
    }
    return readSafetensorsHeader(single);
  }
  const index = z.object({ weight_map: z.record(z.string(), z.string()) }).safeParse(readJson(indexFile));
  if (!index.success) throw new ModelError(`${indexFile}: "weight_map" must map tensor names to files`);
  const weightMap = new Map(Object.entries(index.data.weight_map));
  const shards = new Set(weightMap.values());
  if (shards.size > maxShards) throw new ModelError(`${indexFile}: more than ${maxShards} shards`);
  // The index is untrusted input: a shard must be the name of a file in this folder, not a path.
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

/** Tables that older files contain although they follow from the configuration. */
const derivedTensor = /\.rotary_emb\.inv_freq$/;

/** A logical tensor's bytes in its file; the rows of each head may be stored in another order. */
export interface StoredTensor extends TensorInfo {
  readonly pairedRows?: PairedRows;
}

export class Weights {
  /** The tensors, by logical name. */
  readonly #tensors = new Map<string, StoredTensor>();

  /** @throws ModelError for a missing or unknown tensor or a wrong shape. */
  constructor(folder: string, config: ModelConfig) {
    const found = findTensors(folder);
    const layout = tensorLayout(config);
    const expected = storedShapes(layout);
    for (const [name, shape] of expected) {
      const tensor = found.get(name);
      if (!tensor) throw new ModelError(`${folder}: tensor "${name}" is missing`);
      if (tensor.shape.join() !== shape.join()) {
        throw new ModelError(`${folder}: tensor "${name}" is [${tensor.shape}], expected [${shape}]`);
      }
    }
    // A tied head may still be stored; it is then a copy of the embedding and is not read.
    const allowed = config.tiedEmbeddings ? new Set(["lm_head.weight"]) : new Set();
    const isKnown = (name: string) => expected.has(name) || allowed.has(name) || derivedTensor.test(name);
    const leftover = [...found.keys()].find((name) => !isKnown(name));
    if (leftover) throw new ModelError(`${folder}: tensor "${leftover}" does not belong to ${config.architecture}`);
    for (const [name, { stored, firstRow, shape, pairedRows }] of layout) {
      const whole = found.get(stored);
      if (whole) this.#tensors.set(name, { ...rowsOf(whole, firstRow, shape), pairedRows });
    }
  }

  /** The files that hold the tensors. */
  get files(): readonly string[] {
    return [...new Set(this.#tensors.values().map((tensor) => tensor.file))];
  }

  /**
   * The logical tensor's type, shape, and bytes in its file. @throws ModelError when the architecture has no such
   * tensor.
   */
  info(name: string): StoredTensor {
    const tensor = this.#tensors.get(name);
    if (!tensor) throw new ModelError(`tensor "${name}" is missing`);
    return tensor;
  }

  /** The logical tensor widened to float32, row-major. @throws ModelError for a type that is no float. */
  float32(name: string): Float32Array {
    const { pairedRows, ...tensor } = this.info(name);
    const stored = Weights.widen(tensor);
    if (pairedRows === undefined) return stored;
    return unpairRows(stored, stored.length / tensor.shape[0], pairedRows, new Float32Array(stored.length));
  }

  static widen(tensor: TensorInfo): Float32Array {
    const bytes = readTensorBytes(tensor);
    if (tensor.dtype === "F32") return new Float32Array(bytes.buffer);
    if (tensor.dtype === "BF16") return widenBfloat16(new Uint16Array(bytes.buffer));
    if (tensor.dtype === "F16") return Float32Array.from(new Float16Array(bytes.buffer));
    throw new ModelError(`${tensor.file}: a weight has type ${tensor.dtype}; supported: F32, BF16, F16`);
  }
}

/** A range of a tensor's rows; rows stand one after the other. */
function rowsOf(tensor: TensorInfo, firstRow: number, shape: readonly number[]): TensorInfo {
  const rowBytes = (tensor.end - tensor.start) / tensor.shape[0];
  const start = tensor.start + firstRow * rowBytes;
  return { ...tensor, shape, start, end: start + shape[0] * rowBytes };
}

/** bfloat16 is the upper half of a float32. */
function widenBfloat16(halves: Uint16Array): Float32Array {
  const words = new Uint32Array(halves.length);
  for (let i = 0; i < halves.length; i++) words[i] = halves[i] << 16;
  return new Float32Array(words.buffer);
}
