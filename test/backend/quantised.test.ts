/** 8-bit weights, the embedding's too, give the logits that the same weights give in float32, bit by bit. */
import { afterAll, expect, setDefaultTimeout, spyOn, test } from "bun:test";
import type { Backend } from "../../worker/backend/backend.ts";
import { CpuBackend } from "../../worker/backend/cpu/cpu-backend.ts";
import { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import { FileReader } from "../../worker/backend/cuda/weights/tensor-reader.ts";
import { type LoadedModel, loadModel } from "../../worker/model/load.ts";
import { openCpuKernels } from "../../worker/native/cpu-kernels.ts";
import { type TestTensor, writeModelFolder } from "../model/folder.ts";
import { forms, quantised, writeQuantised } from "../model/quantised-folder.ts";
import { EmulatedDevice } from "./cuda/emulated-device.ts";
import { answersOf, difference, Texts } from "./relocate-answers.ts";

// A step on the emulated device is computed in plain loops.
setDefaultTimeout(60_000);

const blockTokens = 8;
/** GLM: fused matrices, and rows of q and k in another order. */
const raw = {
  architectures: ["GlmForCausalLM"],
  num_hidden_layers: 2,
  hidden_size: 48,
  num_attention_heads: 3,
  num_key_value_heads: 1,
  head_dim: 64,
  intermediate_size: 64,
  vocab_size: 96,
  rms_norm_eps: 1e-6,
  max_position_embeddings: 512,
  rope_theta: 100,
  tie_word_embeddings: true,
};
const options = { kvBytes: 4 << 20, blockTokens, maxRows: 256, maxLogitRows: 16 };
const cpu = { ...options, weightMode: "float32", kvType: "float32", threadCount: 2 } as const;

async function onCpu(model: LoadedModel): Promise<Backend> {
  const backend = await CpuBackend.open(model, cpu);
  afterAll(() => backend.dispose());
  return backend;
}

async function onEmulatedDevice(model: LoadedModel): Promise<Backend> {
  // Parts that begin and end within a row.
  const reader = new FileReader({ partElements: 1_000, laneCount: 3 });
  const backend = await CudaBackend.open(new EmulatedDevice(64), model, { ...options, reserveBytes: 0, reader });
  afterAll(() => backend.dispose());
  return backend;
}

const isInBytes = /(_proj|embed_tokens)\.weight$/;
const form = forms["compressed-tensors, groups of a row"];
const { stored, plain } = quantised(raw, form, isInBytes);
const inBytes = loadModel(writeQuantised(raw, form, stored), "float32");
const inFloats = loadModel(writeModelFolder(raw, plain), "float32");
const texts = new Texts(raw.vocab_size, blockTokens);

test.each([
  ["the CPU", onCpu],
  ["an emulated device", onEmulatedDevice],
] as const)("on %s", async (_, open) => {
  const groups = [[texts.ask(0, [1, 3, 0])]];
  const answers = await answersOf(await open(inBytes), "deferred", groups);
  expect(answers.size).toBe(1);
  expect(answers).toEqual(await answersOf(await open(inFloats), "deferred", groups));
});

/** float32 numbers whose lower halves are zero. */
function asBfloat16({ shape, data }: TestTensor): TestTensor {
  const halves = Uint16Array.from(new Uint32Array(data.buffer), (word) => word >> 16);
  return { shape, dtype: "BF16", data: new Uint8Array(halves.buffer) };
}

test("where scales are powers of two, our own products hold bfloat16 numbers as they hold those of a file", async () => {
  const powers = forms["compressed-tensors, groups with powers of two"];
  const exact = quantised(raw, powers, isInBytes);
  for (const [name, tensor] of exact.plain) if (isInBytes.test(name)) exact.plain.set(name, asBfloat16(tensor));
  const inBfloat16 = loadModel(writeModelFolder(raw, exact.plain), "float32");
  const inPowers = loadModel(writeQuantised(raw, powers, exact.stored), "float32");
  const groups = [[texts.ask(0, [1, 3, 0])]];
  const run = async (model: LoadedModel) => {
    const kernels = await openCpuKernels({ threadCount: 2 });
    const opened = spyOn(kernels, "openMatrix");
    const backend = await CpuBackend.open(model, { ...cpu, dense: "native", kernels });
    const answers = await answersOf(backend, "deferred", groups);
    const parts = [...new Set(opened.mock.calls.map(([given]) => given.parts))];
    await backend.dispose();
    return { answers, parts };
  };
  const expected = await run(inBfloat16);
  expect(expected.parts).toEqual([1]);
  expect(await run(inPowers)).toEqual(expected);
  expect((await run(inBytes)).parts).toEqual([2]);
});

test("8-bit floats stay in 8 bits where they would take four bytes, but for rows in another order", async () => {
  const blocks = forms["fp8 by blocks"];
  // Scales of whole tiles of inputs, as published checkpoints have them.
  const byTiles = { ...blocks, block: [24, 32], config: { ...blocks.config, weight_block_size: [24, 32] } } as const;
  for (const own of [byTiles, forms.fbgemm_fp8]) {
    const pair = quantised(raw, own);
    const groups = [[texts.ask(0, [1, 3, 0])]];
    const run = async (folder: string) => {
      const kernels = await openCpuKernels({ threadCount: 2 });
      const opened = spyOn(kernels, "openMatrix");
      const backend = await CpuBackend.open(loadModel(folder, "float32"), { ...cpu, dense: "native", kernels });
      const answers = await answersOf(backend, "deferred", groups);
      const held = opened.mock.calls.map(([given]) => given.form);
      await backend.dispose();
      return { answers, held };
    };
    const [inBytes, inFloats] = [
      await run(writeQuantised(raw, own, pair.stored)),
      await run(writeModelFolder(raw, pair.plain)),
    ];
    // qkv, whose rows of q and k are stored in pairs, o, gates and ups, down of two layers; the head.
    expect(inBytes.held).toEqual(["b16", "e4m3", "e4m3", "e4m3", "b16", "e4m3", "e4m3", "e4m3", "b16"]);
    expect(new Set(inFloats.held)).toEqual(new Set(["b16"]));
    // float32 is held exactly, these weights to 16 bits.
    expect(difference(inBytes.answers, inFloats.answers)).toBeLessThan(0.01);
    expect(inBytes.answers.size).toBe(1);
  }
});

test("experts in 8-bit floats give what the same weights give in float32", async () => {
  const experts = {
    ...{ ...raw, architectures: ["Qwen3MoeForCausalLM"], hidden_size: 64, head_dim: 16, num_attention_heads: 4 },
    ...{ num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 32, norm_topk_prob: true },
  };
  const form = forms.fbgemm_fp8;
  const pair = quantised(experts, form);
  const groups = [[texts.ask(0, [1, 3, 0]), texts.ask(1, [2, 0])]];
  const run = async (folder: string) => {
    const kernels = await openCpuKernels({ threadCount: 2 });
    const backend = await CpuBackend.open(loadModel(folder, "float32"), { ...cpu, dense: "native", kernels });
    const answers = await answersOf(backend, "deferred", groups);
    await backend.dispose();
    return answers;
  };
  const inBytes = await run(writeQuantised(experts, form, pair.stored));
  expect(inBytes.size).toBe(2);
  expect(difference(inBytes, await run(writeModelFolder(experts, pair.plain)))).toBeLessThan(0.01);
});
