/**
 * Dense algebra by onnxruntime: a graph before each attention and one behind the last (dense-graph.ts has the cuts). The
 * experts of layers that have them are products of our own: onnxruntime's widens all of them at every call.
 */
import * as ort from "onnxruntime-node";
import type { Dense, DenseParts } from "./dense.ts";
import { DenseGraphs } from "./dense-graph.ts";
import { ExpertLayers } from "./expert-layers.ts";
import { gatherRows } from "./logit-rows.ts";
import { Packer } from "./packer.ts";
import { Products } from "./products.ts";

type FloatTensor = ort.TypedTensor<"float32">;

/** A view of the first rows of a float32 buffer as an ONNX tensor [rows, size]; shares the memory. */
function rowsTensor(buffer: Float32Array, rows: number, size: number): FloatTensor {
  return new ort.Tensor("float32", buffer.subarray(0, rows * size), [rows, size]);
}

/**
 * A session of a dense graph. Each has a thread pool of its own, and these pools must not spin:
 * idle spinners take cores from the session at work and from the attention kernels. Arenas are off: each session's
 * arena would keep the temporaries of the largest step, once for every layer; without arenas the layers share the
 * process's heap (measured at 512 rows: as fast, and 45 MB less for the demo model, 8 to 30 MB a layer for a 0.6B
 * Qwen3).
 */
class DenseSession {
  readonly #session: ort.InferenceSession;

  private constructor(session: ort.InferenceSession) {
    this.#session = session;
  }

  static async create(model: Uint8Array, threadCount: number): Promise<DenseSession> {
    const session = await ort.InferenceSession.create(model, {
      executionProviders: ["cpu"],
      graphOptimizationLevel: "all",
      executionMode: "sequential",
      intraOpNumThreads: threadCount,
      interOpNumThreads: 1,
      enableCpuMemArena: false,
      logSeverityLevel: 3,
      extra: { session: { intra_op: { allow_spinning: "0" } } },
    });
    return new DenseSession(session);
  }

  /** Runs the graph; `outputs` are written in place. */
  async run(inputs: Record<string, FloatTensor>, outputs: Record<string, FloatTensor>): Promise<void> {
    await this.#session.run(inputs, outputs);
  }

  async dispose(): Promise<void> {
    await this.#session.release();
  }
}

/** The graph of an index, or those on both sides of the experts before it. */
interface Sessions {
  readonly before: DenseSession | undefined;
  readonly last: DenseSession;
}

/** Views of the first rows of the buffers, which all layers of a step use. */
interface StepTensors {
  readonly residual: readonly [FloatTensor, FloatTensor];
  readonly qkv: FloatTensor;
  readonly attention: FloatTensor;
}

export class OnnxDense implements Dense {
  readonly #sessions: readonly Sessions[];
  readonly #experts: ExpertLayers | undefined;
  readonly #parts: DenseParts;

  private constructor(sessions: readonly Sessions[], parts: DenseParts) {
    this.#sessions = sessions;
    this.#parts = parts;
    this.#experts = ExpertLayers.open(parts, new Packer(parts), new Products());
  }

  static async open(parts: DenseParts): Promise<OnnxDense> {
    const { config, weights, weightMode, threadCount } = parts;
    const graphs = new DenseGraphs(config, weights, weightMode);
    const create = (graph: Uint8Array) => DenseSession.create(graph, threadCount);
    const sessions: Sessions[] = [];
    for (let index = 0; index <= config.layerCount; index++) {
      const isCut = config.experts?.layers[index - 1] === true;
      const before = isCut ? await create(graphs.beforeExperts(index - 1)) : undefined;
      sessions.push({ before, last: await create(isCut ? graphs.behindExperts(index) : graphs.build(index)) });
    }
    return new OnnxDense(sessions, parts);
  }

  /** The residual stream alternates between two buffers: that before attention of layer `index` is in `index` % 2. */
  async run(index: number, rows: number): Promise<void> {
    const { residual, qkv, attention } = this.#tensors(rows);
    const { before, last } = this.#sessions[index];
    if (index === 0) return last.run({ residual: residual[0] }, { qkv });
    if (before === undefined) {
      await last.run({ attention, residual: residual[(index - 1) % 2] }, { residual_out: residual[index % 2], qkv });
      return;
    }
    await this.#runExperts(index, before, rows);
    await last.run({ residual: residual[index % 2] }, { qkv });
  }

  async head(rows: number): Promise<void> {
    const { layerCount, vocabSize } = this.#parts.config;
    const { residual, attention } = this.#tensors(rows);
    const logits = rowsTensor(this.#parts.buffers.logits, rows, vocabSize);
    const { before, last } = this.#sessions[layerCount];
    if (before === undefined) return last.run({ attention, residual: residual[(layerCount - 1) % 2] }, { logits });
    await this.#runExperts(layerCount, before, rows);
    await last.run({ residual: residual[layerCount % 2] }, { logits });
  }

  /** O and the experts of layer `index` - 1. */
  async #runExperts(index: number, before: DenseSession, rows: number): Promise<void> {
    const { residual, attention } = this.#tensors(rows);
    await before.run({ attention, residual: residual[(index - 1) % 2] }, { residual_out: residual[index % 2] });
    await this.#experts?.run(index - 1, this.#parts.buffers.residual[index % 2], rows);
  }

  /** Takes less than a microsecond. */
  #tensors(rows: number): StepTensors {
    const { config, pool, buffers } = this.#parts;
    const { residual, qkv, attention } = buffers;
    return {
      residual: [rowsTensor(residual[0], rows, config.hiddenSize), rowsTensor(residual[1], rows, config.hiddenSize)],
      qkv: rowsTensor(qkv, rows, pool.qkvWidth),
      attention: rowsTensor(attention, rows, pool.outWidth),
    };
  }

  keepRows(rows: Int32Array): void {
    const { layerCount, hiddenSize } = this.#parts.config;
    const residual = this.#parts.buffers.residual[(layerCount - 1) % 2];
    gatherRows(residual, rows, hiddenSize, residual);
  }

  async dispose(): Promise<void> {
    this.#experts?.close();
    for (const { before, last } of this.#sessions) for (const each of [before, last]) await each?.dispose();
  }
}
