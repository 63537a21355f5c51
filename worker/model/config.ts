/**
 * `config.json` of a Hugging Face model folder -> ModelConfig. Reads the older top-level RoPE keys
 * (`rope_theta`, `rope_scaling`) and the newer `rope_parameters`. Whatever would change the numbers and
 * is not supported is an error that names the field; nothing is skipped in silence.
 */
import { z } from "zod";
import { ModelError } from "./model-error.ts";

export interface RopeConfig {
  readonly theta: number;
  /** Leading dimensions of a head that are rotated. */
  readonly rotaryDim: number;
}

export interface ModelConfig {
  readonly architecture: "LlamaForCausalLM" | "Qwen3ForCausalLM";
  readonly layerCount: number;
  readonly hiddenSize: number;
  readonly headCount: number;
  readonly kvHeadCount: number;
  readonly headDim: number;
  readonly ffnSize: number;
  readonly vocabSize: number;
  readonly rmsNormEps: number;
  readonly tiedEmbeddings: boolean;
  /** Qwen3: RMSNorm over each head of q and k before RoPE. */
  readonly qkNorm: boolean;
  readonly rope: RopeConfig;
  readonly contextTokens: number;
  readonly eosTokenIds: readonly number[];
}

const dimension = (max: number) => z.number().int().min(1).max(max);
const tokenId = z.number().int().min(0).max(1_000_000);
const rope = z.object({ rope_theta: z.number().positive().optional(), rope_type: z.string().optional() }).loose();

const schema = z
  .object({
    architectures: z.array(z.string()).length(1),
    num_hidden_layers: dimension(512),
    hidden_size: dimension(65_536),
    num_attention_heads: dimension(1_024),
    num_key_value_heads: dimension(1_024).nullish(),
    head_dim: dimension(256).nullish(),
    intermediate_size: dimension(524_288),
    vocab_size: dimension(1_000_000),
    rms_norm_eps: z.number().positive().max(1),
    tie_word_embeddings: z.boolean().default(false),
    hidden_act: z.string().default("silu"),
    attention_bias: z.boolean().nullish(),
    mlp_bias: z.boolean().nullish(),
    use_sliding_window: z.boolean().nullish(),
    layer_types: z.array(z.string()).nullish(),
    max_position_embeddings: dimension(16_777_216),
    eos_token_id: z.union([tokenId, z.array(tokenId).max(64)]).nullish(),
    rope_theta: z.number().positive().nullish(),
    rope_scaling: rope.extend({ type: z.string().optional() }).nullish(),
    rope_parameters: rope.nullish(),
    partial_rotary_factor: z.number().positive().max(1).nullish(),
  })
  .loose();

const architectures = { LlamaForCausalLM: { qkNorm: false }, Qwen3ForCausalLM: { qkNorm: true } } as const;

/** @throws ModelError naming the field. `file` is only for the message. */
export function parseModelConfig(json: unknown, file: string): ModelConfig {
  const named = z
    .object({ architectures: z.array(z.string()).length(1) })
    .loose()
    .safeParse(json);
  const architecture = named.data?.architectures[0];
  if (architecture === undefined) throw new ModelError(`${file}: "architectures" must name one architecture`);
  if (!(architecture in architectures)) {
    const known = Object.keys(architectures).join(", ");
    throw new ModelError(`${file}: architecture "${architecture}" is not supported (supported: ${known})`);
  }
  const parsed = schema.safeParse(json);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    throw new ModelError(`${file}: "${issue?.path.join(".")}": ${issue?.message}`);
  }
  const raw = parsed.data;
  refuseUnsupported(raw, file);
  const headCount = raw.num_attention_heads;
  const kvHeadCount = raw.num_key_value_heads ?? headCount;
  if (headCount % kvHeadCount !== 0) {
    throw new ModelError(`${file}: "num_attention_heads" ${headCount} is not a multiple of "num_key_value_heads"`);
  }
  const headDim = raw.head_dim ?? raw.hidden_size / headCount;
  if (!Number.isInteger(headDim) || headDim % 8 !== 0 || headDim > 256) {
    throw new ModelError(`${file}: head size ${headDim} is not a multiple of 8 up to 256`);
  }
  return {
    architecture: architecture as ModelConfig["architecture"],
    layerCount: raw.num_hidden_layers,
    hiddenSize: raw.hidden_size,
    headCount,
    kvHeadCount,
    headDim,
    ffnSize: raw.intermediate_size,
    vocabSize: raw.vocab_size,
    rmsNormEps: raw.rms_norm_eps,
    tiedEmbeddings: raw.tie_word_embeddings,
    qkNorm: architectures[architecture as ModelConfig["architecture"]].qkNorm,
    rope: parseRope(raw, headDim, file),
    contextTokens: raw.max_position_embeddings,
    eosTokenIds: [raw.eos_token_id ?? []].flat(),
  };
}

type RawConfig = z.infer<typeof schema>;

function refuseUnsupported(raw: RawConfig, file: string): void {
  const refuse = (field: string, value: unknown) => {
    throw new ModelError(`${file}: "${field}" ${JSON.stringify(value)} is not supported`);
  };
  if (raw.hidden_act !== "silu") refuse("hidden_act", raw.hidden_act);
  if (raw.attention_bias) refuse("attention_bias", true);
  if (raw.mlp_bias) refuse("mlp_bias", true);
  if (raw.use_sliding_window) refuse("use_sliding_window", true);
  const otherLayer = raw.layer_types?.find((type) => type !== "full_attention");
  if (otherLayer) refuse("layer_types", otherLayer);
  if (raw.partial_rotary_factor && raw.partial_rotary_factor !== 1) {
    refuse("partial_rotary_factor", raw.partial_rotary_factor);
  }
}

function parseRope(raw: RawConfig, headDim: number, file: string): RopeConfig {
  const type = raw.rope_parameters?.rope_type ?? raw.rope_scaling?.rope_type ?? raw.rope_scaling?.type ?? "default";
  if (type !== "default") throw new ModelError(`${file}: RoPE type "${type}" is not supported (supported: default)`);
  const theta = raw.rope_parameters?.rope_theta ?? raw.rope_theta ?? 10_000;
  return { theta, rotaryDim: headDim };
}

/**
 * Inverse frequencies theta^(-2i/rotaryDim), i < rotaryDim/2 (RoFormer, equation 15), rounded to float32 as
 * the models were trained with.
 */
export function inverseFrequencies(ropeConfig: RopeConfig): Float32Array {
  const { theta, rotaryDim } = ropeConfig;
  return Float32Array.from({ length: rotaryDim / 2 }, (_, i) => theta ** ((-2 * i) / rotaryDim));
}
