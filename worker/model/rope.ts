/**
 * Rotary position embedding: turns the configuration's fields into inverse frequencies, one for each rotated pair.
 * Reads the older fields (`rope_theta`, `rope_scaling`) and the newer one (`rope_parameters`).
 */
import { z } from "zod";

export interface RopeConfig {
  /**
   * How many leading dimensions of a head are rotated, an even number; pairs are (i, i + rotaryDim / 2). Weights that
   * are stored for pairs (2i, 2i + 1) are reordered when they are read (tensor-layout.ts).
   */
  readonly rotaryDim: number;
  /** [rotaryDim / 2] radians per position, after scaling; float32, as the models were trained with. */
  readonly inverseFrequencies: Float32Array;
  /** Multiplies cos and sin (YaRN, section 3.4); usually 1. */
  readonly attentionFactor: number;
  /** [layerCount] Are q and k of this layer rotated? */
  readonly layers: readonly boolean[];
  /** The rotation of layers that slide, where they have frequencies of their own. */
  readonly sliding?: Rotation;
}

const ropeTypes = ["default", "linear", "ntk", "dynamic", "llama3", "yarn"] as const;
export type RopeType = (typeof ropeTypes)[number];

const theta = z.number().gt(1).max(1e12);
const factor = z.number().min(1).max(1e6);
const positive = z.number().positive().max(1e6);
const positions = z.number().int().min(1).max(16_777_216);

const schemas = {
  default: z.object({ rope_theta: theta }),
  linear: z.object({ rope_theta: theta, factor }),
  ntk: z.object({ rope_theta: theta, factor }),
  dynamic: z
    .object({
      rope_theta: theta,
      factor,
      original_max_position_embeddings: positions,
      max_position_embeddings: positions,
      alpha: z.null({ error: 'is not supported; rope_type "ntk" with it as factor is the same' }).optional(),
    })
    .refine((fields) => fields.original_max_position_embeddings >= fields.max_position_embeddings, {
      path: ["original_max_position_embeddings"],
      error:
        "must not be below max_position_embeddings: past it the base grows with the prompt, and K is stored once; " +
        'rope_type "ntk" has a base that stays',
    }),
  llama3: z
    .object({
      rope_theta: theta,
      factor,
      low_freq_factor: positive,
      high_freq_factor: positive,
      original_max_position_embeddings: positions,
    })
    .refine((fields) => fields.high_freq_factor > fields.low_freq_factor, {
      path: ["high_freq_factor"],
      error: "must be above low_freq_factor",
    }),
  yarn: z.object({
    rope_theta: theta,
    factor,
    original_max_position_embeddings: positions,
    attention_factor: positive.nullish(),
    mscale: z.number().min(0).max(1e6).nullish(),
    mscale_all_dim: z.number().min(0).max(1e6).nullish(),
    beta_fast: positive.nullish(),
    beta_slow: positive.nullish(),
    truncate: z.boolean().default(true),
  }),
} as const;

type Fields<Type extends RopeType> = z.infer<(typeof schemas)[Type]>;
export type Rotation = Pick<RopeConfig, "inverseFrequencies" | "attentionFactor">;

/**
 * @param parameters the fields of one RoPE type, by the configuration's names
 * @throws ZodError naming the field
 */
export function rotation(type: RopeType, parameters: Readonly<Record<string, unknown>>, rotaryDim: number): Rotation {
  const plain = (fields: { readonly rope_theta: number }) => plainFrequencies(fields.rope_theta, rotaryDim);
  switch (type) {
    case "default":
      return rounded(plain(schemas.default.parse(parameters)));
    case "linear": {
      const fields = schemas.linear.parse(parameters);
      return rounded(plain(fields).map((frequency) => frequency / fields.factor));
    }
    case "ntk": {
      const fields = schemas.ntk.parse(parameters);
      return rounded(plain({ rope_theta: ntkTheta(fields, rotaryDim) }));
    }
    case "dynamic":
      // Dynamic scaling changes the base only beyond the trained context, and no prompt is that long.
      return rounded(plain(schemas.dynamic.parse(parameters)));
    case "llama3": {
      const fields = schemas.llama3.parse(parameters);
      return rounded(plain(fields).map((frequency) => llama3Frequency(frequency, fields)));
    }
    case "yarn": {
      const fields = schemas.yarn.parse(parameters);
      return rounded(yarnFrequencies(plain(fields), fields), yarnAttentionFactor(fields));
    }
  }
}

function rounded(frequencies: readonly number[], attentionFactor = 1): Rotation {
  return { inverseFrequencies: Float32Array.from(frequencies), attentionFactor };
}

/** theta^(-2i/rotaryDim), i < rotaryDim/2 (RoFormer, equation 15). */
function plainFrequencies(thetaValue: number, rotaryDim: number): number[] {
  return Array.from({ length: rotaryDim / 2 }, (_, i) => thetaValue ** ((-2 * i) / rotaryDim));
}

/** NTK-aware scaling: the lowest frequency is divided by `factor`, the highest stays (YaRN, section 3.1). */
function ntkTheta(fields: Fields<"ntk">, rotaryDim: number): number {
  return fields.rope_theta * fields.factor ** (rotaryDim / (rotaryDim - 2));
}

/** Llama 3.1: short wavelengths are kept, long ones stretched by `factor`, those between blended. */
function llama3Frequency(frequency: number, fields: Fields<"llama3">): number {
  const { factor: stretch, low_freq_factor: low, high_freq_factor: high } = fields;
  const rotations = (fields.original_max_position_embeddings * frequency) / (2 * Math.PI);
  if (rotations > high) return frequency;
  if (rotations < low) return frequency / stretch;
  const kept = (rotations - low) / (high - low);
  return (1 - kept) * (frequency / stretch) + kept * frequency;
}

/** YaRN ("NTK-by-parts", section 3.2): the share of stretching is a ramp over the dimensions. */
function yarnFrequencies(plain: readonly number[], fields: Fields<"yarn">): number[] {
  const rotaryDim = plain.length * 2;
  /** The dimension pair that makes `rotations` full rotations over the original context. */
  const pairOf = (rotations: number) =>
    (rotaryDim * Math.log(fields.original_max_position_embeddings / (rotations * 2 * Math.PI))) /
    (2 * Math.log(fields.rope_theta));
  const fast = pairOf(fields.beta_fast || 32);
  const slow = pairOf(fields.beta_slow || 1);
  const start = Math.max(fields.truncate ? Math.floor(fast) : fast, 0);
  const end = Math.min(fields.truncate ? Math.ceil(slow) : slow, rotaryDim - 1);
  const width = end === start ? 0.001 : end - start;
  return plain.map((frequency, i) => {
    const stretched = Math.min(Math.max((i - start) / width, 0), 1);
    return (frequency / fields.factor) * stretched + frequency * (1 - stretched);
  });
}

function yarnAttentionFactor(fields: Fields<"yarn">): number {
  if (fields.attention_factor != null) return fields.attention_factor;
  const scale = (weight: number) => (fields.factor <= 1 ? 1 : 0.1 * weight * Math.log(fields.factor) + 1);
  if (fields.mscale && fields.mscale_all_dim) return scale(fields.mscale) / scale(fields.mscale_all_dim);
  return scale(1);
}
