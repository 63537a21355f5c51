/**
 * Reads `config.json` of a Hugging Face model folder. ModelConfig describes the differences between architectures as
 * data, so that backends never ask for an architecture by name. A setting that would change the numbers and is not
 * supported is an error that names the field; none is ignored.
 */
import { z } from "zod";
import { type Experts, expertFields, parseExperts } from "./experts.ts";
import {
  type Activation,
  type Architecture,
  type Family,
  families,
  isArchitecture,
  type LayerNorms,
  llamaNorms,
  type QkNorm,
} from "./family.ts";
import { ModelError, type Refuse } from "./model-error.ts";
import { parseQuantization, type Quantization } from "./quantization.ts";
import { type RopeConfig, type Rotation, rotation } from "./rope.ts";
import { parseWindow, type SlidingWindow, windowFields } from "./window.ts";

export interface ModelConfig {
  readonly architecture: Architecture;
  readonly layerCount: number;
  readonly hiddenSize: number;
  readonly headCount: number;
  readonly kvHeadCount: number;
  readonly headDim: number;
  readonly ffnSize: number;
  readonly vocabSize: number;
  readonly rmsNormEps: number;
  readonly tiedEmbeddings: boolean;
  /** Qwen2, GLM: q, k and v have a bias. */
  readonly qkvBias: boolean;
  /** gpt-oss: the projection behind attention has one too. */
  readonly outputBias: boolean;
  /** gpt-oss: each head has a sink. */
  readonly sinks: boolean;
  /** RMSNorm of q and k before RoPE: Qwen3 over each head, OLMo 2 over all heads of a row together. */
  readonly qkNorm: QkNorm | undefined;
  /** The norms that a layer has, by their stored names. */
  readonly layerNorms: LayerNorms;
  /** How the tensors are stored (Phi-3, GLM); logical tensors (tensor-layout.ts) are the same for all. */
  readonly fusedQkv: boolean;
  readonly fusedGateUp: boolean;
  /** GLM, ERNIE, Helium: the stored q and k have the two dimensions of a RoPE pair side by side. */
  readonly interleavedRope: boolean;
  readonly rope: RopeConfig;
  /** undefined: every layer sees all of a prompt. */
  readonly window: SlidingWindow | undefined;
  /** undefined: every layer has one MLP. */
  readonly experts: Experts | undefined;
  /** Gemma: an RMSNorm multiplies by 1 + w. */
  readonly normsAddOne: boolean;
  readonly activation: Activation;
  /** Gemma 2: scores x of attention become c tanh(x / c), and so do logits. */
  readonly scoreCap: number | undefined;
  readonly logitCap: number | undefined;
  /** Factor of the attention scores: 1 / sqrt(headDim), or Granite's attention_multiplier. */
  readonly softmaxScale: number;
  /**
   * Granite: factor of the token embeddings, and factor of what attention and MLP add to the residual stream; Gemma has
   * the first; else 1.
   */
  readonly embeddingMultiplier: number;
  readonly residualMultiplier: number;
  /** Granite: the logits are divided by it; 1 for others. */
  readonly logitsDivisor: number;
  readonly contextTokens: number;
  readonly eosTokenIds: readonly number[];
  /** How 8-bit weights are stored; undefined: there are none. */
  readonly quantization: Quantization | undefined;
}

const dimension = (max: number) => z.number().int().min(1).max(max);
const tokenId = z.number().int().min(0).max(1_000_000);
const multiplier = z.number().positive().max(1e6);
const rope = z.looseObject({ rope_type: z.string().optional(), type: z.string().optional() });

