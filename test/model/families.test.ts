/** What sets gpt-oss, mixtures of experts, Gemma 2 and other late families apart: defaults, tensors, refusals. */
import { describe, expect, test } from "bun:test";
import { parseModelConfig } from "../../worker/model/config.ts";
import { assertMxfp4Scales, widenMxfp4 } from "../../worker/model/stored-form.ts";
import { storedShapes, tensorLayout } from "../../worker/model/tensor-layout.ts";
import { Weights } from "../../worker/model/weights.ts";
import { Random } from "../native/random.ts";
import { testSeed } from "../support/seed.ts";
import { randomTensors, type TestTensor, tinyConfig, writeModelFolder } from "./folder.ts";

type Fields = Record<string, unknown>;
const rawOf = (architecture: string, change: Fields = {}): Fields => ({
  ...tinyConfig,
  architectures: [`${architecture}ForCausalLM`],
  ...change,
});
const named = (architecture: string, change: Fields = {}) =>
  parseModelConfig(rawOf(architecture, change), "config.json");

const few = { num_local_experts: 3, num_experts_per_tok: 2 };
const gptOss = (change: Fields = {}) => named("GptOss", { ...few, rope_parameters: undefined, ...change });
const mxfp4 = { quantization_config: { quant_method: "mxfp4", modules_to_not_convert: ["lm_head"] } };

describe("gpt-oss", () => {
  test("is what its configuration leaves out", () => {
    const config = gptOss({ head_dim: undefined, num_hidden_layers: 3 });
    const biased = { qkvBias: true, outputBias: true, sinks: true, activation: "clamped", headDim: 64 };
    expect(config).toMatchObject({ ...biased, window: { tokens: 128, layers: [true, false, true] } });
    expect(config.experts).toMatchObject({ count: 3, perToken: 2, ffnSize: 96, normalised: true, mxfp4: false });
    // YaRN by 32, whose factor of cos and sin is ln(32) / 10 + 1.
    expect(config.rope.attentionFactor).toBeCloseTo(1.34657, 4);
    expect(gptOss({ attention_bias: false })).toMatchObject({ qkvBias: false, outputBias: false });
    expect(gptOss({ rope_parameters: { rope_theta: 1e4 } }).rope.attentionFactor).toBe(1);
  });

  test.each([
    ["a cut elsewhere", { swiglu_limit: 5 }, /"swiglu_limit" 5 is not supported for GptOss/],
    ["another gate", { swiglu_alpha: 1 }, /"swiglu_alpha" 1/],
    ["no experts", { num_local_experts: undefined }, /"num_experts" is missing/],
    ["blocks that do not fill a row", { ...mxfp4, intermediate_size: 80 }, /"intermediate_size" 80 is not a multiple/],
    [
      "another rotation",
      { rope_parameters: { rope_type: "llama3", factor: 2 } },
      /"rope_parameters.rope_type" "llama3"/,
    ],
  ])("is refused with %s", (_, change, message) => {
    expect(() => gptOss(change)).toThrow(message);
  });

  test("a model of another family with MXFP4 is refused", () => {
    expect(() => named("Llama", mxfp4)).toThrow(/"mxfp4" is read for GptOssForCausalLM alone/);
    expect(() => named("Mixtral", { ...few, ...mxfp4 })).toThrow(/GptOssForCausalLM alone/);
  });
});

