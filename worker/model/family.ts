/**
 * The differences between the supported architectures, as data. Each is the Llama block (RMSNorm, rotary attention with
 * grouped heads, gated SiLU) with the differences below. Sources: the `modeling_*` and `configuration_*` files of
 * Hugging Face transformers 5.17.
 */
import type { RopeType } from "./rope.ts";

export type QkNorm = "head" | "projection";

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
  /** Default: `silu` by `hidden_act`. */
  readonly activation?: "gelu";
  /** The token embeddings are multiplied by the square root of their size, rounded to the stored type (Gemma). */
  readonly scalesEmbeddings?: boolean;
  /** Layers that slide rotate by a base of their own, of this default (Gemma 3). */
  readonly slidingTheta?: number;
  /** The configuration has `query_pre_attn_scalar` in place of the head size; this is the default of both (Gemma). */
  readonly defaultHeadDim?: number;
}

/**
 * `sliding_window`: all layers slide where it is a number; `use_sliding_window`: those that `layer_types` names, or all
 * from `max_window_layers` on, slide if that is true; a number n: those that `layer_types` names, or all but each n-th.
 */
export type WindowSwitch = "sliding_window" | "use_sliding_window" | number;

/** Stored names of the router and the experts, below the layer; `N` stands for the expert's number. */
export interface ExpertFamily {
  readonly router: string;
  readonly gate: string;
  readonly up: string;
  readonly down: string;
}

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
    experts: {
      router: "mlp.gate",
      gate: "mlp.experts.N.gate_proj",
      up: "mlp.experts.N.up_proj",
      down: "mlp.experts.N.down_proj",
    },
  },
  MistralForCausalLM: { ...llama, window: { by: "sliding_window", defaultTokens: 4_096 } },
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
  Ernie4_5ForCausalLM: { ...llama, interleavedRope: true, defaultTheta: 500_000, defaultTied: true },
  Olmo2ForCausalLM: {
    ...llama,
    qkNorm: "projection",
    layerNorms: { afterAttention: "post_attention_layernorm", afterMlp: "post_feedforward_layernorm" },
  },
  Gemma3ForCausalLM: {
    ...llama,
    qkNorm: "head",
    layerNorms: {
      beforeAttention: "input_layernorm",
      afterAttention: "post_attention_layernorm",
      beforeMlp: "pre_feedforward_layernorm",
      afterMlp: "post_feedforward_layernorm",
    },
    normsAddOne: true,
    activation: "gelu",
    scalesEmbeddings: true,
    ropeTypes: ["default", "linear"],
    defaultTheta: 1_000_000,
    slidingTheta: 10_000,
    defaultTied: true,
    defaultHeadDim: 256,
    window: { by: 6, defaultTokens: 4_096 },
  },
  HeliumForCausalLM: { ...llama, interleavedRope: true, defaultTheta: 100_000 },
} as const satisfies Readonly<Record<string, Family>>;

export type Architecture = keyof typeof families;

export const isArchitecture = (name: string): name is Architecture => Object.hasOwn(families, name);