const schema = z.looseObject({
  num_hidden_layers: dimension(512),
  hidden_size: dimension(65_536),
  num_attention_heads: dimension(1_024),
  num_key_value_heads: dimension(1_024).nullish(),
  head_dim: dimension(256).nullish(),
  intermediate_size: dimension(524_288),
  vocab_size: dimension(1_000_000),
  rms_norm_eps: z.number().positive().max(1),
  tie_word_embeddings: z.boolean().nullish(),
  hidden_act: z.string().nullish(),
  hidden_activation: z.string().nullish(),
  attention_bias: z.boolean().nullish(),
  attention_out_bias: z.boolean().nullish(),
  mlp_bias: z.boolean().nullish(),
  use_bias: z.boolean().nullish(),
  ...windowFields,
  ...expertFields,
  max_position_embeddings: dimension(16_777_216),
  eos_token_id: z.union([tokenId, z.array(tokenId).max(64)]).nullish(),
  rope_theta: z.number().positive().nullish(),
  rope_local_base_freq: z.number().positive().nullish(),
  rope_scaling: rope.nullish(),
  rope_parameters: rope.nullish(),
  partial_rotary_factor: z.number().positive().max(1).nullish(),
  rope_interleave: z.boolean().nullish(),
  rope_interleaved: z.boolean().nullish(),
  no_rope_layers: z.array(z.union([z.literal(0), z.literal(1)])).nullish(),
  no_rope_layer_interval: dimension(512).default(4),
  embedding_multiplier: multiplier.default(1),
  attention_multiplier: multiplier.default(1),
  residual_multiplier: multiplier.default(1),
  logits_scaling: multiplier.default(1),
  query_pre_attn_scalar: z.number().positive().max(1e6).nullish(),
  attn_logit_softcapping: z.number().positive().max(1e6).nullish(),
  final_logit_softcapping: z.number().positive().max(1e6).nullish(),
  swiglu_limit: z.number().nullish(),
  swiglu_alpha: z.number().nullish(),
  clip_qkv: z.number().nullish(),
  use_bidirectional_attention: z.boolean().nullish(),
  dtype: z.string().nullish(),
  torch_dtype: z.string().nullish(),
  quantization_config: z.unknown().optional(),
  /** MLX's name of the same. */
  quantization: z.unknown().optional(),
});
type RawConfig = z.infer<typeof schema>;

/** @throws ModelError naming the field. `file` is only used in the message. */
export function parseModelConfig(json: unknown, file: string): ModelConfig {
  const architecture = parseArchitecture(json, file);
  const family: Family = families[architecture];
  const parsed = schema.safeParse(json);
  if (!parsed.success) throw fieldError(parsed.error, file);
  const raw = parsed.data;
  const stored = quantizationOf(raw, file);
  const refuse: Refuse = (field, value) => {
    throw new ModelError(`${file}: "${field}" ${JSON.stringify(value)} is not supported for ${architecture}`);
  };
  refuseUnsupported(raw, family, refuse);
  const headCount = raw.num_attention_heads;
  const kvHeadCount = raw.num_key_value_heads ?? headCount;
  if (headCount % kvHeadCount !== 0) {
    throw new ModelError(`${file}: "num_attention_heads" ${headCount} is not a multiple of "num_key_value_heads"`);
  }
  const headDim = raw.head_dim ?? family.defaultHeadDim ?? raw.hidden_size / headCount;
  if (!Number.isInteger(headDim) || headDim % 8 !== 0 || headDim > 256) {
    throw new ModelError(`${file}: head size ${headDim} is not a multiple of 8 up to 256`);
  }
  return {
    architecture,
    layerCount: raw.num_hidden_layers,
    hiddenSize: raw.hidden_size,
    headCount,
    kvHeadCount,
    headDim,
    ffnSize: raw.intermediate_size,
    vocabSize: raw.vocab_size,
    rmsNormEps: raw.rms_norm_eps,
    tiedEmbeddings: raw.tie_word_embeddings ?? family.defaultTied,
    ...biases(raw, family),
    sinks: family.sinks ?? false,
    qkNorm: family.qkNorm,
    layerNorms: family.layerNorms ?? llamaNorms,
    fusedQkv: family.fusedQkv ?? false,
    fusedGateUp: family.fusedGateUp ?? false,
    interleavedRope: family.interleavedRope ?? false,
    rope: parseRope(raw, family, headDim, file, refuse),
    window: parseWindow(raw, family, refuse),
    experts: parseExperts(raw, family, stored === "mxfp4", file),
    normsAddOne: family.normsAddOne ?? false,
    activation: family.activation ?? "silu",
    scoreCap: family.caps && capOf(raw.attn_logit_softcapping, family.caps.scores),
    logitCap: family.caps && capOf(raw.final_logit_softcapping, family.caps.logits),
    softmaxScale: family.multipliers ? raw.attention_multiplier : 1 / Math.sqrt(scoreSize(raw, family, headDim)),
    embeddingMultiplier: family.multipliers
      ? raw.embedding_multiplier
      : family.scalesEmbeddings
        ? embeddingScale(raw)
        : 1,
    residualMultiplier: family.multipliers ? raw.residual_multiplier : 1,
    logitsDivisor: family.multipliers ? raw.logits_scaling : 1,
    contextTokens: raw.max_position_embeddings,
    eosTokenIds: [raw.eos_token_id ?? []].flat(),
    quantization: stored === "mxfp4" ? undefined : stored,
  };
}

