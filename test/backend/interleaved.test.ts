/**
 * A checkpoint whose RoPE rotates (2i, 2i + 1) and the same model with the rows of q and k put into halves: one model to
 * a backend, wherever its fragments stand and however its K came there. test/golden has the reference for both.
 */
import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import type { Backend } from "../../worker/backend/backend.ts";
import { CpuBackend, type CpuBackendOptions } from "../../worker/backend/cpu/cpu-backend.ts";
import { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import { FileReader } from "../../worker/backend/cuda/weights/tensor-reader.ts";
import { type LoadedModel, loadModel } from "../../worker/model/load.ts";
import { Weights } from "../../worker/model/weights.ts";
import { randomTensors, writeModelFolder } from "../model/folder.ts";
import { Random } from "../native/random.ts";
import { EmulatedDevice } from "./cuda/emulated-device.ts";
import { answersOf, difference, recomputed, Texts } from "./relocate-answers.ts";

// A step on the emulated device is computed in plain loops.
setDefaultTimeout(60_000);

const shape = { heads: 3, kvHeads: 1, headDim: 64, rotaryDim: 32, hidden: 48 };
const raw = {
  architectures: ["GlmForCausalLM"],
  num_hidden_layers: 2,
  hidden_size: shape.hidden,
  num_attention_heads: shape.heads,
  num_key_value_heads: shape.kvHeads,
  head_dim: shape.headDim,
  intermediate_size: 64,
  vocab_size: 96,
  rms_norm_eps: 1e-6,
  max_position_embeddings: 512,
  rope_theta: 100,
};
const blockTokens = 8;

type Tensors = ReturnType<typeof randomTensors>;

function seededTensors(): Tensors {
  const random = new Random(11);
  const tensors = randomTensors(raw);
  for (const [name, { data }] of tensors) {
    const values = random.normals(data.length, 1e9).map((x) => x / 5);
    data.set(name.includes("norm") ? values.map((x) => 1 + x) : values);
  }
  return tensors;
}

/** Rows of each head of q and k: first the even ones of those that are rotated, then the odd ones, then the rest. */
function withHalves(tensors: Tensors): Tensors {
  const even = Array.from({ length: shape.rotaryDim / 2 }, (_, i) => 2 * i);
  const kept = Array.from({ length: shape.headDim - shape.rotaryDim }, (_, i) => shape.rotaryDim + i);
  const order = [...even, ...even.map((i) => i + 1), ...kept];
  const entries = [...tensors].map(([name, tensor]) => {
    if (!/[qk]_proj/.test(name)) return [name, tensor] as const;
    const width = tensor.data.length / tensor.shape[0];
    const data = new Float32Array(tensor.data.length);
    for (let row = 0; row < tensor.shape[0]; row++) {
      const from = (row - (row % shape.headDim) + order[row % shape.headDim]) * width;
      data.set(tensor.data.subarray(from, from + width), row * width);
    }
    return [name, { ...tensor, data }] as const;
  });
  return new Map(entries);
}

/** Taken for one of the two, whatever the architecture says. */
function load(tensors: Tensors, interleavedRope: boolean): LoadedModel {
  const folder = writeModelFolder(raw, tensors);
  const model = loadModel(folder, "float32");
  const config = { ...model.config, interleavedRope };
  return { ...model, config, weights: new Weights(folder, config) };
}

const stored = seededTensors();
const interleaved = load(stored, true);
const halves = load(withHalves(stored), false);
const unchanged = load(stored, false);

async function onCpu(model: LoadedModel): Promise<Backend> {
  const options: CpuBackendOptions = {
    weightMode: "float32",
    kvType: "float32",
    kvBytes: 4 << 20,
    blockTokens,
    threadCount: 2,
    maxRows: 256,
    maxLogitRows: 16,
  };
  const backend = await CpuBackend.open(model, options);
  afterAll(() => backend.dispose());
  return backend;
}

async function onEmulatedDevice(model: LoadedModel): Promise<Backend> {
  // Chunks smaller than a head, and than what stands before k in its fused matrix.
  const reader = new FileReader({ partElements: 1_000, laneCount: 3 });
  const options = { kvBytes: 4 << 20, blockTokens, maxRows: 256, maxLogitRows: 16, reserveBytes: 0, reader };
  const backend = await CudaBackend.open(new EmulatedDevice(shape.headDim), model, options);
  afterAll(() => backend.dispose());
  return backend;
}

const texts = new Texts(raw.vocab_size, blockTokens);

test.each([
  ["the CPU", onCpu, [texts.askTogether()]],
  ["an emulated device", onEmulatedDevice, [[texts.ask(0, [1, 3, 0])], [texts.ask(1, [3, 0, 1])]]],
] as const)("on %s, deferred and moved", async (_, open, groups) => {
  for (const positions of ["deferred", "relocate"] as const) {
    const answers = await answersOf(await open(interleaved), positions, groups);
    expect(answers.size).toBe(groups.flat().length);
    expect(answers).toEqual(await answersOf(await open(halves), positions, groups));
    expect(difference(answers, await recomputed(await open(interleaved), groups))).toBeLessThan(0.05);
    expect(difference(answers, await answersOf(await open(unchanged), positions, groups))).toBeGreaterThan(0.05);
  }
});
