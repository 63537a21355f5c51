/**
 * What text models in ONNX have in common, as sentence-transformers exports them: model.onnx (or onnx/model.onnx) and
 * config.json in a folder. Run on the CPU by onnxruntime.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { InferenceSession, Tensor } from "onnxruntime-node";
import { z } from "zod";
import { ModelError } from "../model/model-error.ts";
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

/** A sequence of token ids, of which the last may belong to a second text. */
export interface TypedSequence {
  readonly tokenIds: Int32Array;
  /** The index from which on tokens have the type 1, as the second text of a pair has; absent: none has. */
  readonly secondFrom?: number;
}

export class OnnxTextModel {
  readonly file: string;
  readonly config: z.infer<typeof configSchema>;
  readonly #session: InferenceSession;

  private constructor(file: string, config: z.infer<typeof configSchema>, session: InferenceSession) {
    this.file = file;
    this.config = config;
    this.#session = session;
  }

  /** @throws ModelError naming the file and what is wrong with it */
  static async open(folder: string, threadCount: number): Promise<OnnxTextModel> {
    const file = [join(folder, "model.onnx"), join(folder, "onnx", "model.onnx")].find((path) => existsSync(path));
    if (file === undefined) throw new ModelError(`${folder}: no model.onnx there`);
    const config = readChecked(join(folder, "config.json"), configSchema);
    if (config === undefined) throw new ModelError(`${folder}: no config.json there`);
    const session = await openSession(file, threadCount);
    const strange = session.inputNames.find((name) => !knownInputs.includes(name));
    if (strange !== undefined) throw new ModelError(`${file}: takes an input "${strange}", which is not supported`);
    return new OnnxTextModel(file, config, session);
  }

  /** The longest sequence that the model takes. @param limits of the folder's other files */
  maxTokens(...limits: readonly (number | null | undefined)[]): number {
    const all = [this.config.max_position_embeddings, ...limits, maxModelTokens];
    return Math.min(...all.filter((limit) => limit !== undefined && limit !== null));
  }

  /** What `run` gives for each sequence, in their order. Sequences of like length run together, so that little is padded. */
  async inRuns<Result>(
    sequences: readonly TypedSequence[],
    run: (sequences: readonly TypedSequence[]) => Promise<readonly Result[]>,
  ): Promise<readonly Result[]> {
    const order = sequences.map((sequence, index) => ({ sequence, index }));
    order.sort((a, b) => a.sequence.tokenIds.length - b.sequence.tokenIds.length);
    const results: Result[] = [];
    for (let from = 0; from < order.length; ) {
      let end = from + 1;
      while (end < order.length && (end - from + 1) * (order[end]?.sequence.tokenIds.length ?? 0) <= tokensPerRun)
        end++;
      const batch = order.slice(from, end);
      const found = await run(batch.map(({ sequence }) => sequence));
      for (const [at, result] of found.entries()) results[batch[at]?.index ?? 0] = result;
      from = end;
    }
    return results;
  }

  /** Runs the sequences, padded to one length. @returns the output of this name, or the first */
  async run(sequences: readonly TypedSequence[], outputName: string): Promise<Float32Output> {
    const length = Math.max(...sequences.map(({ tokenIds }) => tokenIds.length));
    const ids = new BigInt64Array(sequences.length * length).fill(BigInt(this.config.pad_token_id ?? 0));
    const mask = new BigInt64Array(ids.length);
    const types = new BigInt64Array(ids.length);
    for (const [row, { tokenIds, secondFrom = tokenIds.length }] of sequences.entries()) {
      for (const [at, id] of tokenIds.entries()) {
        ids[row * length + at] = BigInt(id);
        mask[row * length + at] = 1n;
        if (at >= secondFrom) types[row * length + at] = 1n;
      }
    }
    const shape = [sequences.length, length];
    const all: Record<string, Tensor> = {
      input_ids: new Tensor("int64", ids, shape),
      attention_mask: new Tensor("int64", mask, shape),
      token_type_ids: new Tensor("int64", types, shape),
    };
    const feeds = Object.fromEntries(this.#session.inputNames.map((name) => [name, all[name] as Tensor]));
    const outputs = await this.#session.run(feeds);
    const output = outputs[outputName] ?? outputs[this.#session.outputNames[0] ?? ""];
    if (!(output?.data instanceof Float32Array))
      throw new ModelError(`${this.file}: the model's output is not float32`);
    return { data: output.data, dims: output.dims };
  }
}

export interface Float32Output {
  readonly data: Float32Array;
  readonly dims: readonly number[];
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

/** @returns undefined when there is no such file. @throws ModelError */
export function readChecked<Schema extends z.ZodType>(file: string, schema: Schema): z.infer<Schema> | undefined {
  if (!existsSync(file)) return undefined;
  const parsed = schema.safeParse(readJson(file));
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new ModelError(`${file}: "${issue?.path.join(".")}": ${issue?.message}`);
}