function biases(raw: RawConfig, { qkvBias, outputBias }: Family): Pick<ModelConfig, "qkvBias" | "outputBias"> {
  const hasBias = raw.attention_bias !== false;
  return {
    qkvBias: qkvBias === "always" || (qkvBias === "attention_bias" && hasBias),
    outputBias:
      outputBias === "attention_out_bias" ? raw.attention_out_bias === true : outputBias !== undefined && hasBias,
  };
}

/** null switches a cap off. */
function capOf(given: number | null | undefined, byDefault: number): number | undefined {
  return given === undefined ? byDefault : (given ?? undefined);
}

function parseArchitecture(json: unknown, file: string): Architecture {
  const named = z.looseObject({ architectures: z.array(z.string()).length(1) }).safeParse(json);
  const architecture = named.data?.architectures[0];
  if (architecture === undefined) throw new ModelError(`${file}: "architectures" must name one architecture`);
  if (isArchitecture(architecture)) return architecture;
  const known = Object.keys(families).join(", ");
  throw new ModelError(`${file}: architecture "${architecture}" is not supported (supported: ${known})`);
}

function fieldError(error: z.ZodError, file: string, parent = ""): ModelError {
  const issue = error.issues[0];
  return new ModelError(`${file}: "${parent}${issue?.path.join(".")}": ${issue?.message}`);
}

function quantizationOf(
  { quantization_config, quantization }: RawConfig,
  file: string,
): Quantization | "mxfp4" | undefined {
  const given = quantization_config ?? quantization;
  if (given == null) return undefined;
  return parseQuantization(given, quantization_config == null ? "quantization" : "quantization_config", file);
}

function refuseUnsupported(raw: RawConfig, family: Family, refuse: Refuse): void {
  refuseActivation(raw, family, refuse);
  for (const field of ["attn_logit_softcapping", "final_logit_softcapping"] as const) {
    if (raw[field] != null && !family.caps) refuse(field, raw[field]);
  }
  if (raw.clip_qkv != null) refuse("clip_qkv", raw.clip_qkv);
  if (raw.attention_out_bias && family.outputBias !== "attention_out_bias") refuse("attention_out_bias", true);
  if (raw.use_bidirectional_attention) refuse("use_bidirectional_attention", true);
  if (raw.attention_bias && !family.qkvBias) refuse("attention_bias", true);
  if (raw.mlp_bias) refuse("mlp_bias", true);
  if (raw.use_bias) refuse("use_bias", true);
  // transformers goes by the architecture alone; converters leave these fields behind whatever they did to the weights.
  for (const field of ["rope_interleave", "rope_interleaved"] as const) {
    const isInterleaved = raw[field];
    if (isInterleaved != null && isInterleaved !== (family.interleavedRope ?? false)) refuse(field, isInterleaved);
  }
  const otherLayer = raw.layer_types?.find((type) => type !== "full_attention" && type !== "sliding_attention");
  if (otherLayer !== undefined) refuse("layer_types", otherLayer);
}

/** A Gemma names its activation twice; the second name stands, as in transformers. */
function refuseActivation(raw: RawConfig, { activation }: Family, refuse: Refuse): void {
  if (activation === "clamped") {
    if ((raw.swiglu_limit ?? 7) !== 7) refuse("swiglu_limit", raw.swiglu_limit);
    if ((raw.swiglu_alpha ?? 1.702) !== 1.702) refuse("swiglu_alpha", raw.swiglu_alpha);
  }
  if (activation === "gelu") {
    const named = raw.hidden_activation ?? "gelu_pytorch_tanh";
    if (named !== "gelu_pytorch_tanh") refuse("hidden_activation", named);
  } else if ((raw.hidden_act ?? "silu") !== "silu") {
    refuse("hidden_act", raw.hidden_act);
  }
}

/** The square root of it divides the scores. */
function scoreSize(raw: RawConfig, { scoreSizeField }: Family, headDim: number): number {
  return scoreSizeField ? (raw.query_pre_attn_scalar ?? 256) : headDim;
}

