/* Masks the scores of a step and turns them into weights (attention_packed_wgmma.cu). */
#ifndef SPANGATE_PACKED_SCORES_CUH
#define SPANGATE_PACKED_SCORES_CUH

#include "packed_ring.cuh"
#include "wgmma_results.cuh"

using Scores = float[kTokens / 8][4];

/* Masks tokens that a row does not see. @param rows the lane's two rows in the item @param record of the step */
__device__ __forceinline__ void mask_scores(Scores &scores, uint32 record, const int (&rows)[2]) {
  const int column = int(threadIdx.x & 3) * 2;
#pragma unroll
  for (int p = 0; p < kParts; p++) {
    const uint4 words = load_shared4(record + p * 16);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int i = rows[r] - int(words.x);
      const int end = i >= 0 && i < int(words.y) ? min(int(words.w), int(words.z) + i) - column : 0;
#pragma unroll
      for (int n = 0; n < 2; n++) {
        if (n * 8 >= end) scores[2 * p + n][2 * r] = -infinity();
        if (n * 8 + 1 >= end) scores[2 * p + n][2 * r + 1] = -infinity();
      }
    }
  }
}

/*
 * Clears rows of V behind a part's last token, which may hold anything. @param valid a byte for each part. All
 * computing warps call it.
 */
__device__ __forceinline__ void clear_values(uint32 slot, uint32 valid) {
#pragma unroll 1
  for (int i = threadIdx.x & 127; i < kTokens * kVectors; i += 128) {
    const int row = i / kVectors, vector = i % kVectors;
    if (row % kPartTokens < (valid >> row / kPartTokens * 8 & 255)) continue;
    store_shared4(slot + vector / 8 * kHalfBytes + row * 128 + vector % 8 * 16, make_uint4(0, 0, 0, 0));
  }
  order_before_products();
  meet(1, kProductWarps * 32);
}

/* Turns the scores of a step into weights; where the reference changed, earlier sums are multiplied with `rescale`. */
__device__ __forceinline__ void take_weights(const Scores &scores, bool changed, const float (&rescale)[2],
                                             Sums &out, uint32 (&weights)[kTokens / 4]) {
  if (__any_sync(kAllLanes, changed)) {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) out[n][i] *= rescale[i / 2];
    }
  }
#pragma unroll
  for (int n = 0; n < kTokens / 8; n++) {
    weights[2 * n] = pack_bf16(scores[n][0], scores[n][1]);
    weights[2 * n + 1] = pack_bf16(scores[n][2], scores[n][3]);
  }
}

#endif
