/**
 * The differences between the supported architectures, as data. Each is the Llama block (RMSNorm, rotary attention with
 * grouped heads, gated SiLU) with the differences below. Sources: the `modeling_*` and `configuration_*` files of
 * Hugging Face transformers 5.17.
 */
import type { RopeType } from "./rope.ts";

export type QkNorm = "head" | "projection";

/** silu and gelu (as tanh approximates it) of the gate, times up; clamped: gpt-oss's, of cut gates and ups (kernels/abi.h). */
export type Activation = "silu" | "gelu" | "clamped";

/** The stored names of a layer's norms, by their places; a place without a name has no norm. */
export interface LayerNorms {
  readonly beforeAttention?: string;
  /** Over what attention, or the MLP, adds to the residual stream. */
  readonly afterAttention?: string;
  readonly beforeMlp?: string;
  readonly afterMlp?: string;
}

/** Of a Llama and most others. */
export const llamaNorms: LayerNorms = { beforeAttention: "input_layernorm", beforeMlp: "post_attention_layernorm" };

export interface Family {
  /** Do q, k and v have a bias: always, or as `attention_bias` says, with this default? */
  readonly qkvBias?: "always" | "attention_bias";
  /** Has the projection behind attention a bias: as this field says; `attention_out_bias` is false where it is absent. */
  readonly outputBias?: "attention_bias" | "attention_out_bias";
  /** Each head has a sink, part of its softmax that no token gets (gpt-oss). */
  readonly sinks?: boolean;
  /** RMSNorm of q and k before RoPE: over each head, or over all heads of a row together. */
  readonly qkNorm?: QkNorm;
  /** Where a layer's norms stand and what they are called; default: those of a Llama. */
  readonly layerNorms?: LayerNorms;
  /** q, k and v are stored as one tensor, and so are gate and up. */
  readonly fusedQkv?: boolean;
  readonly fusedGateUp?: boolean;
  /** The configuration may have embedding_multiplier, attention_multiplier, residual_multiplier and logits_scaling. */
  readonly multipliers?: boolean;
  /** The configuration may have no_rope_layers and no_rope_layer_interval. */
  readonly layersWithoutRope?: boolean;
  /** The configuration may have partial_rotary_factor; this is its default. */
  readonly partialRope?: number;
  /**
   * RoPE rotates dimensions (2i, 2i + 1) together, not (i, i + rotaryDim / 2); the checkpoint stores q and k in that
   * order.
   */
  readonly interleavedRope?: boolean;
  readonly ropeTypes: readonly RopeType[];
  /** Defaults of fields that the configuration leaves out. */
  readonly defaultTheta: number;
  readonly defaultTied: boolean;
  /** How sliding windows are switched on, and their default width. */
  readonly window: { readonly by: WindowSwitch; readonly defaultTokens: number | null };
  /** Layers have experts; default: one MLP that every row takes. */
  readonly experts?: ExpertFamily;
  /** An RMSNorm multiplies by 1 + w, not by w (Gemma). */
  readonly normsAddOne?: boolean;
  /** Default: `silu`. */
  readonly activation?: Activation;
  /** The token embeddings are multiplied by the square root of their size, rounded to the stored type (Gemma). */
  readonly scalesEmbeddings?: boolean;
  /** Layers that slide rotate by a base of their own, of this default (Gemma 3), or without the others' scaling (OLMo 3). */
  readonly slidingTheta?: number | "plain";
  /** RoPE where the configuration says nothing of it; default: as it is. */
  readonly defaultRope?: Readonly<Record<string, unknown>>;
  /** Defaults of `attn_logit_softcapping` and `final_logit_softcapping`, which others do not have (Gemma 2). */
  readonly caps?: { readonly scores: number; readonly logits: number };
  /** Default: hidden size by heads. */
  readonly defaultHeadDim?: number;
  /** The scores are divided by the root of `query_pre_attn_scalar`, by default 256, not of the head size (Gemma). */
  readonly scoreSizeField?: boolean;
}

