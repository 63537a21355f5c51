/**
 * A sentence-embedding model in ONNX, as sentence-transformers exports it: model.onnx (or onnx/model.onnx),
 * config.json, 1_Pooling/config.json. Runs on the CPU by onnxruntime.
 */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { InferenceSession, Tensor } from "onnxruntime-node";
import { z } from "zod";
import { type Embedder, normalise } from "../contract/embedding.ts";
import { ModelError } from "../model/model-error.ts";
import { modelNameOf } from "../model/model-folder.ts";
import { readJson } from "../model/weights.ts";

/** The most tokens of one run, padding included: the memory that a run takes grows with them. */
const tokensPerRun = 8_192;
const maxModelTokens = 8_192;
const knownInputs = ["input_ids", "attention_mask", "token_type_ids"];

const size = z.number().int().min(1);
const configSchema = z.looseObject({
  vocab_size: size.max(1_000_000),
  max_position_embeddings: size.nullish(),
  pad_token_id: z.number().int().min(0).nullish(),
});
const sentenceSchema = z.looseObject({ max_seq_length: size.nullish() });
const poolingSchema = z.looseObject({
  pooling_mode_cls_token: z.boolean().default(false),
  pooling_mode_mean_tokens: z.boolean().default(false),
  pooling_mode_max_tokens: z.boolean().default(false),
  pooling_mode_lasttoken: z.boolean().default(false),
});

type Pooling = "cls" | "mean" | "last";

/** @throws ModelError naming the file and what is wrong with it */
export async function openOnnxEmbedder(folder: string, threadCount: number): Promise<Embedder> {
  const file = [join(folder, "model.onnx"), join(folder, "onnx", "model.onnx")].find((path) => existsSync(path));
  if (file === undefined) throw new ModelError(`${folder}: no model.onnx there`);
  const config = readChecked(join(folder, "config.json"), configSchema);
  if (config === undefined) throw new ModelError(`${folder}: no config.json there`);
  const pooling = poolingOf(folder);
  const session = await openSession(file, threadCount);
  const strange = session.inputNames.find((name) => !knownInputs.includes(name));
  if (strange !== undefined) throw new ModelError(`${file}: takes an input "${strange}", which is not supported`);
  const runner = new Runner(session, pooling, config.pad_token_id ?? 0);
  const [probe] = await runner.run([Int32Array.of(Math.min(1, config.vocab_size - 1))]);
  const sequenceLimit = readChecked(join(folder, "sentence_bert_config.json"), sentenceSchema)?.max_seq_length;
  const limits = [config.max_position_embeddings, sequenceLimit, maxModelTokens];
  return {
    card: {
      modelName: modelNameOf(folder),
      modelId: `onnx-1:${digestOf(file, pooling)}`,
      dimensions: probe?.length ?? 0,
      maxTokens: Math.min(...limits.filter((limit) => limit !== undefined && limit !== null)),
      vocabSize: config.vocab_size,
    },
    embed: (sequences) => runner.runAll(sequences),
  };
}

async function openSession(file: string, threadCount: number): Promise<InferenceSession> {
  try {
    return await InferenceSession.create(file, {
      intraOpNumThreads: threadCount,
      interOpNumThreads: 1,
      logSeverityLevel: 4,
    });
  } catch (error) {
    const reason = error instanceof Error ? error.message.split("\n")[0] : "unknown failure";
    throw new ModelError(`${file}: cannot be opened by onnxruntime: ${reason}`);
  }
}

function readChecked<Schema extends z.ZodType>(file: string, schema: Schema): z.infer<Schema> | undefined {
  if (!existsSync(file)) return undefined;
  const parsed = schema.safeParse(readJson(file));
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new ModelError(`${file}: "${issue?.path.join(".")}": ${issue?.message}`);
}

