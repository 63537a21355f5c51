/**
 * Reads `config.json` of a Hugging Face model folder. ModelConfig describes the differences between architectures as
 * data, so that backends never ask for an architecture by name. A setting that would change the numbers and is not
 * supported is an error that names the field; none is ignored.
 */
import { z } from "zod";
import { type Architecture, type Family, families, isArchitecture } from "./family.ts";
import { ModelError } from "./model-error.ts";
import { parseQuantization, type Quantization } from "./quantization.ts";
import { type RopeConfig, rotation } from "./rope.ts";

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
  /** Qwen3: RMSNorm over each head of q and k before RoPE. */
  readonly qkNorm: boolean;
  /** How the tensors are stored (Phi-3, GLM); logical tensors (tensor-layout.ts) are the same for all. */
  readonly fusedQkv: boolean;
  readonly fusedGateUp: boolean;
  /** GLM, ERNIE, Helium: the stored q and k have the two dimensions of a RoPE pair side by side. */
  readonly interleavedRope: boolean;
  readonly rope: RopeConfig;
  /** Factor of the attention scores: 1 / sqrt(headDim), or Granite's attention_multiplier. */
  readonly softmaxScale: number;
  /**
   * Granite: factor of the token embeddings, and factor of what attention and MLP add to the residual stream; else 1.
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
  hidden_act: z.string().default("silu"),
  attention_bias: z.boolean().nullish(),
  mlp_bias: z.boolean().nullish(),
  use_bias: z.boolean().nullish(),
  use_sliding_window: z.boolean().nullish(),
  sliding_window: dimension(16_777_216).nullish(),
  max_window_layers: z.number().int().min(0).max(65_536).default(28),
  layer_types: z.array(z.string()).nullish(),
  max_position_embeddings: dimension(16_777_216),
  eos_token_id: z.union([tokenId, z.array(tokenId).max(64)]).nullish(),
  rope_theta: z.number().positive().nullish(),
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
  quantization_config: z.unknown().optional(),
  /** MLX's name of the same. */
  quantization: z.unknown().optional(),
});
type RawConfig = z.infer<typeof schema>;
type Refuse = (field: string, value: unknown) => never;

/** @throws ModelError naming the field. `file` is only used in the message. */
export function parseModelConfig(json: unknown, file: string): ModelConfig {
  const architecture = parseArchitecture(json, file);
  const family: Family = families[architecture];
  const parsed = schema.safeParse(json);
  if (!parsed.success) throw fieldError(parsed.error, file);
  const raw = parsed.data;
  const quantization = quantizationOf(raw, file);
  const refuse: Refuse = (field, value) => {
    throw new ModelError(`${file}: "${field}" ${JSON.stringify(value)} is not supported for ${architecture}`);
  };
  refuseUnsupported(raw, family, refuse);
  refuseSlidingWindow(raw, family, refuse);
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
    qkvBias: family.qkvBias === "always" || (family.qkvBias === "attention_bias" && raw.attention_bias !== false),
    qkNorm: family.qkNorm ?? false,
    fusedQkv: family.fusedQkv ?? false,
    fusedGateUp: family.fusedGateUp ?? false,
    interleavedRope: family.interleavedRope ?? false,
    rope: parseRope(raw, family, headDim, file, refuse),
    softmaxScale: family.multipliers ? raw.attention_multiplier : 1 / Math.sqrt(headDim),
    embeddingMultiplier: family.multipliers ? raw.embedding_multiplier : 1,
    residualMultiplier: family.multipliers ? raw.residual_multiplier : 1,
    logitsDivisor: family.multipliers ? raw.logits_scaling : 1,
    contextTokens: raw.max_position_embeddings,
    eosTokenIds: [raw.eos_token_id ?? []].flat(),
    quantization,
  };
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

function quantizationOf({ quantization_config, quantization }: RawConfig, file: string): Quantization | undefined {
  const given = quantization_config ?? quantization;
  if (given == null) return undefined;
  return parseQuantization(given, quantization_config == null ? "quantization" : "quantization_config", file);
}

function refuseUnsupported(raw: RawConfig, family: Family, refuse: Refuse): void {
  if (raw.hidden_act !== "silu") refuse("hidden_act", raw.hidden_act);
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

/** A window as wide as the context hides no token, and a window that no layer uses has no effect. */
function refuseSlidingWindow(raw: RawConfig, { window }: Family, refuse: Refuse): void {
  const namesSliding = raw.layer_types?.includes("sliding_attention") ?? false;
  const isOn = window.always || raw.use_sliding_window === true;
  const tokens = raw.sliding_window === undefined ? window.defaultTokens : raw.sliding_window;
  if (!isOn || tokens === null) {
    if (namesSliding) refuse("layer_types", "sliding_attention");
    return;
  }
  if (tokens >= raw.max_position_embeddings) return;
  const isUsed = raw.layer_types ? namesSliding : raw.max_window_layers < raw.num_hidden_layers;
  if (window.always || isUsed) refuse("sliding_window", tokens);
}

function parseRope(raw: RawConfig, family: Family, headDim: number, file: string, refuse: Refuse): RopeConfig {
  const place = raw.rope_scaling ? "rope_scaling" : "rope_parameters";
  const given = raw.rope_scaling ?? raw.rope_parameters ?? {};
  const nested = ["full_attention", "sliding_attention"].find((layerType) => layerType in given);
  if (nested !== undefined) refuse(`${place}.${nested}`, given[nested]);
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
    return { rotaryDim, layers, ...rotation(type, fields, rotaryDim) };
  } catch (error) {
    if (error instanceof z.ZodError) throw fieldError(error, file, `${place}.`);
    throw error;
  }
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
