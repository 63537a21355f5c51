/**
 * Checkpoints whose linear weights are stored in 8 bits with scales beside them, as `quantization_config` of their
 * config.json describes them. Which weights are stored so, their types in the files say; here stands what the scales
 * are called and how many weights share one. A kind of quantisation that would change the numbers and is not read is
 * an error that names the field; none is ignored.
 *
 * The formats as transformers and vLLM read them:
 *   fp8, with weight_block_size   F8_E4M3, `weight_scale_inv`, a scale for each block
 *   fp8, without                  F8_E4M3, `weight_scale`, one for the tensor
 *   fbgemm_fp8                    F8_E4M3, `weight_scale`, one for each row
 *   compressed-tensors            F8_E4M3 or I8, `weight_scale`, by the strategy of its groups
 *   mxfp4                         experts in 4 bits, as stored-form.ts and tensor-layout.ts describe them; not widened
 * Scales of inputs and of KV are not used: activations and KV keep more bits here than in 8-bit arithmetic.
 */
import { z } from "zod";
import { ModelError } from "./model-error.ts";

/** The 8-bit types of stored weights. */
export type QuantizedDtype = "F8_E4M3" | "I8";

export interface Quantization {
  readonly dtype: QuantizedDtype;
  /** `model.layers.0.mlp.up_proj.weight` has its scales in `model.layers.0.mlp.up_proj.` and this. */
  readonly scaleSuffix: "weight_scale" | "weight_scale_inv";
  /** Rows and columns of a weight matrix that share a scale; Infinity: all. */
  readonly rowsPerScale: number;
  readonly columnsPerScale: number;
}

/** Weights of a block of MXFP4, which share a scale; two weights are a byte. */
export const mxfp4Group = 32;
export const mxfp4BlockBytes = mxfp4Group / 2;

const blockSize = z.number().int().min(1).max(65_536);
const block = z.tuple([blockSize, blockSize]);

const fp8Schema = z.looseObject({
  quant_method: z.literal("fp8"),
  fmt: z.literal("e4m3").nullish(),
  weight_block_size: block.nullish(),
});
const fbgemmSchema = z.looseObject({ quant_method: z.literal("fbgemm_fp8") });
const groupWeights = z.looseObject({
  num_bits: z.literal(8),
  type: z.enum(["float", "int"]),
  strategy: z.enum(["tensor", "channel", "block", "group"]),
  symmetric: z.literal(true).default(true),
  group_size: blockSize.or(z.literal(-1)).nullish(),
  block_structure: block.nullish(),
  actorder: z.union([z.null(), z.literal("weight"), z.literal(false)]).optional(),
});
const compressedSchema = z.looseObject({
  quant_method: z.literal("compressed-tensors"),
  format: z.enum(["float-quantized", "int-quantized", "naive-quantized"]),
  config_groups: z.record(z.string(), z.looseObject({ weights: groupWeights })),
  sparsity_config: z
    .looseObject({ format: z.literal("dense") })
    .or(z.object({}).strict())
    .nullish(),
  transform_config: z.object({}).strict().nullish(),
});
const schema = z.discriminatedUnion("quant_method", [fp8Schema, fbgemmSchema, compressedSchema]);

/**
 * @param given `quantization_config`, or `quantization`, which is MLX's name of it
 * @param field which of the two
 * @param file named in errors
 * @throws ModelError naming the field that is not supported
 */
export function parseQuantization(given: unknown, field: string, file: string): Quantization | "mxfp4" {
  const named = z.looseObject({ quant_method: z.string().optional(), bits: z.number().optional() }).safeParse(given);
  const { quant_method: method, bits } = named.data ?? {};
  if (method === "mxfp4") return method;
  if (method !== "fp8" && method !== "fbgemm_fp8" && method !== "compressed-tensors") {
    const how = [method, bits === undefined ? undefined : `${bits} bits`].filter((word) => word !== undefined);
    throw unsupported(file, `"${field}"${how.length > 0 ? `: ${how.join(", ")}` : ""}`);
  }
  const parsed = schema.safeParse(given);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    throw unsupported(file, `"${[field, ...(issue?.path ?? [])].join(".")}" of ${method}: ${issue?.message}`);
  }
  const { data } = parsed;
  if (data.quant_method === "fbgemm_fp8") return byRow("F8_E4M3");
  if (data.quant_method === "fp8") {
    const { weight_block_size: blocks } = data;
    if (!blocks) return { ...byRow("F8_E4M3"), rowsPerScale: Number.POSITIVE_INFINITY };
    const [rowsPerScale, columnsPerScale] = blocks;
    return { dtype: "F8_E4M3", scaleSuffix: "weight_scale_inv", rowsPerScale, columnsPerScale };
  }
  return ofGroups(data, field, file);
}

function byRow(dtype: QuantizedDtype): Quantization {
  return { dtype, scaleSuffix: "weight_scale", rowsPerScale: 1, columnsPerScale: Number.POSITIVE_INFINITY };
}

function ofGroups(
  { config_groups: groups }: z.infer<typeof compressedSchema>,
  field: string,
  file: string,
): Quantization {
  const forms = Object.entries(groups).map(([name, { weights }]) =>
    ofGroup(weights, `${field}.config_groups.${name}.weights`, file),
  );
  const [first] = forms;
  const differs = forms.some((form) => JSON.stringify(form) !== JSON.stringify(first));
  if (first === undefined || differs) {
    throw unsupported(file, `"${field}.config_groups": ${first ? "groups of different forms" : "no group"}`);
  }
  return first;
}

function ofGroup(weights: z.infer<typeof groupWeights>, field: string, file: string): Quantization {
  const { type, strategy, group_size: groupSize, block_structure: blocks } = weights;
  const rows = byRow(type === "float" ? "F8_E4M3" : "I8");
  if (strategy === "channel") return rows;
  if (strategy === "tensor") return { ...rows, rowsPerScale: Number.POSITIVE_INFINITY };
  if (strategy === "group") {
    if (!groupSize || groupSize < 1) throw unsupported(file, `"${field}.group_size": ${groupSize}`);
    return { ...rows, columnsPerScale: groupSize };
  }
  if (!blocks) throw unsupported(file, `"${field}.block_structure" is missing`);
  return { ...rows, rowsPerScale: blocks[0], columnsPerScale: blocks[1] };
}

function unsupported(file: string, what: string): ModelError {
  return new ModelError(
    `${file}: this quantisation is not supported (${what}); supported are 8-bit weights with scales, of the methods fp8, fbgemm_fp8 and compressed-tensors, and mxfp4 of gpt-oss; else take the model's own folder, with bfloat16, float16 or float32 weights: on the CPU SPANGATE_WEIGHTS=int8 serves those in 8 bits`,
  );
}
