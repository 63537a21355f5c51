import { describe, expect, test } from "bun:test";
import { parseModelConfig } from "../../worker/model/config.ts";
import { tinyConfig } from "./folder.ts";

const parse = (change: Record<string, unknown>) => parseModelConfig({ ...tinyConfig, ...change }, "config.json");
const named = (architecture: string, change: Record<string, unknown> = {}) =>
  parse({ architectures: [`${architecture}ForCausalLM`], ...change });

describe("parseModelConfig", () => {
  test("reads a Qwen3 configuration", () => {
    expect(parse({})).toMatchObject({ layerCount: 2, headDim: 16, qkNorm: true, contextTokens: 512, eosTokenIds: [2] });
  });

  test("derives what may be absent: KV heads, head size, end tokens", () => {
    const config = parse({ num_key_value_heads: null, head_dim: undefined, eos_token_id: null });
    expect(config).toMatchObject({ kvHeadCount: 4, headDim: 16, eosTokenIds: [] });
  });

  test("an architecture without multipliers has none, whatever its fields say", () => {
    const fields = { embedding_multiplier: 12, attention_multiplier: 3, residual_multiplier: 0.2, logits_scaling: 8 };
    const none = { softmaxScale: 0.25, embeddingMultiplier: 1, residualMultiplier: 1, logitsDivisor: 1 };
    expect(named("Llama", fields)).toMatchObject(none);
    const read = { softmaxScale: 3, embeddingMultiplier: 12, residualMultiplier: 0.2, logitsDivisor: 8 };
    expect(named("Granite", fields)).toMatchObject(read);
    expect(named("Granite")).toMatchObject({ ...none, softmaxScale: 1 });
  });

  test("what only the architecture says: biases, head norms, fused projections, tied embeddings", () => {
    const plain = { qkvBias: false, qkNorm: false, fusedQkv: false, fusedGateUp: false, tiedEmbeddings: false };
    const untied = { tie_word_embeddings: undefined };
    expect(named("Llama", untied)).toMatchObject(plain);
    expect(named("Mistral", { ...untied, sliding_window: null })).toMatchObject(plain);
    expect(named("Granite", untied)).toMatchObject(plain);
    expect(named("Qwen2", untied)).toMatchObject({ ...plain, qkvBias: true });
    expect(named("Qwen3", untied)).toMatchObject({ ...plain, qkNorm: true });
    expect(named("Phi3", untied)).toMatchObject({ ...plain, fusedQkv: true, fusedGateUp: true });
    expect(named("SmolLM3", untied)).toMatchObject({ ...plain, tiedEmbeddings: true });
    expect(named("Glm", untied)).toMatchObject({ ...plain, qkvBias: true, fusedGateUp: true });
    expect(named("Ernie4_5", untied)).toMatchObject({ ...plain, tiedEmbeddings: true });
    expect(named("Helium", untied)).toMatchObject(plain);
  });

  test("GLM has the biases of q, k and v that its configuration says", () => {
    expect(named("Glm", { attention_bias: true }).qkvBias).toBe(true);
    expect(named("Glm", { attention_bias: false }).qkvBias).toBe(false);
  });

  test("the architecture says which dimensions RoPE pairs; a field may repeat it", () => {
    for (const architecture of ["Glm", "Ernie4_5", "Helium"]) {
      expect(named(architecture).interleavedRope).toBe(true);
      expect(named(architecture, { rope_interleave: true, rope_interleaved: true }).interleavedRope).toBe(true);
      expect(() => named(architecture, { rope_interleave: false })).toThrow(/"rope_interleave" false is not supported/);
    }
    expect(named("Llama", { rope_interleaved: false }).interleavedRope).toBe(false);
    expect(named("Phi3").interleavedRope).toBe(false);
  });

  const refusals: [string, Record<string, unknown>, RegExp][] = [
    ["an unknown architecture by its name", { architectures: ["MambaForCausalLM"] }, /MambaForCausalLM.*not supported/],
    ["a name that every object has", { architectures: ["toString"] }, /toString.*not supported/],
    ["no architecture", { architectures: [] }, /architectures/],
    ["a missing size", { hidden_size: undefined }, /hidden_size/],
    ["a size of zero", { num_hidden_layers: 0 }, /num_hidden_layers/],
    ["a huge size", { vocab_size: 1e12 }, /vocab_size/],
    ["heads that do not divide", { num_key_value_heads: 3 }, /num_attention_heads/],
    ["an odd head size", { head_dim: 12 }, /head size 12/],
    ["biases", { attention_bias: true }, /attention_bias/],
    ["biases of the MLP", { mlp_bias: true }, /mlp_bias/],
    ["biases of everything", { use_bias: true }, /use_bias/],
    ["another kind of layer", { layer_types: ["full_attention", "linear_attention"] }, /linear_attention/],
    ["another activation", { hidden_act: "gelu" }, /hidden_act/],
    [
      "weights in 4 bits",
      { quantization_config: { quant_method: "awq", bits: 4 } },
      /quantization_config": awq, 4 bits/,
    ],
    ["a multiplier of zero", { embedding_multiplier: 0 }, /embedding_multiplier/],
  ];
  test.each(refusals)("refuses %s", (_, change, message) => {
    expect(() => parse(change)).toThrow(message);
  });
});

describe("sliding windows", () => {
  const acting = { use_sliding_window: true, sliding_window: 128 };
  const allowed: [string, string, Record<string, unknown>][] = [
    ["none in Mistral 0.3", "Mistral", { sliding_window: null }],
    ["as wide as the context", "Mistral", { sliding_window: 512 }],
    ["Mistral's own 4,096 in a shorter context", "Mistral", {}],
    ["left out of Phi-3", "Phi3", {}],
    ["switched off in Qwen2", "Qwen2", { use_sliding_window: false, sliding_window: 128 }],
    ["in no layer of Qwen2", "Qwen2", { use_sliding_window: true, sliding_window: 128, max_window_layers: 2 }],
    [
      "in no layer by name",
      "Qwen3",
      { use_sliding_window: true, sliding_window: 128, layer_types: ["full_attention"] },
    ],
  ];
  test.each(allowed)("may be %s", (_, architecture, change) => {
    expect(named(architecture, change).architecture).toStartWith(architecture);
  });

  const refused: [string, string, Record<string, unknown>, RegExp][] = [
    ["that acts in Mistral", "Mistral", { sliding_window: 511 }, /"sliding_window" 511/],
    ["that Mistral has by itself", "Mistral", { max_position_embeddings: 32_768 }, /"sliding_window" 4096/],
    ["that acts in Phi-3", "Phi3", { sliding_window: 100 }, /"sliding_window" 100/],
    ["in the upper layers", "Qwen2", { use_sliding_window: true, sliding_window: 99, max_window_layers: 1 }, /99/],
    [
      "in a layer by name, of a width",
      "Qwen3",
      { ...acting, layer_types: ["sliding_attention"] },
      /"sliding_window" 128/,
    ],
    ["in a layer by name", "Qwen3", { layer_types: ["full_attention", "sliding_attention"] }, /sliding_attention/],
  ];
  test.each(refused)("are refused %s", (_, architecture, change, message) => {
    expect(() => named(architecture, change)).toThrow(message);
  });
});
