import { describe, expect, test } from "bun:test";
import { inverseFrequencies, parseModelConfig } from "../../worker/model/config.ts";
import { tinyConfig } from "./folder.ts";

const parse = (change: Record<string, unknown>) => parseModelConfig({ ...tinyConfig, ...change }, "config.json");

describe("parseModelConfig", () => {
  test("reads a Qwen3 configuration", () => {
    expect(parse({})).toMatchObject({ layerCount: 2, headDim: 16, qkNorm: true, contextTokens: 512, eosTokenIds: [2] });
  });

  test("reads RoPE's base from the older and the newer place alike", () => {
    expect(parse({ rope_parameters: { rope_theta: 7, rope_type: "default" } }).rope.theta).toBe(7);
    expect(parse({ rope_parameters: undefined, rope_theta: 9, rope_scaling: null }).rope.theta).toBe(9);
    expect(parse({ rope_parameters: undefined }).rope.theta).toBe(10_000);
  });

  test("derives what may be absent: KV heads, head size, end tokens", () => {
    const config = parse({ num_key_value_heads: null, head_dim: undefined, eos_token_id: null });
    expect(config).toMatchObject({ kvHeadCount: 4, headDim: 16, eosTokenIds: [] });
  });

  const refusals: [string, Record<string, unknown>, RegExp][] = [
    ["an unknown architecture by its name", { architectures: ["MambaForCausalLM"] }, /MambaForCausalLM.*not supported/],
    ["no architecture", { architectures: [] }, /architectures/],
    ["a missing size", { hidden_size: undefined }, /hidden_size/],
    ["a size of zero", { num_hidden_layers: 0 }, /num_hidden_layers/],
    ["a huge size", { vocab_size: 1e12 }, /vocab_size/],
    ["heads that do not divide", { num_key_value_heads: 3 }, /num_attention_heads/],
    ["an odd head size", { head_dim: 12 }, /head size 12/],
    ["another RoPE type, new place", { rope_parameters: { rope_type: "yarn" } }, /yarn/],
    ["another RoPE type, old place", { rope_parameters: undefined, rope_scaling: { type: "linear" } }, /linear/],
    ["biases", { attention_bias: true }, /attention_bias/],
    ["sliding windows", { layer_types: ["full_attention", "sliding_attention"] }, /sliding_attention/],
    ["another activation", { hidden_act: "gelu" }, /hidden_act/],
    ["partial rotation", { partial_rotary_factor: 0.5 }, /partial_rotary_factor/],
  ];
  test.each(refusals)("refuses %s", (_, change, message) => {
    expect(() => parse(change)).toThrow(message);
  });
});

test("inverse frequencies are theta to the power of -2i/d", () => {
  const frequencies = inverseFrequencies({ theta: 10_000, rotaryDim: 4 });
  expect([...frequencies]).toEqual([1, Math.fround(0.01)]);
});
