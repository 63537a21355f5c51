/* Turns the sums of a product warp into results: rows of the output, partial results, merges. */
#ifndef SPANGATE_WGMMA_RESULTS_CUH
#define SPANGATE_WGMMA_RESULTS_CUH

#include "attention_merge.cuh"
#include "attention_softmax.cuh"
#include "wgmma.cuh"

/* 16 x 8 numbers of the warp's 16 rows, arranged like the accumulators of wgmma. */
using Sums = float[kHeadDim / 8][4];

/* One of the warp's 16 rows; the lane has every fourth pair of its columns. */
__device__ __forceinline__ void write_row(const PlanArguments &a, bool exists, int row, int partial, int head, int r,
                                          float inverse, const Sums &out) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int m = 0; m < kHeadDim / 8; m += 4) {
    uint32 words[4];
#pragma unroll
    for (int n = 0; n < 4; n++) words[n] = pack_bf16(out[m + n][2 * r] * inverse, out[m + n][2 * r + 1] * inverse);
    const uint4 eight = transpose_words(words);
    if (!exists || partial >= 0) continue;
    *reinterpret_cast<uint4 *>(result_at(a, row, head) + (m + (lane & 3)) * 8) = eight;
  }
  if (!exists || partial < 0) return;
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; n++) {
    const float2 pair = make_float2(out[n][2 * r] * inverse, out[n][2 * r + 1] * inverse);
    *reinterpret_cast<float2 *>(partial_at(a, partial, head) + n * 8 + (lane & 3) * 2) = pair;
  }
}

/* Writes the results of a warp's tile. */
__device__ __forceinline__ void write_results(const PlanArguments &a, const PlanUnit &unit, const TileRow &tileRow,
                                              RunningSoftmax &softmax, const Sums &out) {
  const int lane = threadIdx.x & 31;
  softmax.finish();
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int packed = lane / 4 + 8 * r, inTile = packed / unit.headCount;
    const int row = __shfl_sync(kAllLanes, tileRow.row, inTile);
    const int partial = __shfl_sync(kAllLanes, tileRow.partial, inTile);
    const bool exists = inTile < unit.rowsPerTile && row >= 0;
    const int head = unit.firstHead + packed % unit.headCount;
    const float inverse = result_factor(a, partial, head, softmax.sum[r], softmax.reference[r]);
    write_row(a, exists, row, partial, head, r, inverse, out);
    if (exists && (lane & 3) == 0) write_log_sum(a, partial, head, softmax.log_sum(r));
  }
}

#endif
