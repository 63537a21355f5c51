/** Logical tensors of every architecture, and the rows of fused ones. */
import { describe, expect, test } from "bun:test";
import { parseModelConfig } from "../../worker/model/config.ts";
import { readTensorBytes } from "../../worker/model/safetensors.ts";
import { storedShapes, tensorLayout } from "../../worker/model/tensor-layout.ts";
import { Weights } from "../../worker/model/weights.ts";
import { randomTensors, tinyConfig, writeModelFolder } from "./folder.ts";

const rawConfig = (architecture: string) => ({ ...tinyConfig, architectures: [`${architecture}ForCausalLM`] });
const parsed = (architecture: string) => parseModelConfig(rawConfig(architecture), "config.json");
const layer = "model.layers.1.";

function expectRows(weights: Weights, name: string, whole: Float32Array, firstRow: number, rows: number): void {
  const width = tinyConfig.hidden_size;
  expect(weights.info(layer + name).shape).toEqual([rows, width]);
  expect(weights.float32(layer + name)).toEqual(whole.slice(firstRow * width, (firstRow + rows) * width));
}

describe("fused projections", () => {
  const tensors = randomTensors(rawConfig("Phi3"));
  const stored = (name: string) => tensors.get(layer + name)?.data ?? new Float32Array(0);
  const weights = new Weights(writeModelFolder(rawConfig("Phi3"), tensors), parsed("Phi3"));

  test("q, k and v are rows of one tensor, in this order", () => {
    const whole = stored("self_attn.qkv_proj.weight");
    expect(whole.length).toBe((64 + 32 + 32) * tinyConfig.hidden_size);
    expectRows(weights, "self_attn.q_proj.weight", whole, 0, 64);
    expectRows(weights, "self_attn.k_proj.weight", whole, 64, 32);
    expectRows(weights, "self_attn.v_proj.weight", whole, 96, 32);
  });

  test("gate stands before up", () => {
    const whole = stored("mlp.gate_up_proj.weight");
    expectRows(weights, "mlp.gate_proj.weight", whole, 0, 96);
    expectRows(weights, "mlp.up_proj.weight", whole, 96, 96);
  });

  test("a part's bytes are the file's own", () => {
    const info = weights.info(`${layer}mlp.up_proj.weight`);
    expect(info.end - info.start).toBe(96 * tinyConfig.hidden_size * 4);
    expect([...new Float32Array(readTensorBytes(info).buffer)]).toEqual([
      ...weights.float32(`${layer}mlp.up_proj.weight`),
    ]);
  });

  test("unfused tensors are refused in a fused architecture, and the other way round", () => {
    const unfused = writeModelFolder(rawConfig("Llama"));
    expect(() => new Weights(unfused, parsed("Phi3"))).toThrow(/qkv_proj.weight" is missing/);
    const fused = writeModelFolder(rawConfig("Phi3"));
    expect(() => new Weights(fused, parsed("Llama"))).toThrow(/q_proj.weight" is missing/);
  });
});

test("Qwen2 needs biases of q, k and v, and no other architecture has them", () => {
  const names = [...tensorLayout(parsed("Qwen2")).keys()].filter((name) => name.endsWith(".bias"));
  expect(names.slice(0, 3)).toEqual(["q", "k", "v"].map((part) => `model.layers.0.self_attn.${part}_proj.bias`));
  expect(names.length).toBe(6);
  const folder = writeModelFolder(rawConfig("Qwen2"));
  expect(() => new Weights(folder, parsed("Llama"))).toThrow(/bias" does not belong to LlamaForCausalLM/);
  expect(new Weights(folder, parsed("Qwen2")).info("model.layers.0.self_attn.k_proj.bias").shape).toEqual([32]);
});

test("logical names are the same for every architecture but for biases and head norms", () => {
  const names = (architecture: string) => [...tensorLayout(parsed(architecture)).keys()].sort();
  const llama = names("Llama");
  for (const architecture of ["Mistral", "Granite", "SmolLM3", "Phi3"]) expect(names(architecture)).toEqual(llama);
  expect(storedShapes(tensorLayout(parsed("Llama"))).size).toBe(llama.length);
});

test("a table of frequencies that an older file carries along is left aside", () => {
  const tensors = randomTensors(rawConfig("Llama"));
  tensors.set(`${layer}self_attn.rotary_emb.inv_freq`, { shape: [8], data: new Float32Array(8) });
  const weights = new Weights(writeModelFolder(rawConfig("Llama"), tensors), parsed("Llama"));
  expect(() => weights.info(`${layer}self_attn.rotary_emb.inv_freq`)).toThrow(/missing/);
});
