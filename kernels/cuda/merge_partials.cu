/*
 * The partial results of rows whose tile was split over several items (attention.cuh), merged: weights
 * 2^(log sum - greatest log sum).
 *
 *   partialOut [partial rows][queryHeads][headDim], partialSums [partial rows][queryHeads] float32
 *   merges [mergeCount] of 4 ints, from worker/backend/cuda/work-items.ts: part k of a row is partial row
 *   firstPartial + k * stride; out [rows][queryHeads][headDim] bf16; headDim even, at most 128
 *
 * Grid: one block of 128 threads a merge, a warp a head. Bytes: 4 * headDim a partial row and head.
 * Oracle: test/backend/cuda/emulated-kernels.ts.
 */
#include "common.cuh"

struct Merge {
  int row, firstPartial, partCount, stride;
};

extern "C" __global__ void __launch_bounds__(128)
merge_partials(const float *partialOut, const float *partialSums, const Merge *__restrict__ merges,
               const int *mergeCount, int queryHeads, int headDim, bf16 *out) {
  let_next_begin();
  const bool isIdle = blockIdx.x >= *mergeCount;
  const Merge merge = isIdle ? Merge{} : merges[blockIdx.x];
  wait_for_previous();
  if (isIdle) return;
  const int lane = threadIdx.x & 31, pairs = headDim / 2;
  for (int head = blockIdx.y * 4 + (threadIdx.x >> 5); head < queryHeads; head += gridDim.y * 4) {
    float top = -infinity();
    for (int k = lane; k < merge.partCount; k += 32) {
      top = fmaxf(top, partialSums[size_t(merge.firstPartial + k * merge.stride) * queryHeads + head]);
    }
    top = warp_max(top);
    float2 sums[2] = {};
    float total = 0;
#pragma unroll 4
    for (int k = 0; k < merge.partCount; k++) {
      const size_t at = size_t(merge.firstPartial + k * merge.stride) * queryHeads + head;
      const float weight = exp2f(partialSums[at] - top);
      const float2 *from = reinterpret_cast<const float2 *>(partialOut + at * headDim);
      total += weight;
#pragma unroll
      for (int c = 0; c < 2; c++) {
        if (lane + 32 * c >= pairs) break;
        sums[c].x += weight * from[lane + 32 * c].x;
        sums[c].y += weight * from[lane + 32 * c].y;
      }
    }
    uint32 *to = reinterpret_cast<uint32 *>(out + (size_t(merge.row) * queryHeads + head) * headDim);
#pragma unroll
    for (int c = 0; c < 2; c++) {
      if (lane + 32 * c < pairs) to[lane + 32 * c] = pack_bf16(sums[c].x / total, sums[c].y / total);
    }
  }
}
