import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TokenBytes } from "../../gateway/text/detokenizer.ts";
import { readModelText } from "../../gateway/text/model-text.ts";
import { TextTokenizer } from "../../gateway/text/tokenizer.ts";
import { type LoadedModel, loadModel } from "../../worker/model/load.ts";
import { rawConfigs } from "./models.ts";
import { writeRandomModel } from "./random-model.ts";

const config = {
  ...rawConfigs["Qwen3-8B"],
  num_hidden_layers: 2,
  hidden_size: 64,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 16,
  intermediate_size: 96,
  vocab_size: 4_200,
};
let folder: string;
let model: LoadedModel;
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "spangate-random-"));
  // Less than both embeddings take.
  await writeRandomModel(folder, { config, shardBytes: 600_000 });
  model = loadModel(folder, "float32");
});
afterAll(() => rmSync(folder, { recursive: true }));

test("the folder is a model that loads, in shards", () => {
  expect(readdirSync(folder).filter((name) => name.endsWith(".safetensors")).length).toBeGreaterThan(1);
  expect(model.config).toMatchObject({ layerCount: 2, vocabSize: 4_200, headDim: 16, tiedEmbeddings: false });
  expect(model.eosTokenIds.length).toBeGreaterThan(0);
});

test("the same shape has the same weights in another folder", async () => {
  const again = mkdtempSync(join(tmpdir(), "spangate-random-"));
  try {
    await writeRandomModel(again, { config, shardBytes: 600_000 });
    for (const name of readdirSync(folder)) {
      expect(Bun.hash(readFileSync(join(again, name)))).toBe(Bun.hash(readFileSync(join(folder, name))));
    }
  } finally {
    rmSync(again, { recursive: true });
  }
});

test("norms are 1, and all else is normal with a deviation of 0.02", () => {
  expect(new Set(model.weights.float32("model.layers.1.self_attn.q_norm.weight"))).toEqual(new Set([1]));
  for (const name of ["lm_head.weight", "model.layers.0.mlp.down_proj.weight"]) {
    const values = model.weights.float32(name);
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length;
    expect(Math.abs(mean)).toBeLessThan(0.002);
    expect(Math.sqrt(variance)).toBeCloseTo(0.02, 2);
  }
});

test("every token of the vocabulary has a text, and texts become the demo model's tokens", () => {
  const text = readModelText(folder);
  const bytes = new TokenBytes(text.tokenizer);
  const words = Array.from({ length: 4_200 - 3 }, (_, index) => bytes.of(index + 3));
  expect(words.every((word) => word.length > 0)).toBe(true);
  const ids = new TextTokenizer(text, { cacheBytes: 1_000 }).encodeText("Ada lives in w4150, they say.");
  expect(ids.every((id) => id < 4_096)).toBe(true);
});
