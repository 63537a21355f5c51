/**
 * The differences between the supported architectures, as data. Each is the Llama block (RMSNorm, rotary attention with
 * grouped heads, gated SiLU) with the differences below. Sources: the `modeling_*` and `configuration_*` files of
 * Hugging Face transformers 5.17.
 */
import type { RopeType } from "./rope.ts";

export interface Family {
  /** Do q, k and v have a bias: always, or as `attention_bias` says, with this default? */
  readonly qkvBias?: "always" | "attention_bias";
  /** RMSNorm over each head of q and k before RoPE. */
  readonly qkNorm?: boolean;
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
  /**
   * How sliding windows are switched on: by `sliding_window` alone, or by `use_sliding_window`; and the default width.
   */
  readonly window: { readonly always: boolean; readonly defaultTokens: number | null };
}

const llama: Family = {
  ropeTypes: ["default", "linear", "ntk", "dynamic", "llama3", "yarn"],
  defaultTheta: 10_000,
  defaultTied: false,
  window: { always: false, defaultTokens: null },
};

export const families = {
  LlamaForCausalLM: llama,
  Qwen2ForCausalLM: { ...llama, qkvBias: "always", window: { always: false, defaultTokens: 4_096 } },
  Qwen3ForCausalLM: { ...llama, qkNorm: true, window: { always: false, defaultTokens: 4_096 } },
  MistralForCausalLM: { ...llama, window: { always: true, defaultTokens: 4_096 } },
  GraniteForCausalLM: { ...llama, multipliers: true },
  SmolLM3ForCausalLM: { ...llama, layersWithoutRope: true, defaultTheta: 2_000_000, defaultTied: true },
  Phi3ForCausalLM: {
    ...llama,
    fusedQkv: true,
    fusedGateUp: true,
    partialRope: 1,
    // For a Phi-3, transformers reads "yarn" and "su" as LongRoPE.
    ropeTypes: ["default"],
    window: { always: true, defaultTokens: null },
  },
  GlmForCausalLM: {
    ...llama,
    qkvBias: "attention_bias",
    fusedGateUp: true,
    partialRope: 0.5,
    interleavedRope: true,
  },
  Ernie4_5ForCausalLM: { ...llama, interleavedRope: true, defaultTheta: 500_000, defaultTied: true },
  HeliumForCausalLM: { ...llama, interleavedRope: true, defaultTheta: 100_000 },
} as const satisfies Readonly<Record<string, Family>>;

export type Architecture = keyof typeof families;

export const isArchitecture = (name: string): name is Architecture => Object.hasOwn(families, name);
