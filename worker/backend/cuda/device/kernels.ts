/**
 * The parameters of each kernel that the backend launches, in order. kernels/cuda/NAME.cu says what they mean.
 */
import type { Signature } from "../../../native/cuda/arguments.ts";

/** A `double` that is passed by value. */
const float64 = { structBytes: 8 } as const;

/**
 * Parameters of all attention kernels (attention_plan.cuh): qkv, pool (for the wgmma kernels a tensor map of it),
 * rotations, positions, rows, items, slices, offsets, blockIds, merges, itemCount, queryHeads, kvHeads, rotaryDim,
 * blockTokens, scaleLog2, out, partialOut, partialSums, arrivals, sinks
 */
const attention = [
  ...(["ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr"] as const),
  ...(["i32", "i32", "i32", "i32", "f32", "ptr", "ptr", "ptr", "ptr", "ptr"] as const),
] as const;

/**
 * What kernels that go through the heads of a row take: normOffset, epsilon, rotations, positions, slots, rowCount,
 * queryHeads, kvHeads, headDim, rotaryDim, blockTokens, pool
 */
const heads = [
  ...(["f32", "f32", "ptr", "ptr", "ptr", "ptr"] as const),
  ...(["i32", "i32", "i32", "i32", "i32", "ptr"] as const),
] as const;

/** input, weights, in, out, squares, squareCount, epsilon, output */
const productOfRow = ["ptr", "ptr", "i32", "i32", "ptr", "i32", "f32", "ptr"] as const;

/** input, weights, scales, scaleStride, rowShift, inShift, in, out, squares, squareCount, epsilon, output */
const productOfBytes = [
  ...(["ptr", "ptr", "ptr", "i32", "i32", "i32"] as const),
  ...(["i32", "i32", "ptr", "i32", "f32", "ptr"] as const),
] as const;

/**
 * input, weights, scales, scaleStride, rowShift, inShift, bias, tiles, order, perToken, in, ffn, gateStep, upOffset,
 * activation, squares, squareCount, epsilon, out
 */
const gatedExperts = [
  ...(["ptr", "ptr", "ptr", "i32", "i32", "i32", "ptr", "ptr", "ptr"] as const),
  ...(["i32", "i32", "i32", "i32", "i32", "i32", "ptr", "i32", "f32", "ptr"] as const),
] as const;

/** The parameters above up to order, then in, outputs, out */
const downExperts = [
  ...(["ptr", "ptr", "ptr", "i32", "i32", "i32", "ptr", "ptr", "ptr"] as const),
  ...(["i32", "i32", "ptr"] as const),
] as const;

/** The most blocks that one launch of move_blocks.cu takes. */
export const mostMovedBlocks = 128;
/** `MovedBlocks` of move_blocks.cu: numbers of blocks, then how many tokens of each. */
const movedBlocks = { structBytes: 2 * 4 * mostMovedBlocks } as const;

/** Of both kernels that score. */
const scoring = [
  ...(["ptr", "ptr", "ptr", "ptr", "ptr"] as const),
  ...(["i32", "i32", "i32", "i32", "f32", "ptr", "ptr", "ptr"] as const),
] as const;

/**
 * Of all that choose: qkv, step, choicePlace, rotations, pool, queryHeads, kvHeads, rotaryDim, blockTokens, listStride,
 * scaleLog2, parts, scores, lists, counts, out
 */
const choosing = [
  ...(["ptr", "ptr", "ptr", "ptr", "ptr"] as const),
  ...(["i32", "i32", "i32", "i32", "i32", "f32", "ptr", "ptr", "ptr", "ptr", "ptr"] as const),
] as const;

/** weightMap, inputMap, weightScales, inputScales, scaleStride, rows, in, out, stages, output */
const fewRows = ["ptr", "ptr", "ptr", "ptr", "i32", "i32", "i32", "i32", "i32", "ptr"] as const;