/**
 * `sliding_window`: all layers slide where it is a number; `layer_types`: those that it names, and without it all; `use_sliding_window`: those that `layer_types` names, or all
 * from `max_window_layers` on, slide if that is true; a number n: those that `layer_types` names, or all but each n-th.
 */
export type WindowSwitch = "sliding_window" | "layer_types" | "use_sliding_window" | number;

/** Where a layer's router and experts are stored, by names below the layer. */
export interface ExpertFamily {
  /** Without `.weight`. */
  readonly router: string;
  readonly stored: EachExpert | StackedExperts;
  /** Router and experts have biases. */
  readonly biases?: boolean;
  /** The field that has an expert's size. */
  readonly sizeField: "moe_intermediate_size" | "intermediate_size";
  /** Weights of a row's experts add up to 1: always, or as `norm_topk_prob` says. */
  readonly normalised: "always" | "norm_topk_prob";
}

/** Tensors of each expert, whose number stands for `N`, without `.weight`. */
export interface EachExpert {
  readonly gate: string;
  readonly up: string;
  readonly down: string;
}

/** Tensors of all experts together: gates and ups [experts, 2 size, hidden], and [experts, hidden, size]. */
export interface StackedExperts {
  readonly gateUp: string;
  readonly down: string;
  /** Inputs stand before outputs, gates and ups alternate, and there may be MXFP4 blocks in their place (gpt-oss). */
  readonly alternating: boolean;
}

/** Of Qwen3-MoE and OLMoE. */
const mlpExperts = {
  router: "mlp.gate",
  stored: {
    gate: "mlp.experts.N.gate_proj",
    up: "mlp.experts.N.up_proj",
    down: "mlp.experts.N.down_proj",
  },
  normalised: "norm_topk_prob",
} as const;

/** Of Gemma and of others with norms on both sides. */
const gemmaNorms: LayerNorms = {
  beforeAttention: "input_layernorm",
  afterAttention: "post_attention_layernorm",
  beforeMlp: "pre_feedforward_layernorm",
  afterMlp: "post_feedforward_layernorm",
};

const llama: Family = {
  ropeTypes: ["default", "linear", "ntk", "dynamic", "llama3", "yarn"],
  defaultTheta: 10_000,
  defaultTied: false,
  window: { by: "use_sliding_window", defaultTokens: null },
};

const qwenWindow = { by: "use_sliding_window", defaultTokens: 4_096 } as const;

