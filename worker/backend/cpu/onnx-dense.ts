/**
 * Dense algebra by onnxruntime: a graph before each attention and one behind the last (dense-graph.ts has the cuts). The
 * experts of layers that have them are products of our own: onnxruntime's widens all of them at every call.
 */
import type { Dense, DenseParts } from "./dense.ts";
import { DenseGraphs } from "./dense-graph.ts";
import { DenseSession, rowsTensor } from "./dense-session.ts";
import { ExpertLayers } from "./expert-layers.ts";
import { gatherRows } from "./logit-rows.ts";
import { Packer } from "./packer.ts";
import { Products } from "./products.ts";

/** The graph of an index, or those on both sides of the experts before it. */
interface Sessions {
  readonly before: DenseSession | undefined;
  readonly last: DenseSession;
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
    const { residual, qkv, attention } = this.#parts.buffers.tensors(rows);
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
    const { residual, attention } = this.#parts.buffers.tensors(rows);
    const logits = rowsTensor(this.#parts.buffers.logits, rows, vocabSize);
    const { before, last } = this.#sessions[layerCount];
    if (before === undefined) return last.run({ attention, residual: residual[(layerCount - 1) % 2] }, { logits });
    await this.#runExperts(layerCount, before, rows);
    await last.run({ residual: residual[layerCount % 2] }, { logits });
  }

  /** O and the experts of layer `index` - 1. */
  async #runExperts(index: number, before: DenseSession, rows: number): Promise<void> {
    const { residual, attention } = this.#parts.buffers.tensors(rows);
    await before.run({ attention, residual: residual[(index - 1) % 2] }, { residual_out: residual[index % 2] });
    await this.#experts?.run(index - 1, this.#parts.buffers.residual[index % 2], rows);
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
