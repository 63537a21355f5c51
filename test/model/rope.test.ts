/** RoPE's fields, and frequencies worked out by hand from the papers' formulas. */
import { describe, expect, test } from "bun:test";
import { parseModelConfig } from "../../worker/model/config.ts";
import { tinyConfig } from "./folder.ts";

const parse = (change: Record<string, unknown>, architecture = "Qwen3ForCausalLM") =>
  parseModelConfig({ ...tinyConfig, architectures: [architecture], head_dim: 8, ...change }, "config.json").rope;
const scaled = (parameters: Record<string, unknown>, architecture?: string) =>
  parse({ rope_parameters: { rope_theta: 10_000, ...parameters } }, architecture);
/** theta^(-2i/8) for theta 10,000. */
const plain = [1, 0.1, 0.01, 0.001];

function expectFrequencies(actual: Float32Array, expected: readonly number[]): void {
  expect(actual.length).toBe(expected.length);
  expected.forEach((frequency, i) => {
    expect(Math.abs(actual[i] / frequency - 1)).toBeLessThan(1e-6);
  });
}

test("default: theta to the power of -2i/d, in every layer", () => {
  const rope = scaled({ rope_type: "default" });
  expectFrequencies(rope.inverseFrequencies, plain);
  expect(rope).toMatchObject({ rotaryDim: 8, attentionFactor: 1, layers: [true, true] });
});

test("theta is read from the older and the newer place alike, and is the architecture's own where it is left out", () => {
  const second = (change: Record<string, unknown>, architecture?: string) =>
    parse({ rope_parameters: undefined, ...change }, architecture).inverseFrequencies[1];
  expect(second({ rope_parameters: { rope_theta: 16 } })).toBe(0.5);
  expect(second({ rope_theta: 16, rope_scaling: null })).toBe(0.5);
  expect(second({ rope_theta: 16, rope_scaling: { type: "linear", factor: 2 } })).toBe(0.25);
  expect(second({})).toBe(Math.fround(0.1));
  expect(second({}, "SmolLM3ForCausalLM")).toBe(Math.fround(2e6 ** -0.25));
});

test("linear: every frequency by the factor", () => {
  const rope = scaled({ rope_type: "linear", factor: 4 });
  expectFrequencies(rope.inverseFrequencies, [0.25, 0.025, 0.0025, 0.00025]);
});

test("ntk: the highest frequency kept, the lowest by the factor, those between by powers of it", () => {
  const rope = scaled({ rope_type: "ntk", factor: 8 });
  // theta 8^(8/6) = 10,000 x 16, so pair i is divided by 16^(2i/8).
  expectFrequencies(rope.inverseFrequencies, [1, 0.1 / 2, 0.01 / 4, 0.001 / 8]);
  expect(rope).toMatchObject({ rotaryDim: 8, attentionFactor: 1 });
  expect(scaled({ rope_type: "ntk", factor: 1 })).toEqual(scaled({}));
  // Of a head of which 4 dimensions are turned, d is 4: theta times factor squared.
  const partial = scaled({ rope_type: "ntk", factor: 8, partial_rotary_factor: 0.5 }, "GlmForCausalLM");
  expectFrequencies(partial.inverseFrequencies, [1, 0.01 / 8]);
});

test("dynamic is plain within the trained context, past which no prompt is taken", () => {
  const fields = { rope_type: "dynamic", factor: 8 };
  expect(scaled(fields)).toEqual(scaled({}));
  expect(scaled({ ...fields, original_max_position_embeddings: 512 })).toEqual(scaled({}));
});

test("llama3: short wavelengths kept, long ones stretched, between them by the share of turns", () => {
  // 2 pi / 0.01 = 628 tokens a turn: 1,257 make 2 turns, a third of the way from 1 to 4.
  const fields = { rope_type: "llama3", factor: 8, low_freq_factor: 1, high_freq_factor: 4 };
  const rope = scaled({ ...fields, original_max_position_embeddings: 1_257 });
  const turns = (1_257 * 0.01) / (2 * Math.PI);
  const kept = (turns - 1) / 3;
  expectFrequencies(rope.inverseFrequencies, [1, 0.1, 0.01 * (kept + (1 - kept) / 8), 0.001 / 8]);
});

describe("yarn", () => {
  const fields = { rope_type: "yarn", factor: 4, original_max_position_embeddings: 4_096 };

  test("dimensions that turn often are kept, those that turn less than once are stretched", () => {
    // Pairs of 32 turns and of 1 turn over 4,096 tokens: 8 ln(4096 / 64 pi) / (2 ln 1e4) = 1.31 and 2.81; whole: 1 and 3.
    const rope = scaled(fields);
    expectFrequencies(rope.inverseFrequencies, [1, 0.1, 0.01 * (0.5 + 0.5 / 4), 0.001 / 4]);
    expect(rope.attentionFactor).toBeCloseTo(0.1 * Math.log(4) + 1, 12);
  });

  test("without truncation the ramp's ends are not whole", () => {
    const fast = (8 * Math.log(4_096 / (64 * Math.PI))) / (2 * Math.log(1e4));
    const slow = (8 * Math.log(4_096 / (2 * Math.PI))) / (2 * Math.log(1e4));
    const stretched = (2 - fast) / (slow - fast);
    const rope = scaled({ ...fields, truncate: false });
    expectFrequencies(rope.inverseFrequencies, [1, 0.1, 0.01 * (stretched / 4 + 1 - stretched), 0.001 / 4]);
  });

  test("the attention factor is given, or follows from the mscale fields", () => {
    expect(scaled({ ...fields, attention_factor: 1.5 }).attentionFactor).toBe(1.5);
    const ratio = (0.1 * 0.7 * Math.log(4) + 1) / (0.1 * 2 * Math.log(4) + 1);
    expect(scaled({ ...fields, mscale: 0.7, mscale_all_dim: 2 }).attentionFactor).toBeCloseTo(ratio, 12);
    expect(scaled({ ...fields, factor: 1 }).attentionFactor).toBe(1);
  });

  test("the original context, where it is left out, is the context", () => {
    const left = { ...fields, original_max_position_embeddings: undefined };
    const given = { ...fields, original_max_position_embeddings: 512 };
    const without = JSON.parse(JSON.stringify({ rope_theta: 10_000, ...left }));
    expect(parse({ rope_parameters: without })).toEqual(scaled(given));
  });
});

