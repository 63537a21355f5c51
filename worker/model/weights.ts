/**
 * The tensors of a model folder, checked as a whole: a missing tensor is an error, and so is an unknown one. Backends
 * ask for logical tensors (tensor-layout.ts).
 */
import { existsSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { z } from "zod";
import type { ModelConfig } from "./config.ts";
import { ModelError } from "./model-error.ts";
import type { Quantization } from "./quantization.ts";
import { readSafetensorsHeader, type TensorInfo } from "./safetensors.ts";
import {
  assertWeights,
  readScales,
  readStored,
  rowElements,
  type StoredTensor,
  type WeightScales,
} from "./stored-form.ts";
import { rowsOfStack, type Stack, storedShapes, tensorLayout, unpairRows } from "./tensor-layout.ts";

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

/** What belongs to 8-bit arithmetic of others: our activations and KV have more bits. */
const unusedScale = /\.(?:input_scale|[kv]_scale)$/;

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
    const scales = readAllScales(folder, found, [...expected.keys()], config.quantization);
    // A tied head may still be stored; it is then a copy of the embedding and is not read.
    const allowed = config.tiedEmbeddings ? new Set(["lm_head.weight"]) : new Set();
    const isKnown = (name: string) =>
      expected.has(name) ||
      allowed.has(name) ||
      scales.names.has(name) ||
      derivedTensor.test(name) ||
      (config.quantization !== undefined && unusedScale.test(name));
    const leftover = [...found.keys()].find((name) => !isKnown(name));
    if (leftover) throw new ModelError(`${folder}: tensor "${leftover}" does not belong to ${config.architecture}`);
    for (const [name, { stored, firstRow, shape, pairedRows, addsOne, stack }] of layout) {
      const whole = found.get(stored);
      if (!whole) continue;
      const tensor = stack
        ? expertOf(whole, shape, stack, found)
        : {
            ...rowsOf(whole, firstRow, shape),
            pairedRows,
            addsOne,
            ...scalesFrom(firstRow, scales.byWeight.get(stored)),
          };
      assertWeights(tensor);
      this.#tensors.set(name, tensor);
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

  /** The logical tensor widened to float32, row-major. */
  float32(name: string): Float32Array {
    const tensor = this.info(name);
    const stored = readStored(tensor);
    if (tensor.stack) return rowsOfStack(stored, tensor.shape, tensor.stack);
    if (tensor.addsOne) for (let i = 0; i < stored.length; i++) stored[i] += 1;
    if (tensor.pairedRows === undefined) return stored;
    return unpairRows(stored, rowElements(tensor.shape), tensor.pairedRows, new Float32Array(stored.length));
  }

  /** Logical tensors as `float32` gives them, one after the other. */
  joined(names: readonly string[]): Float32Array {
    const sizes = names.map((name) => this.info(name).shape.reduce((product, extent) => product * extent));
    const joined = new Float32Array(sizes.reduce((sum, size) => sum + size));
    let at = 0;
    for (const name of names) {
      const part = this.float32(name);
      joined.set(part, at);
      at += part.length;
    }
    return joined;
  }
}

interface AllScales {
  /** By the stored name of the weights that they belong to. */
  readonly byWeight: ReadonlyMap<string, WeightScales>;
  /** The scales' own tensors. */
  readonly names: ReadonlySet<string>;
}

/** The scales of every weight that is stored in 8 bits. @throws ModelError */
function readAllScales(
  folder: string,
  found: ReadonlyMap<string, TensorInfo>,
  stored: readonly string[],
  quantization: Quantization | undefined,
): AllScales {
  const byWeight = new Map<string, WeightScales>();
  const names = new Set<string>();
  if (quantization === undefined) return { byWeight, names };
  for (const name of stored) {
    const weight = found.get(name);
    // Tensors of all experts together have no scales: in 8 bits they are refused by their type.
    if (weight?.dtype !== quantization.dtype || weight.shape.length > 2) continue;
    const scaleName = name.replace(/weight$/, quantization.scaleSuffix);
    const scale = found.get(scaleName);
    if (!scale) throw new ModelError(`${folder}: tensor "${scaleName}" is missing`);
    byWeight.set(name, readScales(weight, scale, quantization, scaleName));
    names.add(scaleName);
  }
  return { byWeight, names };
}

function scalesFrom(firstRow: number, whole: WeightScales | undefined): Pick<StoredTensor, "scales"> {
  return whole === undefined ? {} : { scales: { ...whole, firstRow } };
}

/** The bytes of an expert of a tensor of all experts, which are as many for each. */
function expertOf(
  whole: TensorInfo,
  shape: readonly number[],
  stack: Stack,
  found: ReadonlyMap<string, TensorInfo>,
): StoredTensor {
  const bytesOf = (tensor: TensorInfo): TensorInfo => {
    const bytes = (tensor.end - tensor.start) / stack.experts;
    const start = tensor.start + stack.expert * bytes;
    return { ...tensor, start, end: start + bytes };
  };
  const scales = stack.mxfp4Scales === undefined ? undefined : found.get(stack.mxfp4Scales);
  return { ...bytesOf(whole), shape, stack, ...(scales && { mxfp4Scales: bytesOf(scales) }) };
}

/** A range of a tensor's rows; rows stand one after the other. */
function rowsOf(tensor: TensorInfo, firstRow: number, shape: readonly number[]): TensorInfo {
  const rowBytes = (tensor.end - tensor.start) / tensor.shape[0];
  const start = tensor.start + firstRow * rowBytes;
  return { ...tensor, shape, start, end: start + shape[0] * rowBytes };
}
