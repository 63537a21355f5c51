/**
 * A model folder of a true shape with random weights, in shards as Hugging Face has them, for a machine that can fetch
 * none: `bun test/gpu/random-model.ts Qwen3-8B FOLDER`. Tokenizer and template are the demo model's; its vocabulary is
 * filled up to the shape's with words that answers may have and no text is made into. A shape has the same weights each time.
 */
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { join } from "node:path";
import { demoModelFolder } from "../../gateway/cli/demo-corpora.ts";
import { roundToBfloat16 } from "../../worker/backend/cuda/weights/tensor-reader.ts";
import { parseModelConfig } from "../../worker/model/config.ts";
import { storedShapes, tensorLayout } from "../../worker/model/tensor-layout.ts";
import { Random } from "../native/random.ts";
import { type ModelName, modelNames, normalNumbers, rawConfigs } from "./models.ts";

interface Tensor {
  readonly name: string;
  readonly shape: readonly number[];
  readonly byteLength: number;
}

export interface RandomModelOptions {
  /** As config.json has it. */
  readonly config: Readonly<Record<string, unknown>>;
  /** Bytes of tensors in a shard, unless one alone has more. */
  readonly shardBytes?: number;
}

const defaultShardBytes = 2 ** 31;
const patternElements = (4 << 20) - 4_099;
const seed = 1;

/** Makes the folder. @returns bytes of all tensors */
export async function writeRandomModel(folder: string, { config, shardBytes }: RandomModelOptions): Promise<number> {
  mkdirSync(folder, { recursive: true });
  const { vocabSize, ...parsed } = parseModelConfig(config, folder);
  const shapes = storedShapes(tensorLayout({ vocabSize, ...parsed }));
  const tensors = [...shapes].map(([name, shape]) => {
    return { name, shape, byteLength: 2 * shape.reduce((product, extent) => product * extent, 1) };
  });
  writeText(folder, config, vocabSize);
  const shards = shardsOf(tensors, shardBytes ?? defaultShardBytes);
  const nameOf = (index: number) => `model-${fiveDigits(index + 1)}-of-${fiveDigits(shards.length)}.safetensors`;
  const byteCount = tensors.reduce((sum, { byteLength }) => sum + byteLength, 0);
  const index = {
    metadata: { total_size: byteCount },
    weight_map: Object.fromEntries(shards.flatMap((shard, at) => shard.map(({ name }) => [name, nameOf(at)]))),
  };
  writeFileSync(join(folder, "model.safetensors.index.json"), JSON.stringify(index));
  const normals = new Uint16Array(patternElements);
  const random = new Random(seed);
  const uniform = (): number => random.next();
  roundToBfloat16(normalNumbers(patternElements, 0.02, uniform), 1, normals);
  await Promise.all(shards.map((shard, at) => writeShard(join(folder, nameOf(at)), shard, normals)));
  return byteCount;
}

const fiveDigits = (number: number): string => String(number).padStart(5, "0");

function shardsOf(tensors: readonly Tensor[], shardBytes: number): Tensor[][] {
  const shards: Tensor[][] = [];
  let open = 0;
  for (const tensor of tensors) {
    const last = shards.at(-1);
    const fits = open + tensor.byteLength <= shardBytes;
    if (last !== undefined && fits) last.push(tensor);
    else shards.push([tensor]);
    open = fits ? open + tensor.byteLength : tensor.byteLength;
  }
  return shards;
}

/** Norms are 1; all else is a stretch of normal numbers, over and over. */
async function writeShard(path: string, tensors: readonly Tensor[], normals: Uint16Array): Promise<void> {
  let end = 0;
  const header: Record<string, object> = {};
  for (const { name, shape, byteLength } of tensors) {
    header[name] = { dtype: "BF16", shape, data_offsets: [end, end + byteLength] };
    end += byteLength;
  }
  const text = JSON.stringify(header);
  const headerBytes = Buffer.from(text.padEnd(8 * Math.ceil(text.length / 8)));
  const lengthBytes = Buffer.alloc(8);
  lengthBytes.writeBigUInt64LE(BigInt(headerBytes.length));
  const ones = new Uint16Array(65_536).fill(0x3f80);
  const file = await open(path, "w");
  try {
    await writeAll(file, Buffer.concat([lengthBytes, headerBytes]));
    let at = 0;
    for (const { name, byteLength } of tensors) {
      const source = name.endsWith("norm.weight") ? ones : normals;
      for (let left = byteLength / 2; left > 0; ) {
        if (at >= source.length) at = 0;
        const part = source.subarray(at, at + left);
        await writeAll(file, new Uint8Array(part.buffer, part.byteOffset, part.byteLength));
        left -= part.length;
        at += part.length;
      }
    }
  } finally {
    await file.close();
  }
}

async function writeAll(file: FileHandle, bytes: Uint8Array): Promise<void> {
  for (let done = 0; done < bytes.length; ) done += (await file.write(bytes, done, bytes.length - done)).bytesWritten;
}

function writeText(folder: string, config: Readonly<Record<string, unknown>>, vocabSize: number): void {
  const textOf = (name: string): string => readFileSync(join(demoModelFolder, name), "utf8");
  const tokenizer = JSON.parse(textOf("tokenizer.json"));
  const { vocab } = tokenizer.model;
  const ids = [...Object.values<number>(vocab), ...tokenizer.added_tokens.map(({ id }: { id: number }) => id)];
  const known = Math.max(...ids) + 1;
  if (vocabSize < known) throw new Error(`a vocabulary of ${vocabSize} is below the tokenizer's ${known}`);
  // "Ġ" is a space in a byte-level vocabulary; no merge leads to these, so text never becomes one.
  for (let id = known; id < vocabSize; id++) vocab[`Ġw${id}`] = id;
  writeFileSync(join(folder, "tokenizer.json"), JSON.stringify(tokenizer));
  writeFileSync(join(folder, "tokenizer_config.json"), textOf("tokenizer_config.json"));
  writeFileSync(join(folder, "generation_config.json"), textOf("generation_config.json"));
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
}

if (import.meta.main) {
  const [name, folder] = process.argv.slice(2);
  const isKnown = (given: string | undefined): given is ModelName => modelNames.some((known) => known === given);
  if (!isKnown(name) || folder === undefined) throw new Error(`needed: one of ${modelNames.join(", ")}, and a folder`);
  const startMs = performance.now();
  const byteCount = await writeRandomModel(folder, { config: rawConfigs[name] });
  const seconds = (performance.now() - startMs) / 1_000;
  console.log(`${name}: ${byteCount} bytes in ${folder} after ${seconds.toFixed(1)} s`);
}
