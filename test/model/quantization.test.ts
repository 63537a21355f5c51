/** 8-bit weights with scales: each form against its definition, element by element, and what is refused. */
import { describe, expect, test } from "bun:test";
import { parseModelConfig } from "../../worker/model/config.ts";
import { holdsBfloat16, widen } from "../../worker/model/stored-form.ts";
import { openTokenEmbedder } from "../../worker/model/token-embedder.ts";
import { Weights } from "../../worker/model/weights.ts";
import { tinyConfig, writeModelFolder } from "./folder.ts";
import { type Form, forms, fromE4m3, quantised, type Tensors, writeQuantised } from "./quantised-folder.ts";

const rows = forms["compressed-tensors, integers by rows"];
const blocks = forms["fp8 by blocks"];
/** Phi-3 stores fused matrices, GLM rows of q and k in another order. */
const architectures = ["Qwen3", "Phi3", "Glm"].map((name) => ({
  ...tinyConfig,
  architectures: [`${name}ForCausalLM`],
}));

const up = "model.layers.0.mlp.up_proj.";
const scaleOf = { rows: `${up}weight_scale`, blocks: `${up}weight_scale_inv` };
const withScale =
  (name: string, change: (scale: { shape: number[]; data: Float32Array }) => unknown) => (tensors: Tensors) => {
    const { shape, data } = tensors.get(name) as { shape: number[]; data: Float32Array };
    const scale = { shape: [...shape], data: data.slice() };
    change(scale);
    tensors.set(name, scale);
  };

function weightsOf(config: Record<string, unknown>, form: Form, stored: Tensors): Weights {
  const parsed = parseModelConfig({ ...config, quantization_config: form.config }, "config.json");
  return new Weights(writeQuantised(config, form, stored), parsed);
}

test("every number of e4m3", () => {
  const bytes = Uint8Array.from({ length: 256 }, (_, byte) => byte);
  const values = widen("F8_E4M3", bytes);
  expect([...values]).toEqual(Array.from(bytes, fromE4m3));
  expect([values[0x01], values[0x08], values[0x7e], values[0xb8]]).toEqual([2 ** -9, 2 ** -6, 448, -1]);
});

describe.each(Object.entries(forms))("%s", (_, form) => {
  test.each(architectures)("$architectures", (config) => {
    const { stored, plain } = quantised(config, form);
    const read = weightsOf(config, form, stored);
    const expected = new Weights(writeModelFolder(config, plain), parseModelConfig(config, "config.json"));
    for (const part of ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"]) {
      const name = `model.layers.1.${part}_proj.weight`;
      expect(read.info(name).dtype).toBe(form.dtype);
      expect(read.float32(name)).toEqual(expected.float32(name));
    }
  });

  test("weights are bfloat16 numbers where scales are powers of two", () => {
    const { stored } = quantised(tinyConfig, form);
    const read = weightsOf(tinyConfig, form, stored);
    const words = new Uint32Array(read.float32(`${up}weight`).buffer);
    // bfloat16 is the upper half of a float32.
    const isBfloat16 = words.every((word) => (word & 0xffff) === 0);
    expect(isBfloat16).toBe(form.powersOfTwo === true);
    expect(holdsBfloat16(read.info(`${up}weight`))).toBe(isBfloat16);
  });
});

test.each([
  ["zero, whose weights are zero", 0, true],
  ["the least power of two that is taken", 2 ** -100, true],
  ["a power of two whose products leave bfloat16's normal numbers", 2 ** -126, false],
  ["a power of two whose products leave float32", 2 ** 127, false],
  ["a power of two and a half", 0.375, false],
  ["a negative number", -0.5, false],
])("a scale that is %s", (_, scale, isExact) => {
  const { stored } = quantised(tinyConfig, rows);
  withScale(scaleOf.rows, ({ data }) => data.fill(0.25).fill(scale, 7, 8))(stored);
  expect(holdsBfloat16(weightsOf(tinyConfig, rows, stored).info(`${up}weight`))).toBe(isExact);
});

test("weights without scales are bfloat16 numbers when they are stored so", () => {
  const info = weightsOf(tinyConfig, rows, quantised(tinyConfig, rows).stored).info("model.embed_tokens.weight");
  const dtypes = ["BF16", "F16", "F32"] as const;
  expect(dtypes.map((dtype) => holdsBfloat16({ ...info, dtype }))).toEqual([true, false, false]);
});

test("embeddings in 8 bits make the same vectors", async () => {
  const { stored, plain } = quantised(tinyConfig, rows, /embed_tokens\.weight$/);
  const ids = [Int32Array.of(5, 9, 127), Int32Array.of(0)];
  const vectors = await openTokenEmbedder(writeQuantised(tinyConfig, rows, stored)).embed(ids);
  expect(vectors).toEqual(await openTokenEmbedder(writeModelFolder(tinyConfig, plain)).embed(ids));
});