export const kernelSignatures = {
  // inverseFrequencies, half, firstPosition, positionCount, factor, out
  fill_rope_table: ["ptr", "i32", "i32", "i32", float64, "ptr"],
  // table, tokenIds, sampledIds, rowCount, hidden, scale, residual
  embed_rows: ["ptr", "ptr", "ptr", "ptr", "i32", "f32", "ptr"],
  // residual, delta, deltaFactors, deltaCount, deltaBias, deltaNorm, scale, weight, normOffset, epsilon, rowCount, hidden,
  // out, scales, rowStride
  add_rmsnorm: [
    ...(["ptr", "ptr", "ptr", "i32", "ptr", "ptr", "f32"] as const),
    ...(["ptr", "f32", "f32", "ptr", "i32", "ptr", "ptr", "i32"] as const),
  ],
  // qkv, qNorm, kNorm, epsilon, rowCount, qWidth, kWidth, rowWidth
  norm_projections: ["ptr", "ptr", "ptr", "f32", "ptr", "i32", "i32", "i32"],
  // qkv, bias, qNorm, kNorm, then `heads`
  qkv_finish: ["ptr", "ptr", "ptr", "ptr", ...heads],
  attention_packed: attention,
  attention_packed_wgmma: attention,
  attention_tiles: attention,
  attention_wgmma: attention,
  matvec: productOfRow,
  matvec_float: productOfRow,
  matvec_gated: productOfRow,
  // input, weights, in, out, scale, residual, norm, next, squares
  matvec_add: ["ptr", "ptr", "i32", "i32", "f32", "ptr", "ptr", "ptr", "ptr"],
  matvec_e4m3: productOfBytes,
  matvec_e4m3_gated: productOfBytes,
  // input, weights, scales, scaleStride, rowShift, inShift, in, out, scale, residual, norm, next, squares
  matvec_e4m3_add: [
    ...(["ptr", "ptr", "ptr", "i32", "i32", "i32", "i32", "i32"] as const),
    ...(["f32", "ptr", "ptr", "ptr", "ptr"] as const),
  ],
  // input, rowCount, in, rowStride, out, scales
  quantize_blocks: ["ptr", "ptr", "i32", "i32", "ptr", "ptr"],
  // input, rowCount, in, out, scales
  quantize_rows: ["ptr", "ptr", "i32", "ptr", "ptr"],
  few_rows_wgmma_8x1: fewRows,
  few_rows_wgmma_8x2: fewRows,
  few_rows_wgmma_8x4: fewRows,
  few_rows_wgmma_16x1: fewRows,
  few_rows_wgmma_16x2: fewRows,
  few_rows_wgmma_16x4: fewRows,
  few_rows_wgmma_32x1: fewRows,
  few_rows_wgmma_32x2: fewRows,
  few_rows_wgmma_32x4: fewRows,
  few_rows_wgmma_64x1: fewRows,
  few_rows_wgmma_64x2: fewRows,
  few_rows_wgmma_64x4: fewRows,
  // logits, bias, rowCount, experts, perToken, normalised, chosen, factors
  route_rows: ["ptr", "ptr", "ptr", "i32", "i32", "i32", "ptr", "ptr"],
  // input, weights, in, squares, squareCount, epsilon, bias, experts, perToken, normalised, logits, arrivals, chosen,
  // factors, tiles, order
  route_row: [
    ...(["ptr", "ptr", "i32", "ptr", "i32", "f32", "ptr", "i32", "i32", "i32"] as const),
    ...(["ptr", "ptr", "ptr", "ptr", "ptr", "ptr"] as const),
  ],
  // chosen, rowCount, perToken, experts, tileRows, tileCount, order, tiles
  group_rows: ["ptr", "ptr", "i32", "i32", "i32", "i32", "ptr", "ptr"],
  experts_gated_b16: gatedExperts,
  experts_gated_e4m3: gatedExperts,
  experts_gated_mx4: gatedExperts,
  experts_down_b16: downExperts,
  experts_down_e4m3: downExperts,
  experts_down_mx4: downExperts,
  // input, weights, bias, tiles, order, perToken, in, ffn, gateStep, upOffset, activation, out
  experts_gated_wgmma: [
    ...(["ptr", "ptr", "ptr", "ptr", "ptr"] as const),
    ...(["i32", "i32", "i32", "i32", "i32", "i32", "ptr"] as const),
  ],
  // input, weights, bias, tiles, order, in, outputs, out
  experts_down_wgmma: ["ptr", "ptr", "ptr", "ptr", "ptr", "i32", "i32", "ptr"],
  // weights, scales, scaleStride, rowShift, inShift, in, rows, out
  widen_e4m3: ["ptr", "ptr", "i32", "i32", "i32", "i32", "i32", "ptr"],
  // weights, scales, in, rows, out
  widen_mx4: ["ptr", "ptr", "i32", "i32", "ptr"],
  // gateUp, rowCount, ffn, activation, out, scales, rowStride
  activate: ["ptr", "ptr", "i32", "i32", "ptr", "ptr", "i32"],
  // gateUp, rowCount, ffn, activation, out, scales
  activate_rows: ["ptr", "ptr", "i32", "i32", "ptr", "ptr"],
  // logits, count, cap
  cap_logits: ["ptr", "i32", "f32"],
  // source, rows, rowCount, rowBytes, target
  gather_rows: ["ptr", "ptr", "ptr", "i32", "ptr"],
  // logits, vocabSize, rows, edits, saved, rowCount, sampledIds
  sample_rows: ["ptr", "i32", "ptr", "ptr", "ptr", "ptr", "ptr"],
  // logits, vocabSize, rows, sampledIds, rowCount, topStride, chosen, topIds, topLogprobs
  logprobs: ["ptr", "i32", "ptr", "ptr", "ptr", "i32", "ptr", "ptr", "ptr"],
  // sourceSlots, targetSlots, deltas, tokenCount, layerRotates, rotations, inverseFactor, slidingRotations,
  // slidingInverseFactor, kvHeads, headDim, rotaryDim, blockTokens, layerStride, pool
  copy_tokens: [
    ...(["ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "f32", "ptr", "f32"] as const),
    ...(["i32", "i32", "i32", "i32", "i64", "ptr"] as const),
  ],
  // moved, pool, layerStride, layerVectors, rowVectors, blockTokens, staging
  pack_blocks: [movedBlocks, "ptr", "i64", "i32", "i32", "i32", "ptr"],
  // moved, staging, pool, layerStride, layerVectors
  unpack_blocks: [movedBlocks, "ptr", "ptr", "i64", "i32"],
  // slots, slotCount, kvHeads, blockTokens, layerStride, shadowStride, pool, shadows
  shadow_slots: ["ptr", "ptr", "i32", "i32", "i64", "i64", "ptr", "ptr"],
  // moved, kvHeads, blockTokens, layerStride, shadowStride, pool, shadows
  shadow_blocks: [movedBlocks, "i32", "i32", "i64", "i64", "ptr", "ptr"],
  // qkv, step, choicePlace, rotations, shadows, queryHeads, kvHeads, rotaryDim, blockShift, scaleLog2, scores, parts, counts
  score_shadows: scoring,
  score_shadows_wide: scoring,
  attend_choice_1: choosing,
  attend_choice_2: choosing,
  attend_choice_4: choosing,
  attend_choice_8: choosing,
  // qkv, bias, kNorm, then `heads`, out
  deviations: ["ptr", "ptr", "ptr", ...heads, "ptr"],
} as const satisfies Readonly<Record<string, Signature>>;

export type KernelName = keyof typeof kernelSignatures;

/** The file that defines a kernel, where it is not NAME.cu. */
const otherFiles: Partial<Record<KernelName, string>> = {
  activate_rows: "activate.cu",
  fill_rope_table: "rope_table.cu",
  matvec_float: "matvec.cu",
  matvec_gated: "matvec.cu",
  matvec_add: "matvec.cu",
  matvec_e4m3_gated: "matvec_e4m3.cu",
  matvec_e4m3_add: "matvec_e4m3.cu",
  quantize_blocks: "quantize.cu",
  quantize_rows: "quantize.cu",
  route_row: "route_rows.cu",
  experts_gated_b16: "experts_b16.cu",
  experts_gated_e4m3: "experts_e4m3.cu",
  experts_gated_mx4: "experts_mx4.cu",
  experts_gated_wgmma: "experts_wgmma.cu",
  experts_down_b16: "experts_b16.cu",
  experts_down_e4m3: "experts_e4m3.cu",
  experts_down_mx4: "experts_mx4.cu",
  experts_down_wgmma: "experts_wgmma.cu",
  widen_e4m3: "widen_experts.cu",
  widen_mx4: "widen_experts.cu",
  pack_blocks: "move_blocks.cu",
  unpack_blocks: "move_blocks.cu",
  score_shadows_wide: "score_shadows.cu",
  attend_choice_1: "attend_choice.cu",
  attend_choice_2: "attend_choice.cu",
  attend_choice_4: "attend_choice.cu",
  attend_choice_8: "attend_choice.cu",
  shadow_slots: "shadow_keys.cu",
  shadow_blocks: "shadow_keys.cu",
};

/** The file in kernels/cuda that defines the kernel. */
export const kernelFile = (name: KernelName): string =>
  name.startsWith("few_rows_wgmma_") ? "few_rows_wgmma.cu" : (otherFiles[name] ?? `${name}.cu`);