/** What a Gemma multiplies its embeddings by: rounded to the type that the weights are stored in, as it was in training. */
function embeddingScale(raw: RawConfig): number {
  const scale = Math.sqrt(raw.hidden_size);
  if ((raw.dtype ?? raw.torch_dtype) !== "bfloat16") return scale;
  const words = new Uint32Array(Float32Array.of(scale).buffer);
  // bfloat16 is the upper half of a float32; rounded to the nearest, ties to even.
  words[0] = (words[0] + 0x7fff + ((words[0] >>> 16) & 1)) & 0xffff0000;
  return new Float32Array(words.buffer)[0];
}

function parseRope(raw: RawConfig, family: Family, headDim: number, file: string, refuse: Refuse): RopeConfig {
  const outer = raw.rope_scaling ? "rope_scaling" : "rope_parameters";
  const all = raw.rope_scaling ?? raw.rope_parameters ?? family.defaultRope ?? {};
  const nested = ["full_attention", "sliding_attention"].find((layerType) => layerType in all);
  if (nested !== undefined && family.slidingTheta === undefined) refuse(`${outer}.${nested}`, all[nested]);
  const place = nested === undefined ? outer : `${outer}.full_attention`;
  const given = nested === undefined ? all : ropeOf(all, "full_attention", outer, file);
  const named = given.rope_type ?? given.type ?? "default";
  const type = family.ropeTypes.find((known) => known === named) ?? refuse(`${place}.rope_type`, named);
  const partial = z
    .number()
    .positive()
    .max(1)
    .safeParse(given.partial_rotary_factor ?? raw.partial_rotary_factor ?? family.partialRope ?? 1);
  if (!partial.success) throw fieldError(partial.error, file, `${place}.partial_rotary_factor`);
  const rotaryDim = Math.trunc(headDim * partial.data);
  const isPartial = partial.data !== 1;
  if (isPartial && (family.partialRope === undefined || rotaryDim % 2 !== 0))
    refuse("partial_rotary_factor", partial.data);
  const fields = {
    rope_theta: raw.rope_theta ?? family.defaultTheta,
    ...(type === "yarn" || type === "dynamic" ? { original_max_position_embeddings: raw.max_position_embeddings } : {}),
    ...given,
    max_position_embeddings: raw.max_position_embeddings,
  };
  try {
    const layers = ropeLayers(raw, family, file);
    const sliding = slidingRotation(
      raw,
      family,
      nested === undefined ? {} : ropeOf(all, "sliding_attention", outer, file),
      fields.rope_theta,
      refuse,
      rotaryDim,
    );
    return { rotaryDim, layers, ...rotation(type, fields, rotaryDim), ...(sliding && { sliding }) };
  } catch (error) {
    if (error instanceof z.ZodError) throw fieldError(error, file, `${place}.`);
    throw error;
  }
}

type RopeFields = z.infer<typeof rope>;

/** The fields of one kind of layers. @throws ModelError when they are no object */
function ropeOf(all: RopeFields, kind: string, place: string, file: string): RopeFields {
  const fields = rope.safeParse(all[kind] ?? {});
  if (!fields.success) throw fieldError(fields.error, file, `${place}.${kind}.`);
  return fields.data;
}

/** The rotation of layers that slide, where the family gives them one of their own: a plain one. */
function slidingRotation(
  raw: RawConfig,
  { slidingTheta }: Family,
  given: RopeFields,
  sharedTheta: unknown,
  refuse: Refuse,
  rotaryDim: number,
): Rotation | undefined {
  if (slidingTheta === undefined) return undefined;
  const named = given.rope_type ?? given.type ?? "default";
  if (named !== "default") refuse("rope_parameters.sliding_attention.rope_type", named);
  const theta = slidingTheta === "plain" ? sharedTheta : (raw.rope_local_base_freq ?? slidingTheta);
  return rotation("default", { rope_theta: given.rope_theta ?? theta }, rotaryDim);
}

/**
 * In `no_rope_layers` 1 means a layer with RoPE. Without the field, every `no_rope_layer_interval`-th layer has none.
 */
function ropeLayers(raw: RawConfig, family: Family, file: string): readonly boolean[] {
  const layerCount = raw.num_hidden_layers;
  if (!family.layersWithoutRope) return Array.from({ length: layerCount }, () => true);
  const listed = raw.no_rope_layers;
  if (!listed) return Array.from({ length: layerCount }, (_, i) => (i + 1) % raw.no_rope_layer_interval !== 0);
  if (listed.length < layerCount) {
    throw new ModelError(`${file}: "no_rope_layers" has ${listed.length} entries for ${layerCount} layers`);
  }
  return listed.slice(0, layerCount).map((uses) => uses === 1);
}
