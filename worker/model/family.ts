/**
 * What sets the supported architectures apart, as data. All of them are the Llama block (RMSNorm, rotary attention
 * with grouped heads, gated SiLU) with the differences below; sources: the `modeling_*` and `configuration_*` files of
 * Hugging Face transformers 5.17.
 */
import type { RopeType } from "./rope.ts";

export interface Family {
  /** q, k and v have a bias: always, or where `attention_bias` says so and where it is left out. */
  readonly qkvBias?: "always" | "attention_bias";
  /** RMSNorm over each head of q and k before RoPE. */
  readonly qkNorm?: boolean;
  /** q, k and v are stored as one tensor; gate and up are. */
  readonly fusedQkv?: boolean;
  readonly fusedGateUp?: boolean;
  /** Reads the fields embedding_, attention_ and residual_multiplier and logits_scaling. */
  readonly multipliers?: boolean;
  /** Reads no_rope_layers and no_rope_layer_interval. */
  readonly layersWithoutRope?: boolean;
  /** Reads partial_rotary_factor; what it is where it is left out. */
  readonly partialRope?: number;
  /**
   * RoPE rotates dimensions (2i, 2i + 1) together, not (i, i + rotaryDim / 2): so the checkpoint's q and k are ordered.
   */
  readonly interleavedRope?: boolean;
  readonly ropeTypes: readonly RopeType[];
  /** Where the configuration leaves them out. */
  readonly defaultTheta: number;
  readonly defaultTied: boolean;
  /**
   * Sliding windows: with `sliding_window` alone, or where `use_sliding_window` says so; the width where it is left
   * out.
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
    // transformers reads "yarn" and "su" in a Phi-3 as LongRoPE.
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

export function isArchitecture(name: string): name is Architecture {
  return Object.hasOwn(families, name);
}
