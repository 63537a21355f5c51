import { describe, expect, test } from "bun:test";
import { parseModelConfig } from "../../worker/model/config.ts";
import { tinyConfig } from "./folder.ts";

const parse = (change: Record<string, unknown>) => parseModelConfig({ ...tinyConfig, ...change }, "config.json");
const named = (architecture: string, change: Record<string, unknown> = {}) =>
  parse({ architectures: [`${architecture}ForCausalLM`], ...change });

describe("parseModelConfig", () => {
  test("reads a Qwen3 configuration", () => {
    expect(parse({})).toMatchObject({
      layerCount: 2,
      headDim: 16,
      qkNorm: "head",
      contextTokens: 512,
      eosTokenIds: [2],
    });
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
    const plain = { qkvBias: false, qkNorm: undefined, fusedQkv: false, fusedGateUp: false, tiedEmbeddings: false };
    const untied = { tie_word_embeddings: undefined };
    expect(named("Llama", untied)).toMatchObject(plain);
    expect(named("Mistral", { ...untied, sliding_window: null })).toMatchObject(plain);
    expect(named("Granite", untied)).toMatchObject(plain);
    expect(named("Qwen2", untied)).toMatchObject({ ...plain, qkvBias: true });
    expect(named("Qwen3", untied)).toMatchObject({ ...plain, qkNorm: "head" });
    expect(named("Olmo2", untied)).toMatchObject({ ...plain, qkNorm: "projection" });
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
  const none: [string, string, Record<string, unknown>][] = [
    ["in Mistral 0.3", "Mistral", { sliding_window: null }],
    ["as wide as the context", "Mistral", { sliding_window: 512 }],
    ["as Mistral's own 4,096 in a shorter context", "Mistral", {}],
    ["as left out of Phi-3", "Phi3", {}],
    ["as switched off in Qwen2", "Qwen2", { use_sliding_window: false, sliding_window: 128 }],
    ["in no layer of Qwen2", "Qwen2", { use_sliding_window: true, sliding_window: 128, max_window_layers: 2 }],
    [
      "in no layer by name",
      "Qwen3",
      { use_sliding_window: true, sliding_window: 128, layer_types: ["full_attention", "full_attention"] },
    ],
  ];
  test.each(none)("hide nothing %s", (_, architecture, change) => {
    expect(named(architecture, change).window).toBeUndefined();
  });

  const types = ["full_attention", "sliding_attention"];
  const acting: [string, string, Record<string, unknown>, number, boolean[]][] = [
    ["in all layers of Mistral", "Mistral", { sliding_window: 511 }, 511, [true, true]],
    ["that Mistral has by itself", "Mistral", { max_position_embeddings: 32_768 }, 4_096, [true, true]],
    ["in Phi-3", "Phi3", { sliding_window: 100 }, 100, [true, true]],
    [
      "in the upper layers of Qwen2",
      "Qwen2",
      { use_sliding_window: true, sliding_window: 99, max_window_layers: 1 },
      99,
      [false, true],
    ],
    [
      "in a layer by name",
      "Qwen3",
      { use_sliding_window: true, sliding_window: 128, layer_types: types },
      128,
      [false, true],
    ],
    [
      "in all but each sixth layer of Gemma 3",
      "Gemma3",
      { num_hidden_layers: 7, sliding_window: 9 },
      9,
      [true, true, true, true, true, false, true],
    ],
    [
      "in all but each n-th layer of Gemma 3",
      "Gemma3",
      { num_hidden_layers: 4, sliding_window: 9, sliding_window_pattern: 2 },
      9,
      [true, false, true, false],
    ],
  ];
  test.each(acting)("act %s", (_, architecture, change, tokens, layers) => {
    expect(named(architecture, change).window).toEqual({ tokens, layers });
  });

  test("are refused where they are named and have no width, or not for each layer", () => {
    expect(() => named("Qwen3", { layer_types: types })).toThrow(/"layer_types" "sliding_attention" is not supported/);
    const one = { use_sliding_window: true, sliding_window: 128, layer_types: ["sliding_attention"] };
    expect(() => named("Qwen3", one)).toThrow(/"layer_types" "1 entries for 2 layers"/);
    expect(() => named("Mistral", { sliding_window: 0 })).toThrow(/"sliding_window"/);
  });
});

describe("experts", () => {
  const experts = { num_experts: 8, num_experts_per_tok: 3, moe_intermediate_size: 48 };
  const read = (change: Record<string, unknown> = {}) => named("Qwen3Moe", { ...experts, ...change }).experts;

  test("of Qwen3-MoE, with its defaults", () => {
    expect(read()).toMatchObject({ count: 8, perToken: 3, ffnSize: 48, normalised: false, layers: [true, true] });
    expect(read({ norm_topk_prob: true, mlp_only_layers: [0] })).toMatchObject({
      normalised: true,
      layers: [false, true],
    });
    expect(read({ num_hidden_layers: 4, decoder_sparse_step: 2 })?.layers).toEqual([false, true, false, true]);
    expect(read({ num_experts: undefined, num_local_experts: 4 })?.count).toBe(4);
    expect(named("Qwen3", experts).experts).toBeUndefined();
  });

  const refused: [string, Record<string, unknown>, RegExp][] = [
    ["none", { num_experts: undefined }, /"num_experts" is missing/],
    ["none for a token", { num_experts_per_tok: 0 }, /"num_experts_per_tok"/],
    [
      "more for a token than there are",
      { num_experts_per_tok: 9 },
      /"num_experts_per_tok" 9 is more than "num_experts" 8/,
    ],
    ["no size", { moe_intermediate_size: null }, /"moe_intermediate_size" is missing/],
    ["more than anybody has", { num_experts: 1e6 }, /"num_experts"/],
  ];
  test.each(refused)("are refused: %s", (_, change, message) => {
    expect(() => read(change)).toThrow(message);
  });
});

describe("Gemma 3", () => {
  const gemma = (change: Record<string, unknown> = {}) => named("Gemma3", { rope_parameters: undefined, ...change });

  test("is what its configuration leaves out", () => {
    const config = gemma({
      head_dim: undefined,
      hidden_size: 1_152,
      dtype: "bfloat16",
      tie_word_embeddings: undefined,
    });
    const known = { headDim: 256, softmaxScale: 1 / 16, normsAddOne: true, activation: "gelu", tiedEmbeddings: true };
    // The square root of 1,152 is 33.94; bfloat16 has 34.
    expect(config).toMatchObject({ ...known, embeddingMultiplier: 34, qkNorm: "head" });
    expect(gemma({ hidden_size: 1_152 }).embeddingMultiplier).toBeCloseTo(Math.sqrt(1_152), 10);
    expect(gemma({ query_pre_attn_scalar: 64 }).softmaxScale).toBe(1 / 8);
    // Layers that slide rotate by a base of their own, however wide their window is.
    expect(gemma({ sliding_window: 4_096 }).window).toEqual({ tokens: 4_096, layers: [true, true] });
  });

  test("has two bases of RoPE, in the older fields and in the newer one", () => {
    const bases = ({ rope }: ReturnType<typeof gemma>) =>
      [rope, rope.sliding].map((table) => (table?.inverseFrequencies[1] ?? 0) ** -8);
    const near = (found: number[], expected: number[]) =>
      expect(found.every((base, i) => Math.abs(base / expected[i] - 1) < 1e-4)).toBe(true);
    near(bases(gemma()), [1e6, 1e4]);
    const older = gemma({
      rope_theta: 5e5,
      rope_local_base_freq: 2e4,
      rope_scaling: { rope_type: "linear", factor: 8 },
    });
    near(bases(older), [5e5 * 8 ** 8, 2e4]);
    const full_attention = { rope_type: "linear", rope_theta: 5e5, factor: 8 };
    const newer = gemma({ rope_parameters: { full_attention, sliding_attention: { rope_theta: 2e4 } } });
    near(bases(newer), [5e5 * 8 ** 8, 2e4]);
  });

  const refused: [string, Record<string, unknown>, RegExp][] = [
    ["no width of its window", { sliding_window: null }, /"sliding_window" null/],
    ["caps of scores", { attn_logit_softcapping: 50 }, /"attn_logit_softcapping" 50 is not supported/],
    ["caps of logits", { final_logit_softcapping: 30 }, /"final_logit_softcapping" 30/],
    ["attention to both sides", { use_bidirectional_attention: true }, /"use_bidirectional_attention"/],
    ["another activation", { hidden_activation: "silu" }, /"hidden_activation" "silu"/],
    [
      "a scaled rotation of layers that slide",
      { rope_parameters: { sliding_attention: { rope_type: "yarn" } } },
      /sliding_attention.rope_type" "yarn"/,
    ],
    ["a rotation that is no object", { rope_parameters: { full_attention: 3 } }, /full_attention/],
  ];
  test.each(refused)("is refused with %s", (_, change, message) => {
    expect(() => gemma(change)).toThrow(message);
  });
});