export const families = {
  LlamaForCausalLM: llama,
  Qwen2ForCausalLM: { ...llama, qkvBias: "always", window: qwenWindow },
  Qwen3ForCausalLM: { ...llama, qkNorm: "head", window: qwenWindow },
  Qwen3MoeForCausalLM: {
    ...llama,
    qkNorm: "head",
    window: qwenWindow,
    experts: { ...mlpExperts, sizeField: "moe_intermediate_size" },
  },
  OlmoeForCausalLM: {
    ...llama,
    qkNorm: "projection",
    experts: { ...mlpExperts, sizeField: "intermediate_size" },
  },
  MixtralForCausalLM: {
    ...llama,
    defaultTheta: 1_000_000,
    window: { by: "sliding_window", defaultTokens: null },
    experts: {
      router: "block_sparse_moe.gate",
      stored: {
        gate: "block_sparse_moe.experts.N.w1",
        up: "block_sparse_moe.experts.N.w3",
        down: "block_sparse_moe.experts.N.w2",
      },
      sizeField: "intermediate_size",
      normalised: "always",
    },
  },
  GraniteMoeForCausalLM: {
    ...llama,
    multipliers: true,
    experts: {
      router: "block_sparse_moe.router.layer",
      stored: {
        gateUp: "block_sparse_moe.input_linear.weight",
        down: "block_sparse_moe.output_linear.weight",
        alternating: false,
      },
      sizeField: "intermediate_size",
      normalised: "always",
    },
  },
  GptOssForCausalLM: {
    ...llama,
    qkvBias: "attention_bias",
    outputBias: "attention_bias",
    sinks: true,
    activation: "clamped",
    defaultHeadDim: 64,
    experts: {
      router: "mlp.router",
      stored: { gateUp: "mlp.experts.gate_up_proj", down: "mlp.experts.down_proj", alternating: true },
      biases: true,
      sizeField: "intermediate_size",
      normalised: "always",
    },
    ropeTypes: ["default", "yarn"],
    defaultTheta: 150_000,
    defaultRope: {
      rope_type: "yarn",
      factor: 32,
      beta_fast: 32,
      beta_slow: 1,
      truncate: false,
      original_max_position_embeddings: 4_096,
    },
    window: { by: 2, defaultTokens: 128 },
  },
  MistralForCausalLM: { ...llama, window: { by: "sliding_window", defaultTokens: 4_096 } },
  MinistralForCausalLM: { ...llama, window: { by: "layer_types", defaultTokens: 4_096 } },
  SeedOssForCausalLM: {
    ...llama,
    qkvBias: "attention_bias",
    outputBias: "attention_out_bias",
    defaultHeadDim: 128,
  },
  GraniteForCausalLM: { ...llama, multipliers: true },
  SmolLM3ForCausalLM: { ...llama, layersWithoutRope: true, defaultTheta: 2_000_000, defaultTied: true },
  Phi3ForCausalLM: {
    ...llama,
    fusedQkv: true,
    fusedGateUp: true,
    partialRope: 1,
    // For a Phi-3, transformers reads "yarn" and "su" as LongRoPE.
    ropeTypes: ["default"],
    window: { by: "sliding_window", defaultTokens: null },
  },
  GlmForCausalLM: {
    ...llama,
    qkvBias: "attention_bias",
    fusedGateUp: true,
    partialRope: 0.5,
    interleavedRope: true,
  },
  Glm4ForCausalLM: {
    ...llama,
    defaultHeadDim: 128,
    qkvBias: "attention_bias",
    fusedGateUp: true,
    partialRope: 0.5,
    interleavedRope: true,
    layerNorms: {
      beforeAttention: "input_layernorm",
      afterAttention: "post_self_attn_layernorm",
      beforeMlp: "post_attention_layernorm",
      afterMlp: "post_mlp_layernorm",
    },
  },
  Ernie4_5ForCausalLM: { ...llama, interleavedRope: true, defaultTheta: 500_000, defaultTied: true },
  Olmo2ForCausalLM: {
    ...llama,
    qkNorm: "projection",
    layerNorms: { afterAttention: "post_attention_layernorm", afterMlp: "post_feedforward_layernorm" },
  },
  // Its layers that slide take RoPE as it is, as the report on OLMo 3 has it; some versions of transformers scale all.
  Olmo3ForCausalLM: {
    ...llama,
    qkNorm: "projection",
    layerNorms: { afterAttention: "post_attention_layernorm", afterMlp: "post_feedforward_layernorm" },
    slidingTheta: "plain",
    window: { by: 4, defaultTokens: 4_096 },
  },
  Gemma2ForCausalLM: {
    ...llama,
    layerNorms: gemmaNorms,
    normsAddOne: true,
    activation: "gelu",
    scalesEmbeddings: true,
    ropeTypes: ["default"],
    defaultTied: true,
    defaultHeadDim: 256,
    scoreSizeField: true,
    caps: { scores: 50, logits: 30 },
    window: { by: 2, defaultTokens: 4_096 },
  },
  Gemma3ForCausalLM: {
    ...llama,
    qkNorm: "head",
    layerNorms: gemmaNorms,
    normsAddOne: true,
    activation: "gelu",
    scalesEmbeddings: true,
    ropeTypes: ["default", "linear"],
    defaultTheta: 1_000_000,
    slidingTheta: 10_000,
    defaultTied: true,
    defaultHeadDim: 256,
    scoreSizeField: true,
    window: { by: 6, defaultTokens: 4_096 },
  },
  HeliumForCausalLM: { ...llama, interleavedRope: true, defaultTheta: 100_000 },
} as const satisfies Readonly<Record<string, Family>>;

export type Architecture = keyof typeof families;

export const isArchitecture = (name: string): name is Architecture => Object.hasOwn(families, name);