describe("tensors of all experts together", () => {
  const layer = "model.layers.1.";
  const expertOf = (weights: Weights, part: string, kind = "weight") =>
    weights.float32(`${layer}mlp.experts.2.${part}_proj.${kind}`);
  /** Element [row, column] of the third expert, by `at`, as the layout of the stored tensor has it. */
  const picked = (data: Float32Array, rows: number, columns: number, at: (row: number, column: number) => number) =>
    Float32Array.from({ length: rows * columns }, (_, i) => data[at(Math.floor(i / columns), i % columns)]);

  test("gpt-oss: inputs before outputs, gates and ups in turns, biases alike", () => {
    const raw = rawOf("GptOss", few);
    const tensors = randomTensors(raw);
    const weights = new Weights(writeModelFolder(raw, tensors), parseModelConfig(raw, "config.json"));
    const stored = (name: string) => tensors.get(`${layer}mlp.experts.${name}`)?.data ?? new Float32Array(0);
    const gateUp = stored("gate_up_proj");
    expect(gateUp.length).toBe(3 * 64 * 192);
    expect(expertOf(weights, "gate")).toEqual(picked(gateUp, 96, 64, (row, input) => (2 * 64 + input) * 192 + 2 * row));
    expect(expertOf(weights, "up")).toEqual(
      picked(gateUp, 96, 64, (row, input) => (2 * 64 + input) * 192 + 2 * row + 1),
    );
    const down = stored("down_proj");
    expect(expertOf(weights, "down")).toEqual(picked(down, 64, 96, (row, input) => (2 * 96 + input) * 64 + row));
    const bias = stored("gate_up_proj_bias");
    expect(expertOf(weights, "up", "bias")).toEqual(picked(bias, 96, 1, (row) => 2 * 192 + 2 * row + 1));
    expect(expertOf(weights, "down", "bias")).toEqual(picked(stored("down_proj_bias"), 64, 1, (row) => 2 * 64 + row));
  });

  test("Granite: gates before ups", () => {
    const raw = rawOf("GraniteMoe", few);
    const tensors = randomTensors(raw);
    const weights = new Weights(writeModelFolder(raw, tensors), parseModelConfig(raw, "config.json"));
    const stored = tensors.get(`${layer}block_sparse_moe.input_linear.weight`)?.data ?? new Float32Array(0);
    expect(expertOf(weights, "gate")).toEqual(stored.slice(2 * 192 * 64, (2 * 192 + 96) * 64));
    expect(expertOf(weights, "up")).toEqual(stored.slice((2 * 192 + 96) * 64, 3 * 192 * 64));
  });

  test("in 8 bits are refused by their type", () => {
    const raw = rawOf("GraniteMoe", { ...few, quantization_config: { quant_method: "fbgemm_fp8" } });
    const tensors = new Map<string, TestTensor>(randomTensors(raw));
    const shape = [3, 64, 96];
    tensors.delete(`${layer}block_sparse_moe.output_linear.weight`);
    const bytes = new Uint8Array(3 * 64 * 96);
    tensors.set(`${layer}block_sparse_moe.output_linear.weight`, { shape, dtype: "F8_E4M3", data: bytes });
    const config = parseModelConfig(raw, "config.json");
    expect(() => new Weights(writeModelFolder(raw, tensors), config)).toThrow(/a weight has type F8_E4M3/);
  });
});

/** A number of 4 bits: sign, 2 bits of exponent, 1 of mantissa. */
function fromE2m1(bits: number): number {
  const [exponent, mantissa] = [(bits >> 1) & 3, bits & 1];
  return (bits & 8 ? -1 : 1) * (exponent === 0 ? mantissa / 2 : (1 + mantissa / 2) * 2 ** (exponent - 1));
}