/** A folder that names no way of pooling gets the mean over the tokens. */
function poolingOf(folder: string): Pooling {
  const file = join(folder, "1_Pooling", "config.json");
  const modes = readChecked(file, poolingSchema);
  if (modes === undefined) return "mean";
  const named: Pooling[] = [];
  if (modes.pooling_mode_cls_token) named.push("cls");
  if (modes.pooling_mode_mean_tokens) named.push("mean");
  if (modes.pooling_mode_lasttoken) named.push("last");
  const [only] = named;
  if (named.length !== 1 || only === undefined || modes.pooling_mode_max_tokens) {
    throw new ModelError(`${file}: exactly one of the cls token, the mean and the last token must be pooled`);
  }
  return only;
}

function digestOf(file: string, pooling: Pooling): string {
  return new Bun.CryptoHasher("sha256").update(readFileSync(file)).update(pooling).digest("hex");
}

class Runner {
  readonly #session: InferenceSession;
  readonly #pooling: Pooling;
  readonly #padId: number;

  constructor(session: InferenceSession, pooling: Pooling, padId: number) {
    this.#session = session;
    this.#pooling = pooling;
    this.#padId = padId;
  }

  /** Sequences of like length run together, so that little is padded. */
  async runAll(sequences: readonly Int32Array[]): Promise<readonly Float32Array[]> {
    const order = sequences.map((tokenIds, index) => ({ tokenIds, index }));
    order.sort((a, b) => a.tokenIds.length - b.tokenIds.length);
    const vectors: Float32Array[] = [];
    for (let from = 0; from < order.length; ) {
      let end = from + 1;
      while (end < order.length && (end - from + 1) * (order[end]?.tokenIds.length ?? 0) <= tokensPerRun) end++;
      const batch = order.slice(from, end);
      const found = await this.run(batch.map(({ tokenIds }) => tokenIds));
      for (const [at, vector] of found.entries()) vectors[batch[at]?.index ?? 0] = vector;
      from = end;
    }
    return vectors;
  }

  async run(sequences: readonly Int32Array[]): Promise<readonly Float32Array[]> {
    const length = Math.max(...sequences.map((tokenIds) => tokenIds.length));
    const ids = new BigInt64Array(sequences.length * length).fill(BigInt(this.#padId));
    const mask = new BigInt64Array(ids.length);
    for (const [row, tokenIds] of sequences.entries()) {
      for (const [at, id] of tokenIds.entries()) {
        ids[row * length + at] = BigInt(id);
        mask[row * length + at] = 1n;
      }
    }
    const shape = [sequences.length, length];
    const all: Record<string, Tensor> = {
      input_ids: new Tensor("int64", ids, shape),
      attention_mask: new Tensor("int64", mask, shape),
      token_type_ids: new Tensor("int64", new BigInt64Array(ids.length), shape),
    };
    const feeds = Object.fromEntries(this.#session.inputNames.map((name) => [name, all[name] as Tensor]));
    const outputs = await this.#session.run(feeds);
    const output = outputs.sentence_embedding ?? outputs[this.#session.outputNames[0] ?? ""];
    if (!(output?.data instanceof Float32Array)) throw new ModelError("the model's output is not float32");
    const [, second = 0, third] = output.dims;
    const { data } = output;
    if (third === undefined) {
      return sequences.map((_, row) => normalise(data.slice(row * second, (row + 1) * second)));
    }
    return sequences.map((tokenIds, row) => {
      const start = row * second * third;
      return this.#pool(data.subarray(start, start + tokenIds.length * third), tokenIds.length, third);
    });
  }

  /** @param states one row for each token */
  #pool(states: Float32Array, tokens: number, width: number): Float32Array {
    if (this.#pooling === "cls") return normalise(states.slice(0, width));
    if (this.#pooling === "last") return normalise(states.slice((tokens - 1) * width, tokens * width));
    const sum = new Float32Array(width);
    for (let i = 0; i < states.length; i++) sum[i % width] += states[i];
    return normalise(sum);
  }
}
