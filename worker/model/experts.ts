/** Mixtures of experts: of many MLPs in a layer each row takes the few that a router names. */
import { z } from "zod";
import type { ExpertFamily, Family } from "./family.ts";
import { ModelError } from "./model-error.ts";
import { mxfp4Group } from "./quantization.ts";

export interface Experts {
  readonly count: number;
  /** How many of them a row takes. */
  readonly perToken: number;
  /** Size of an expert, as `ffnSize` is of an MLP. */
  readonly ffnSize: number;
  /** [layerCount] Has this layer experts? The others have an MLP. */
  readonly layers: readonly boolean[];
  /** A row's weights of its experts add up to 1; else they are the router's softmax over all experts. */
  readonly normalised: boolean;
  /** Where they are stored, and whether they have biases. */
  readonly family: ExpertFamily;
  /** Their weights are stored in blocks of MXFP4. */
  readonly mxfp4: boolean;
}

const count = z.number().int().min(1).max(4_096);
const size = z.number().int().min(1).max(524_288);

export const expertFields = {
  num_experts: count.nullish(),
  num_local_experts: count.nullish(),
  num_experts_per_tok: count.nullish(),
  moe_intermediate_size: size.nullish(),
  norm_topk_prob: z.boolean().nullish(),
  decoder_sparse_step: count.nullish(),
  mlp_only_layers: z.array(z.number().int().min(0).max(65_536)).max(65_536).nullish(),
};
interface RawExperts extends z.infer<z.ZodObject<typeof expertFields>> {
  readonly num_hidden_layers: number;
  readonly hidden_size: number;
  readonly intermediate_size: number;
}

/**
 * @param mxfp4 are weights stored so, as `quantization_config` says?
 * @throws ModelError naming the field. @returns undefined for a family without experts
 */
export function parseExperts(
  raw: RawExperts,
  { experts: family }: Family,
  mxfp4: boolean,
  file: string,
): Experts | undefined {
  if (mxfp4) assertMxfp4(raw, family, file);
  if (family === undefined) return undefined;
  const required = (field: "num_experts_per_tok" | ExpertFamily["sizeField"]): number => {
    const value = raw[field];
    if (value == null) throw new ModelError(`${file}: "${field}" is missing`);
    return value;
  };
  const total = raw.num_experts ?? raw.num_local_experts;
  if (total == null) throw new ModelError(`${file}: "num_experts" is missing`);
  const perToken = required("num_experts_per_tok");
  if (perToken > total) {
    throw new ModelError(`${file}: "num_experts_per_tok" ${perToken} is more than "num_experts" ${total}`);
  }
  const [step, without] = [raw.decoder_sparse_step ?? 1, new Set(raw.mlp_only_layers)];
  return {
    count: total,
    perToken,
    ffnSize: required(family.sizeField),
    layers: Array.from({ length: raw.num_hidden_layers }, (_, i) => !without.has(i) && (i + 1) % step === 0),
    normalised: family.normalised === "always" || (raw.norm_topk_prob ?? false),
    family,
    mxfp4,
  };
}

/** @throws ModelError for a family that has no such weights, or sizes that blocks do not fill */
function assertMxfp4(raw: RawExperts, family: ExpertFamily | undefined, file: string): void {
  if (!family || !("alternating" in family.stored) || !family.stored.alternating) {
    throw new ModelError(`${file}: "quantization_config.quant_method" "mxfp4" is read for GptOssForCausalLM alone`);
  }
  for (const field of ["hidden_size", "intermediate_size"] as const) {
    if (raw[field] % mxfp4Group === 0) continue;
    throw new ModelError(`${file}: "${field}" ${raw[field]} is not a multiple of ${mxfp4Group}, as mxfp4 needs it`);
  }
}