describe("MXFP4", () => {
  test("every number at scales from the least to the greatest", () => {
    const blocks = Uint8Array.from({ length: 48 }, (_, i) => (i % 16) + 16 * ((i + 3) % 16));
    const values = widenMxfp4({ blocks, scales: Uint8Array.of(0, 127, 227) });
    for (const [i, value] of values.entries()) {
      const bits = i % 2 === 0 ? blocks[i >> 1] & 15 : blocks[i >> 1] >> 4;
      expect(value).toBe(Math.fround(fromE2m1(bits) * 2 ** [-127, 0, 100][Math.floor(i / 32)]));
    }
    expect(() => assertMxfp4Scales(Uint8Array.of(0, 255, 0), "x")).toThrow(/x: scale 1 of a tensor in mxfp4 is 255/);
    expect(() => assertMxfp4Scales(Uint8Array.of(0, 0, 228), "x")).toThrow(/scale 2/);
  });

  const raw = rawOf("GptOss", { ...few, ...mxfp4 });
  const config = parseModelConfig(raw, "config.json");
  const random = new Random(testSeed());

  /** Random blocks, and scales about 1 / 16; the other tensors as floats. */
  function tensorsInBlocks(): Map<string, TestTensor> {
    const tensors = new Map<string, TestTensor>(randomTensors(raw));
    for (const [name, { shape, data }] of tensors) {
      if (!/_(blocks|scales)$/.test(name)) continue;
      const draw = name.endsWith("_scales") ? () => random.integer(121, 125) : () => random.integer(0, 255);
      tensors.set(name, { shape, dtype: "U8", data: Uint8Array.from(data, draw) });
    }
    return new Map([...tensors].sort(([, a], [, b]) => b.data.BYTES_PER_ELEMENT - a.data.BYTES_PER_ELEMENT));
  }
  const prefix = "model.layers.0.mlp.experts.";

  test("an expert's gates are every other row of blocks, the lower bits first", () => {
    const tensors = tensorsInBlocks();
    const weights = new Weights(writeModelFolder(raw, tensors), config);
    const blocks = tensors.get(`${prefix}gate_up_proj_blocks`)?.data ?? [];
    const scales = tensors.get(`${prefix}gate_up_proj_scales`)?.data ?? [];
    for (const [part, first] of [
      ["gate", 0],
      ["up", 1],
    ] as const) {
      const values = weights.float32(`${prefix}1.${part}_proj.weight`);
      expect(values.length).toBe(96 * 64);
      for (const [i, value] of values.entries()) {
        const row = 192 + 2 * Math.floor(i / 64) + first;
        const block = 2 * row + Math.floor((i % 64) / 32);
        const byte = blocks[block * 16 + ((i % 32) >> 1)];
        expect(value).toBe(fromE2m1(i % 2 === 0 ? byte & 15 : byte >> 4) * 2 ** (scales[block] - 127));
      }
    }
  });

  const spoilt: [string, (tensors: Map<string, TestTensor>) => void, RegExp][] = [
    ["blocks are missing", (tensors) => tensors.delete(`${prefix}down_proj_blocks`), /down_proj_blocks" is missing/],
    ["scales are missing", (tensors) => tensors.delete(`${prefix}down_proj_scales`), /down_proj_scales" is missing/],
    [
      "there are scales for fewer experts",
      (tensors) =>
        tensors.set(`${prefix}down_proj_scales`, { shape: [2, 64, 3], dtype: "U8", data: new Uint8Array(384) }),
      /down_proj_scales" is \[2,64,3\], expected \[3,64,3\]/,
    ],
    [
      "scales are signed",
      (tensors) =>
        tensors.set(`${prefix}down_proj_scales`, { shape: [3, 64, 3], dtype: "I8", data: new Int8Array(576) }),
      /a weight has type U8/,
    ],
    [
      "there are floats beside them",
      (tensors) => tensors.set(`${prefix}down_proj`, { shape: [4], dtype: "U8", data: new Uint8Array(4) }),
      /down_proj" does not belong to GptOss/,
    ],
  ];
  test.each(spoilt)("is refused by name when %s", (_, change, message) => {
    const tensors = tensorsInBlocks();
    change(tensors);
    expect(() => new Weights(writeModelFolder(raw, tensors), config)).toThrow(message);
  });
});

test("Mixtral, OLMoE and Granite: sizes, shares of experts, names", () => {
  const olmoe = { num_experts: 3, num_experts_per_tok: 2 };
  expect(named("Mixtral", few).experts).toMatchObject({ count: 3, ffnSize: 96, normalised: true });
  expect(named("Olmoe", olmoe).experts).toMatchObject({ ffnSize: 96, normalised: false });
  expect(named("Olmoe", { ...olmoe, norm_topk_prob: true }).experts?.normalised).toBe(true);
  expect(named("Olmoe", olmoe).qkNorm).toBe("projection");
  const multipliers = { residual_multiplier: 0.5, logits_scaling: 4 };
  expect(named("GraniteMoe", { ...few, ...multipliers })).toMatchObject({ residualMultiplier: 0.5, logitsDivisor: 4 });
  const names = (architecture: string, fields: Fields) => [
    ...storedShapes(tensorLayout(named(architecture, fields))).keys(),
  ];
  expect(names("Mixtral", few)).toContain("model.layers.0.block_sparse_moe.experts.2.w3.weight");
  expect(names("Olmoe", olmoe)).toContain("model.layers.1.mlp.experts.2.up_proj.weight");
  expect(() => named("Olmoe", { ...olmoe, clip_qkv: 8 })).toThrow(/"clip_qkv" 8 is not supported/);
  expect(named("Mixtral", { ...few, rope_parameters: {} }).rope.inverseFrequencies[1] ** -8).toBeCloseTo(1e6, -3);
});

describe("Gemma 2", () => {
  test("has caps and every other layer slides", () => {
    const config = named("Gemma2", { head_dim: undefined, tie_word_embeddings: undefined });
    const known = { scoreCap: 50, logitCap: 30, headDim: 256, softmaxScale: 1 / 16, tiedEmbeddings: true };
    expect(config).toMatchObject({ ...known, window: { tokens: 4_096, layers: [true, false] } });
    expect(config.qkNorm).toBeUndefined();
    expect(config.rope.sliding).toBeUndefined();
    const without = { attn_logit_softcapping: null, final_logit_softcapping: null };
    const uncapped = named("Gemma2", without);
    expect([uncapped.scoreCap, uncapped.logitCap]).toEqual([undefined, undefined]);
  });

  test.each([0, -1])("a cap of %d is refused", (cap) => {
    expect(() => named("Gemma2", { attn_logit_softcapping: cap })).toThrow(/"attn_logit_softcapping"/);
    expect(() => named("Gemma2", { final_logit_softcapping: cap })).toThrow(/"final_logit_softcapping"/);
  });
});

test("OLMo 3 scales the rotation of layers that see all, and not of those that slide", () => {
  const rope = { rope_type: "yarn", rope_theta: 5e5, factor: 8, original_max_position_embeddings: 64 };
  const config = named("Olmo3", { num_hidden_layers: 5, sliding_window: 9, rope_parameters: rope });
  expect(config.window?.layers).toEqual([true, true, true, false, true]);
  expect(config.rope.attentionFactor).toBeCloseTo(1.208, 3);
  expect(config.rope.sliding?.attentionFactor).toBe(1);
  expect((config.rope.sliding?.inverseFrequencies[1] ?? 0) ** -8 / 5e5).toBeCloseTo(1, 4);
  expect(config.layerNorms.beforeAttention).toBeUndefined();
});

test("GLM-4-0414, Seed-OSS and Ministral", () => {
  expect(named("Glm4")).toMatchObject({ fusedGateUp: true, interleavedRope: true, rope: { rotaryDim: 8 } });
  expect(named("Glm4").layerNorms.afterMlp).toBe("post_mlp_layernorm");
  expect(named("SeedOss")).toMatchObject({ qkvBias: true, outputBias: false });
  expect(named("SeedOss", { attention_out_bias: true }).outputBias).toBe(true);
  expect(named("SeedOss", { head_dim: null }).headDim).toBe(128);
  expect(() => named("Llama", { attention_out_bias: true })).toThrow(/"attention_out_bias" true is not supported/);
  const layers = { sliding_window: 9, layer_types: ["full_attention", "sliding_attention"] };
  expect(named("Ministral", layers).window).toEqual({ tokens: 9, layers: [false, true] });
  expect(named("Ministral", { sliding_window: 9 }).window?.layers).toEqual([true, true]);
  expect(named("Ministral", { sliding_window: null }).window).toBeUndefined();
});
