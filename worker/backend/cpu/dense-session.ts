/**
 * onnxruntime sessions for the dense graphs. Each session has a thread pool of its own, and these pools must not spin:
 * idle spinners take cores from the session at work and from the attention kernels. Arenas are off: each session's
 * arena would keep the temporaries of the largest step, once for every layer; without arenas the layers share the
 * process's heap (measured at 512 rows: as fast, and 45 MB less for the demo model, 8 to 30 MB a layer for a 0.6B
 * Qwen3).
 */
import * as ort from "onnxruntime-node";

export type FloatTensor = ort.TypedTensor<"float32">;

/** A view of the first rows of a float32 buffer as an ONNX tensor [rows, size]; shares the memory. */
export function rowsTensor(buffer: Float32Array, rows: number, size: number): FloatTensor {
  return new ort.Tensor("float32", buffer.subarray(0, rows * size), [rows, size]);
}

export class DenseSession {
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