test("partial rotation in Phi-3 and GLM alone", () => {
  const rope = scaled({ partial_rotary_factor: 0.5 }, "Phi3ForCausalLM");
  expect(rope.rotaryDim).toBe(4);
  expectFrequencies(rope.inverseFrequencies, [1, 0.01]);
  expect(parse({ partial_rotary_factor: 0.5 }, "Phi3ForCausalLM").rotaryDim).toBe(4);
  expect(scaled({}, "GlmForCausalLM").rotaryDim).toBe(4);
  expect(scaled({ partial_rotary_factor: 1 }, "GlmForCausalLM").rotaryDim).toBe(8);
  expect(() => scaled({ partial_rotary_factor: 0.5 })).toThrow(/"partial_rotary_factor" 0.5/);
  expect(() => scaled({ partial_rotary_factor: 0.4 }, "Phi3ForCausalLM")).toThrow(/"partial_rotary_factor" 0.4/);
});

test("layers without RoPE: listed, or one in so many", () => {
  const layers = (change: Record<string, unknown>, architecture = "SmolLM3ForCausalLM") =>
    parse({ num_hidden_layers: 5, ...change }, architecture).layers;
  expect(layers({ no_rope_layers: [1, 0, 1, 1, 0, 0] })).toEqual([true, false, true, true, false]);
  expect(layers({})).toEqual([true, true, true, false, true]);
  expect(layers({ no_rope_layer_interval: 2 })).toEqual([true, false, true, false, true]);
  expect(layers({ no_rope_layers: [0] }, "LlamaForCausalLM")).toEqual([true, true, true, true, true]);
  expect(() => layers({ no_rope_layers: [1, 0] })).toThrow(/"no_rope_layers" has 2 entries for 5 layers/);
  expect(() => layers({ no_rope_layers: [1, 0, 2, 1, 1] })).toThrow(/no_rope_layers.2/);
});

const llama3 = { rope_type: "llama3", factor: 8, low_freq_factor: 1, high_freq_factor: 4 };
const refusals: [string, Record<string, unknown>, RegExp][] = [
  ["another type, in the newer place", { rope_parameters: { rope_type: "longrope" } }, /rope_parameters.*longrope/],
  ["another type, in the older place", { rope_scaling: { type: "mrope", factor: 2 } }, /rope_scaling.*mrope/],
  ["parameters for each kind of layer", { rope_parameters: { full_attention: {} } }, /full_attention/],
  ["a scaling without its factor", { rope_scaling: { type: "linear" } }, /"rope_scaling.factor"/],
  ["ntk without its factor", { rope_scaling: { type: "ntk" } }, /"rope_scaling.factor"/],
  [
    "a base that would grow with the prompt",
    { rope_scaling: { type: "dynamic", factor: 2, original_max_position_embeddings: 256 } },
    /"rope_scaling.original_max_position_embeddings": must not be below max_position_embeddings: .* K is stored once/,
  ],
  [
    "dynamic with an alpha, which some read as another formula",
    { rope_scaling: { type: "dynamic", factor: 1, alpha: 1_000 } },
    /"rope_scaling.alpha": is not supported; rope_type "ntk"/,
  ],
  ["pairs that its architecture does not have", { rope_interleaved: true }, /"rope_interleaved" true .*Qwen3/],
  ["the same by its other name", { rope_interleave: true }, /"rope_interleave" true .*Qwen3/],
  ["a pairing that is neither", { rope_interleaved: 1 }, /"rope_interleaved"/],
  ["a factor below 1", { rope_scaling: { type: "linear", factor: 0.5 } }, /"rope_scaling.factor"/],
  ["llama3 without its context", { rope_parameters: llama3 }, /original_max_position_embeddings/],
  [
    "a ramp that does not rise",
    { rope_parameters: { ...llama3, high_freq_factor: 1, original_max_position_embeddings: 64 } },
    /"rope_parameters.high_freq_factor".*low_freq_factor/,
  ],
  ["a theta of 1", { rope_parameters: { rope_theta: 1 } }, /"rope_parameters.rope_theta"/],
  ["a partial factor that is no number", { rope_parameters: { partial_rotary_factor: "x" } }, /partial_rotary_factor/],
];
test.each(refusals)("refuses %s", (_, change, message) => {
  expect(() => parse(change)).toThrow(message);
});

test("YaRN in a Phi-3, which transformers reads as LongRoPE, is refused", () => {
  const fields = { rope_type: "yarn", factor: 4, original_max_position_embeddings: 64 };
  expect(() => scaled(fields, "Phi3ForCausalLM")).toThrow(/"rope_parameters.rope_type" "yarn".*Phi3ForCausalLM/);
});