const damages: [string, Form, (tensors: Tensors) => void, RegExp][] = [
  ["no scales", rows, (tensors) => tensors.delete(scaleOf.rows), /up_proj\.weight_scale" is missing/],
  [
    "scales under another form's name",
    blocks,
    (tensors) => {
      tensors.set(scaleOf.rows, tensors.get(scaleOf.blocks) as never);
      tensors.delete(scaleOf.blocks);
    },
    /up_proj\.weight_scale_inv" is missing/,
  ],
  [
    "a scale too many",
    rows,
    withScale(scaleOf.rows, (scale) => {
      scale.shape[0] = 97;
      scale.data = new Float32Array(97).fill(1);
    }),
    /up_proj\.weight_scale" is \[97,1\], expected \[96,1\]/,
  ],
  [
    "rows and columns exchanged",
    blocks,
    withScale(scaleOf.blocks, (scale) => scale.shape.reverse()),
    /up_proj\.weight_scale_inv" is \[2,4\], expected \[4,2\]/,
  ],
  [
    "a scale that is no number",
    rows,
    withScale(scaleOf.rows, ({ data }) => data.fill(Number.NaN, 7, 8)),
    /scale 7 is NaN/,
  ],
  [
    "an infinite scale",
    blocks,
    withScale(scaleOf.blocks, ({ data }) => data.fill(Infinity, 3, 4)),
    /scale 3 is Infinity/,
  ],
  [
    "scales that are integers",
    rows,
    (tensors) => tensors.set(scaleOf.rows, { shape: [96], dtype: "I8", data: new Int8Array(96) }),
    /weight_scale" has type I8/,
  ],
  [
    "weights of the other 8-bit type",
    rows,
    (tensors) => {
      tensors.set(`${up}weight`, { shape: [96, 64], dtype: "F8_E4M3", data: new Uint8Array(96 * 64) });
      tensors.delete(scaleOf.rows);
    },
    /a weight has type F8_E4M3/,
  ],
  [
    "a tensor that nobody knows",
    rows,
    (tensors) => tensors.set(`${up}weight_zero_point`, { shape: [1], data: new Float32Array(1) }),
    /weight_zero_point" does not belong/,
  ],
];
test.each(damages)("refuses %s", (_, form, damage, message) => {
  const { stored } = quantised(tinyConfig, form);
  expect(() => weightsOf(tinyConfig, form, stored)).not.toThrow();
  damage(stored);
  expect(() => weightsOf(tinyConfig, form, stored)).toThrow(message);
});

test("scales of inputs and of KV are left aside, and 8-bit weights without a configuration refused", () => {
  const { stored } = quantised(tinyConfig, rows);
  for (const name of [`${up}input_scale`, "model.layers.0.self_attn.k_scale"]) {
    stored.set(name, { shape: [], data: Float32Array.of(2) });
  }
  expect(() => weightsOf(tinyConfig, rows, stored)).not.toThrow();
  const plain = parseModelConfig(tinyConfig, "config.json");
  const { stored: alone } = quantised(tinyConfig, rows);
  for (const name of [...alone.keys()]) if (name.endsWith("_scale")) alone.delete(name);
  expect(() => new Weights(writeModelFolder(tinyConfig, alone), plain)).toThrow(
    /has type I8; supported: .*quantization_config/,
  );
});

const changed = (change: (config: never) => unknown) => {
  const config = structuredClone(rows.config);
  change(config as never);
  return config;
};
type Groups = { config_groups: Record<string, { weights: Record<string, unknown> }>; [field: string]: unknown };
const refused: [string, Record<string, unknown>, RegExp][] = [
  ["another method", { quant_method: "gptq", bits: 4 }, /"quantization_config": gptq, 4 bits/],
  ["no method", { bits: 4 }, /"quantization_config": 4 bits/],
  ["e5m2", { quant_method: "fp8", fmt: "e5m2" }, /quantization_config\.fmt" of fp8/],
  ["blocks of nothing", { quant_method: "fp8", weight_block_size: [0, 128] }, /weight_block_size\.0/],
  [
    "packed weights",
    changed((c: Groups) => Object.assign(c, { format: "pack-quantized" })),
    /quantization_config\.format/,
  ],
  [
    "4 bits",
    changed((c: Groups) => Object.assign(c.config_groups.group_0.weights, { num_bits: 4 })),
    /group_0\.weights\.num_bits/,
  ],
  [
    "a zero point",
    changed((c: Groups) => Object.assign(c.config_groups.group_0.weights, { symmetric: false })),
    /weights\.symmetric/,
  ],
  [
    "another order",
    changed((c: Groups) => Object.assign(c.config_groups.group_0.weights, { actorder: "group" })),
    /weights\.actorder/,
  ],
  [
    "groups of no size",
    changed((c: Groups) => Object.assign(c.config_groups.group_0.weights, { strategy: "group" })),
    /group_size": null/,
  ],
  ["no group", changed((c: Groups) => Object.assign(c, { config_groups: {} })), /config_groups": no group/],
  [
    "two forms in one model",
    changed((c: Groups) =>
      Object.assign(c.config_groups, { other: { weights: { num_bits: 8, type: "int", strategy: "tensor" } } }),
    ),
    /groups of different forms/,
  ],
  [
    "sparse weights",
    changed((c: Groups) => Object.assign(c, { sparsity_config: { format: "sparse-24-bitmask" } })),
    /sparsity_config/,
  ],
  [
    "rotated weights",
    changed((c: Groups) => Object.assign(c, { transform_config: { config_groups: {} } })),
    /transform_config/,
  ],
];
test.each(refused)("refuses %s by name", (_, config, message) => {
  expect(() => parseModelConfig({ ...tinyConfig, quantization_config: config }, "config.json")).toThrow(message);
});
