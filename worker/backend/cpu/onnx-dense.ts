/** Dense algebra by onnxruntime: a graph before each attention and one behind the last (dense-graph.ts has the cuts). */
import type { Dense, DenseParts } from "./dense.ts";
import { DenseGraphs } from "./dense-graph.ts";
import { DenseSession, rowsTensor } from "./dense-session.ts";
import { gatherRows } from "./logit-rows.ts";

export class OnnxDense implements Dense {
  readonly #sessions: readonly DenseSession[];
  readonly #parts: DenseParts;

  private constructor(sessions: readonly DenseSession[], parts: DenseParts) {
    this.#sessions = sessions;
    this.#parts = parts;
  }

  static async open(parts: DenseParts): Promise<OnnxDense> {
    const { config, weights, weightMode, threadCount } = parts;
    const graphs = new DenseGraphs(config, weights, weightMode);
    const sessions: DenseSession[] = [];
    for (let index = 0; index <= config.layerCount; index++) {
      sessions.push(await DenseSession.create(graphs.build(index), threadCount));
    }
    return new OnnxDense(sessions, parts);
  }

  /** The residual stream alternates between two buffers: that before attention of layer `index` is in `index` % 2. */
  async run(index: number, rows: number): Promise<void> {
    const { residual, qkv, attention } = this.#parts.buffers.tensors(rows);
    const session = this.#sessions[index];
    if (index === 0) return session.run({ residual: residual[0] }, { qkv });
    await session.run({ attention, residual: residual[(index - 1) % 2] }, { residual_out: residual[index % 2], qkv });
  }

  async head(rows: number): Promise<void> {
    const { layerCount, vocabSize } = this.#parts.config;
    const { residual, attention } = this.#parts.buffers.tensors(rows);
    const logits = rowsTensor(this.#parts.buffers.logits, rows, vocabSize);
    await this.#sessions[layerCount].run({ attention, residual: residual[(layerCount - 1) % 2] }, { logits });
  }

  keepRows(rows: Int32Array): void {
    const { layerCount, hiddenSize } = this.#parts.config;
    const residual = this.#parts.buffers.residual[(layerCount - 1) % 2];
    gatherRows(residual, rows, hiddenSize, residual);
  }

  async dispose(): Promise<void> {
    for (const session of this.#sessions) await session.dispose();
  }
}
