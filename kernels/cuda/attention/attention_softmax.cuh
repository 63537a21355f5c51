/*
 * Running softmax of the rows g and g + 8 of a 16-row fragment, g = lane / 4; four lanes share a row. A weight is
 * 2^(score - reference). The reference is some score of the row; it moves to the greatest score only when that is far
 * above it, so that earlier sums rarely have to be rescaled.
 *
 * Compiled with SCORE_CAP c above 0, scores x (in powers of e) become c tanh(x / c) first.
 */
#ifndef SPANGATE_ATTENTION_SOFTMAX_CUH
#define SPANGATE_ATTENTION_SOFTMAX_CUH

#include "mma.cuh"

#ifndef SCORE_CAP
#define SCORE_CAP 0
#endif
constexpr float kScoreCap = SCORE_CAP;

/* A score that is no longer scaled: in powers of 2, and capped; a masked one stays so. */
__device__ __forceinline__ float capped_score(float score, float scaleLog2) {
  constexpr float kLog2E = 1.4426950409f, kCap = kScoreCap > 0 ? kScoreCap * kLog2E : 1.0f;
  if (score == -infinity()) return score;
  /* tanh(y) = 1 - 2 / (e^(2 y) + 1), where a sum beyond float32 gives 1. */
  const float exponential = exp2_fast(score * scaleLog2 * (2.0f * kLog2E / kCap));
  return kCap - 2.0f * kCap / (exponential + 1.0f);
}

struct RunningSoftmax {
  float reference[2], sum[2];

  __device__ __forceinline__ void reset() {
    reference[0] = reference[1] = -infinity();
    sum[0] = sum[1] = 0;
  }

  /* Turns scores into weights. `rescale` gets the factor of earlier sums. @return whether that differs from 1 */
  template <int kTiles>
  __device__ __forceinline__ bool update(float (&scores)[kTiles][4], float scaleLog2, float (&rescale)[2]) {
    constexpr float kFar = 8; /* bf16 has the same relative precision for weights up to 2^8 */
    bool changed = false;
    if constexpr (kScoreCap > 0) {
#pragma unroll
      for (int n = 0; n < kTiles; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) scores[n][i] = capped_score(scores[n][i], scaleLog2);
      }
      scaleLog2 = 1;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float top = scores[0][2 * r];
#pragma unroll
      for (int n = 0; n < kTiles; n++) top = fmaxf(top, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2)) * scaleLog2;
      const bool isFar = top > reference[r] + kFar;
      const float base = isFar ? top : reference[r] == -infinity() ? 0.0f : reference[r];
      rescale[r] = isFar ? exp2_fast(reference[r] - top) : 1.0f;
      reference[r] = isFar ? top : reference[r];
      changed |= isFar;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kTiles; n++) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; i++) {
          scores[n][i] = exp2_fast(fmaf(scores[n][i], scaleLog2, -base));
          total += scores[n][i];
        }
      }
      sum[r] = sum[r] * rescale[r] + total;
    }
    return changed;
  }

  /* log2 of the sum of weights of row g + 8 r; valid after `finish`. */
  __device__ __forceinline__ float log_sum(int r, float = 0) const {
    return sum[r] > 0 ? reference[r] + log2f(sum[r]) : -infinity();
  }

  /* Adds up the sums of a row's four lanes. */
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 1);
      sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 2);
    }
  }
};

#endif
